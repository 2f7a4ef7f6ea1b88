"""What counts as evidence of a cause, and what removes it: read from judgement.yaml."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

_FILE = Path(__file__).with_name("judgement.yaml")


class Accepted(BaseModel):
    """The measures that show a cause's mechanism, and the actions that remove it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measures: tuple[str, ...]
    actions: tuple[str, ...]


class Judgement(BaseModel):
    """The words of evidence and advice with their meaning, and what is accepted by cause."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measures: dict[str, str]
    actions: dict[str, str]
    causes: dict[str, Accepted]

    def of(self, causes: Iterable[str]) -> Accepted:
        """Return what is accepted for a case that accepts several causes: what is accepted for any of them."""
        known = [self.causes[cause] for cause in causes if cause in self.causes]
        return Accepted(
            measures=tuple(dict.fromkeys(measure for one in known for measure in one.measures)),
            actions=tuple(dict.fromkeys(action for one in known for action in one.actions)),
        )


@cache
def judgement() -> Judgement:
    """Return the file, read once."""
    return Judgement.model_validate(yaml.safe_load(_FILE.read_text(encoding="utf-8")))
