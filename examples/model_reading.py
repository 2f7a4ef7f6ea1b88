"""What a request tells a model: the conversation, read as data. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from model_http import Json, Request

CONCLUDE = "conclude"
_DECODER = json.JSONDecoder()


class Reading:
    """What a model knows after reading a request.

    `findings` by id, as they were last told; `causes` in the order in which they were last told. Both come from the
    functions' answers and from the briefing, whatever these look like around the JSON.
    """

    def __init__(self, request: Request) -> None:
        self.functions = request.functions
        self.messages = request.messages
        self.findings: dict[str, Json] = {}
        self.causes: list[Json] = []
        for message in self.messages:
            if message["role"] in ("user", "tool"):
                self._take(message["content"])

    def _take(self, text: str) -> None:
        causes: list[Json] = []
        for value in payloads(text):
            for found in objects(value):
                if "kind" in found and str(found.get("id", "")).startswith("F"):
                    self.findings[found["id"]] = found
                elif "state" in found and "cause" in found:
                    causes.append(found)
        self.causes = causes or self.causes

    @property
    def language(self) -> str:
        """``zh`` when the instructions are Chinese, else ``en``; the language of what is fenced does not count."""
        system = "".join(m["content"] for m in self.messages if m["role"] == "system")
        return "zh" if sum("\u4e00" <= letter <= "\u9fff" for letter in system) > len(system) / 10 else "en"

    @property
    def text(self) -> str:
        """Everything that was said to the model, instructions and data alike."""
        return "\n".join(str(m["content"]) for m in self.messages if m["role"] in ("system", "user", "tool"))

    @property
    def called(self) -> list[str]:
        """The functions called so far, in order."""
        return [c["function"]["name"] for m in self.messages for c in m.get("tool_calls") or []]

    @property
    def corrections(self) -> int:
        """How often a conclusion was given and sent back."""
        return self.called.count(CONCLUDE)

    def offers(self, name: str, parameter: str) -> bool:
        """Whether the function `name` takes `parameter`."""
        schema = self.functions.get(name, {}).get("parameters", {})
        return parameter in schema.get("properties", {})


def payloads(text: str) -> Iterator[Any]:
    """Every JSON object, list or string that stands in `text`; what is broken is passed over."""
    at = 0
    while (at := _next(text, at)) >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except ValueError:
            at += 1
            continue
        if isinstance(value, str):
            yield from payloads(value)
        else:
            yield value
        at = end


def _next(text: str, start: int) -> int:
    return min((at for at in (text.find(mark, start) for mark in '{["') if at >= 0), default=-1)


def objects(value: Any) -> Iterator[Json]:
    """`value` and everything in it that is a JSON object."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from objects(part)
    elif isinstance(value, list):
        for part in value:
            yield from objects(part)


def numbers(finding: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a finding."""
    return {name: value for name, value in finding.get("metrics", {}).items() if isinstance(value, (int, float))}
