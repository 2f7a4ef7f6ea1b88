"""What a model says in the end: the arguments of the function ``conclude``. Nothing of it is believed yet."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

UNKNOWN = "unknown"
"""The cause of a model that names none."""

CLAIM_LIMIT = 400
"""Characters of one claim. A sentence of findings has about 200."""
LINKS_LIMIT = 8
CITED_LIMIT = 6
"""Findings that one claim may cite: who cites everything has a number for any claim."""
REMEDIES_LIMIT = 5

_ID = re.compile(r"F\d+", re.IGNORECASE)


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Link(_Said):
    """One link of the causal chain: a sentence, and the ids of the findings that say so."""

    claim: str = Field(min_length=1, max_length=CLAIM_LIMIT)
    findings: list[str] = Field(default_factory=list, max_length=CITED_LIMIT)

    @field_validator("findings", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Ids as models write them: ``"F1, F2"``, ``["[f1]"]``. What is no id stays, and will be found to be none."""
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


class ModelConclusion(_Said):
    """`cause`: an id of the catalogue, or ``unknown``. `chain`: from the stall back to its origin. `remedies`: ids of
    the cause's remedies, best first.
    """

    cause: str = Field(default=UNKNOWN, max_length=100)
    chain: list[Link] = Field(default_factory=list, max_length=LINKS_LIMIT)
    remedies: list[str] = Field(default_factory=list, max_length=REMEDIES_LIMIT)


def parameters(causes: Collection[str]) -> dict[str, Any]:
    """The JSON schema of the function ``conclude`` where `causes` are known: flat and without references, since not
    every server resolves them.
    """
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
