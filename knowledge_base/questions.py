"""The shipped questions for the evaluation of retrieval, as people on call type them, with their answers."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Lang, Model

Half = Literal["tune", "held_out"]


class Question(Model):
    """`ask`: as typed. `cards`: incidents of which any answers it; empty if none does."""

    ask: str = Field(min_length=1)
    cards: list[str]


class Questions(Model):
    """`tune`: for tuning the matching; `held_out`: for measuring it."""

    tune: list[Question]
    held_out: list[Question]


def questions(lang: Lang) -> dict[Half, list[Question]]:
    """Return the questions in `lang` by half; raise `ToolError` (bad_argument, io_error) for a malformed file."""
    file = catalog("questions") / f"{lang}.yaml"
    read = as_model(Questions, read_yaml(file), file)
    asked = [question.ask for half in get_args(Half) for question in getattr(read, half)]
    if twice := sorted({ask for ask in asked if asked.count(ask) > 1}):
        raise data_fault(file, f"{twice[0]!r} is asked twice")
    return {"tune": read.tune, "held_out": read.held_out}
