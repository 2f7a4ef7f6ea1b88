"""The form in which an assistant concludes: verdict, causes of the closed vocabulary, and facts."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from benchmarks.faults.answer import Answer
from benchmarks.faults.judgement import judgement
from benchmarks.faults.scenario import Dimension, Verdict
from whystall.knowledge_base.causes import load_causes
from whystall.tools.host.common.path_codes import WAITS

CONCLUDE = "conclude"
_FIELDS = ("verdict", "causes", "scope", "evidence", "advice", "text")
_SCOPE = {
    "code": "lines of the program as `function (file.py:41)`",
    "pid": "process or thread ids",
    "file": "paths",
    "device": "disks",
    "cgroup": "cgroups",
    "peer": "addresses as `10.0.0.2:8080`",
    "wait": f"kinds of waits. {'; '.join(f'{wait}: {meaning}' for wait, meaning in WAITS.items())}",
}


def titles() -> dict[str, str]:
    """Return the vocabulary: titles of the causes by id."""
    return {id: cause.title.en for id, cause in load_causes().items()}


def declaration(causes: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON schema of the form."""
    texts = {"type": "array", "items": {"type": "string"}}
    words = judgement()
    scope = {key: {**texts, "description": _SCOPE.get(key, "")} for key in typing.get_args(Dimension)}
    return {
        "type": "object",
        "properties": {
            "verdict": {
                "enum": list(typing.get_args(Verdict)),
                "description": "confirmed and likely assert the first cause; idle: the process had no work",
            },
            "causes": {
                "type": "array",
                "items": {"enum": list(causes)},
                "maxItems": 3,
                "description": f"root causes, best first; empty if none. {_listed(causes)}",
            },
            "scope": {"type": "object", "properties": scope, "additionalProperties": False},
            "evidence": {
                "type": "array",
                "items": _word("measure", words.measures, {"value": {"type": "number"}, "text": {"type": "string"}}),
                "description": f"measurements that show it, best first. {_listed(words.measures)}",
            },
            "advice": {
                "type": "array",
                "items": _word("action", words.actions, {"text": {"type": "string"}}),
                "description": f"what to do, best first. {_listed(words.actions)}",
            },
            "text": {"type": "string", "description": "the answer for the user, in a few sentences"},
        },
        "required": ["verdict", "causes"],
        "additionalProperties": False,
    }


def _word(name: str, words: Mapping[str, str], more: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with one of `words`."""
    return {"type": "object", "properties": {name: {"enum": list(words)}, **more}, "required": [name]}


def _listed(words: Mapping[str, str]) -> str:
    return "; ".join(f"{word}: {meaning}" for word, meaning in words.items())


def answer(value: object, causes: Mapping[str, str]) -> Answer:
    """Return the filled form as an answer. Raises ValueError with the reason if it is not valid."""
    if not isinstance(value, dict):
        raise ValueError("give an object")
    if unknown := [one for one in value.get("causes") or [] if one not in causes]:
        raise ValueError(f"unknown causes: {unknown}")
    try:
        return Answer.model_validate({key: value[key] for key in _FIELDS if key in value})
    except ValidationError as error:
        raise ValueError(str(error)[:1000]) from None
