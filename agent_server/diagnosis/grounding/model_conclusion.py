"""The conclusion of a model before it is checked: the arguments of the function ``conclude``."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from whystall.knowledge_base.models import Check, Claim, Relation, Role, Unverified
from whystall.tools.contract.text import clean

UNKNOWN, OTHER = "unknown", "other"
"""The cause if the model names none, and if its hypothesis is not in the catalogue."""

CLAIMS_LIMIT, REMEDIES_LIMIT, PROPOSED_LIMIT, CHECKS_LIMIT = 16, 5, 3, 4
HYPOTHESIS_LIMIT, NARRATIVE_LIMIT, PROPOSED_CHARS = 600, 2_000, 300
"""Characters of free text."""

_ID = re.compile(r"\W*(F\d{1,9})\W*", re.IGNORECASE | re.ASCII)
_Proposed = Annotated[str, StringConstraints(min_length=1, max_length=PROPOSED_CHARS)]


class ModelConclusion(BaseModel):
    """`cause`: its id, ``other`` with a `hypothesis` in words, or ``unknown``. `remedies`: ids, best first. `proposed`:
    remedies in words. The rest as in `Concluded`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    cause: str = Field(default=UNKNOWN, max_length=100)
    hypothesis: str = Field(default="", max_length=HYPOTHESIS_LIMIT)
    claims: list[Claim] = Field(default_factory=list, max_length=CLAIMS_LIMIT)
    remedies: list[str] = Field(default_factory=list, max_length=REMEDIES_LIMIT)
    proposed: list[_Proposed] = Field(default_factory=list, max_length=PROPOSED_LIMIT)
    narrative: str = Field(default="", max_length=NARRATIVE_LIMIT)
    checks: list[Check] = Field(default_factory=list, max_length=CHECKS_LIMIT)

    @field_validator("claims")
    @classmethod
    def _normalised(cls, claims: list[Claim]) -> list[Claim]:
        """Return the claims with ids as models write them (``[f3]``) in the form of ids, each claim once."""
        normal = [c.model_copy(update={name: _id(getattr(c, name)) for name in ("subject", "object")}) for c in claims]
        return [claim for at, claim in enumerate(normal) if claim not in normal[:at]]

    @model_validator(mode="after")
    def _explained(self) -> ModelConclusion:
        if self.cause == OTHER and not self.hypothesis:
            raise ValueError("the cause 'other' needs a hypothesis")
        return self

    @property
    def unverified(self) -> Unverified:
        """Return its free text as plain lines."""
        return Unverified(
            hypothesis=_line(self.hypothesis, HYPOTHESIS_LIMIT),
            narrative=_line(self.narrative, NARRATIVE_LIMIT),
            proposed=[_line(text, PROPOSED_CHARS) for text in self.proposed],
            checks=self.checks,
        )


class OldConclusion(ModelConclusion):
    """A conclusion in the prose of older transcripts, as `hypothesis`. `refused`: code and text of what was removed."""

    refused: list[tuple[str, str]] = Field(default_factory=list)


def _line(text: str, limit: int) -> str:
    return clean(" ".join(text.split()), limit)


def _id(text: str) -> str:
    match = _ID.fullmatch(text)
    return match[1].upper() if match else text.strip()


def parameters(causes: Collection[str]) -> dict[str, Any]:
    """Return the JSON schema of the function ``conclude``, without references: not every server resolves them."""
    text = {"type": "string"}
    claim = {
        "relation": {**text, "enum": list(get_args(Relation))},
        "subject": {**text, "description": "Id of a finding, such as F3."},
        "object": {**text, "description": "Id of a finding, or of a cause; of a cause for rules_out."},
        "role": {
            **text,
            "enum": [role for role in get_args(Role) if role],
            "description": "What the awaited thread, file or disk is to the waiting one; only where a wait is claimed.",
        },
        "share_pct": {
            "type": "number",
            "minimum": 0,
            "maximum": 100,
            "description": "For explains_share_of: percent of the window.",
        },
    }
    check = {"tool": {**text, "description": "A function of yours."}, "arguments": {"type": "object"}}
    properties = {
        "cause": {**text, "enum": [*causes, OTHER, UNKNOWN]},
        "hypothesis": {**text, "maxLength": HYPOTHESIS_LIMIT, "description": "The cause in words; needed for other."},
        "claims": _array(_object(claim, ["relation", "subject", "object"]), CLAIMS_LIMIT, "From stall to origin."),
        "remedies": _array(text, REMEDIES_LIMIT, "Ids of remedies of the cause, best first."),
        "proposed": _array({**text, "maxLength": PROPOSED_CHARS}, PROPOSED_LIMIT, "Remedies of your own, in words."),
        "narrative": {
            **text,
            "maxLength": NARRATIVE_LIMIT,
            "description": "Explanation for a person; numbers and names only as {F3.window_pct}, {F3.path}.",
        },
        "checks": _array(_object(check, ["tool"]), CHECKS_LIMIT, "Calls that would test the hypothesis."),
    }
    return _object(properties, ["cause", "claims"])


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _array(items: dict[str, Any], most: int, description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most, "description": description}
