"""Read the conclusions of models in transcripts of version 1: a chain of sentences, each with ids of findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whystall.agent_server.diagnosis.grounding.model_conclusion import HYPOTHESIS_LIMIT, OldConclusion
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean


class _Old(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)


class _Link(_Old):
    claim: str = Field(min_length=1, max_length=400)
    findings: list[str] | str = Field(default_factory=list, max_length=6)


class _Conclusion(_Old):
    cause: str = Field(default="unknown", max_length=100)
    chain: list[_Link] = Field(default_factory=list, max_length=8)
    remedies: list[str] = Field(default_factory=list, max_length=5)


def reader(refused: Callable[[], Sequence[tuple[str, str]]]) -> Callable[[Mapping[str, Any]], OldConclusion]:
    """Return a reader of arguments of ``conclude``; `refused`: code and text of what was removed from this conclusion.

    The reader raises `ToolError` (bad_argument) where the older version did.
    """

    def read(given: Mapping[str, Any]) -> OldConclusion:
        try:
            old = _Conclusion.model_validate(given)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors(include_url=False, include_input=False)[0]["loc"])
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{clean(place, 80)}: not valid", "correct the value") from None
        struck = list(refused())
        texts = {text for _, text in struck}
        text = clean(" ".join(link.claim for link in old.chain if link.claim not in texts), HYPOTHESIS_LIMIT)
        return OldConclusion(cause=old.cause, hypothesis=text, remedies=old.remedies, refused=struck)

    return read
