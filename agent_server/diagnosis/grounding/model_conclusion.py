"""The conclusion of a model before it is checked: the arguments of the function ``conclude``."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

UNKNOWN = "unknown"
"""The cause if the model names none."""

CLAIM_LIMIT = 400
"""Characters of one claim; a sentence has about 200."""
LINKS_LIMIT = 8
CITED_LIMIT = 6
"""Findings that one claim may cite: among all of them, some value would match any number."""
REMEDIES_LIMIT = 5

_ID = re.compile(r"F\d+", re.IGNORECASE)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Link(_Arguments):
    """One link of the causal chain: a sentence, and the ids of the findings that support it."""

    claim: str = Field(min_length=1, max_length=CLAIM_LIMIT)
    findings: list[str] = Field(default_factory=list, max_length=CITED_LIMIT)

    @field_validator("findings", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Normalise ids as models write them: ``"F1, F2"``, ``["[f1]"]``. Other text stays and is checked later."""
        if isinstance(value, str):
            value = _ID.findall(value) or ([value] if value.strip() else [])
        if not isinstance(value, list):
            return value
        ids: list[str] = []
        for part in value:
            if not isinstance(part, str):
                return value
            ids += [name.upper() for name in _ID.findall(part)] or [part]
        return list(dict.fromkeys(ids))


class ModelConclusion(_Arguments):
    """`cause`: its id, or ``unknown``. `chain`: from the stall back to its origin. `remedies`: ids, best first."""

    cause: str = Field(default=UNKNOWN, max_length=100)
    chain: list[Link] = Field(default_factory=list, max_length=LINKS_LIMIT)
    remedies: list[str] = Field(default_factory=list, max_length=REMEDIES_LIMIT)


def parameters(causes: Collection[str]) -> dict[str, Any]:
    """Return the JSON schema of the function ``conclude``, without references: not every server resolves them."""
    text = {"type": "string"}
    link = {
        "type": "object",
        "properties": {
            "claim": {**text, "maxLength": CLAIM_LIMIT, "description": "One sentence in plain text."},
            "findings": {
                "type": "array",
                "items": text,
                "minItems": 1,
                "maxItems": CITED_LIMIT,
                "description": "Ids of the findings that say so, such as F3.",
            },
        },
        "required": ["claim", "findings"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "cause": {**text, "enum": [*causes, UNKNOWN]},
            "chain": {
                "type": "array",
                "items": link,
                "maxItems": LINKS_LIMIT,
                "description": "The causal chain, from the stall back to its origin.",
            },
            "remedies": {
                "type": "array",
                "items": text,
                "maxItems": REMEDIES_LIMIT,
                "description": "Ids of remedies of the cause, best first.",
            },
        },
        "required": ["cause", "chain"],
        "additionalProperties": False,
    }
