"""Read findings, causes and calls from the conversation in a request. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from model_http import Json, Request

CONCLUDE = "conclude"
_FENCE = re.compile(r"^<<data (?P<nonce>[0-9a-f]+)\n(?P<data>.*)\n(?P=nonce) data>>$", re.MULTILINE)


class Reading:
    """What a request contains: the latest `findings` by id and `causes` in order, the causes that a finding rules out
    (`excluded`, with its id), the `leading` cause of the verdict so
    far (None: it has none; empty: no verdict is stated), `suggested` tools, and the user's `symptom`. All are read from
    the data of the briefing and the answers, at any depth.
    """

    def __init__(self, request: Request) -> None:
        self.functions = request.functions
        self.messages = request.messages
        self.findings: dict[str, Json] = {}
        self.causes: list[Json] = []
        self.excluded: dict[str, str] = {}
        self.leading: str | None = ""
        self.suggested: list[str] = []
        self.symptom = ""
        for message in self.messages:
            if message["role"] in ("user", "tool"):
                self._take(message["content"])

    def _take(self, text: str) -> None:
        causes: list[Json] = []
        for value in payloads(text):
            for found in objects(value):
                if "kind" in found and "id" in found:
                    self.findings[found["id"]] = found
                elif "state" in found and "cause" in found:
                    causes.append(found)
                if "verdict_so_far" in found:
                    self.leading = found["verdict_so_far"]["cause"]
                    self.excluded = {c["id"]: c["by"][0] for c in found.get("excluded", []) if c.get("by")}
                self.symptom = found.get("symptom", self.symptom)
                self.suggested = found.get("suggested", self.suggested)
        self.causes = causes or self.causes

    @property
    def language(self) -> str:
        """Return ``zh`` if the instructions are Chinese, else ``en``; fenced data does not count."""
        system = "".join(m["content"] for m in self.messages if m["role"] == "system")
        return "zh" if sum("\u4e00" <= letter <= "\u9fff" for letter in system) > len(system) / 10 else "en"

    @property
    def text(self) -> str:
        """Return everything sent to the model, instructions and data."""
        return "\n".join(str(m["content"]) for m in self.messages if m["role"] in ("system", "user", "tool"))

    @property
    def called(self) -> list[str]:
        """Return the functions called so far, in order."""
        return [c["function"]["name"] for m in self.messages for c in m.get("tool_calls") or []]


def payloads(text: str) -> Iterator[Any]:
    """Yield the fenced data of `text`: one line of JSON between two markers with the same nonce."""
    for fence in _FENCE.finditer(text):
        yield json.loads(fence["data"])


def objects(value: Any) -> Iterator[Json]:
    """Yield `value` and everything in it that is a JSON object."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from objects(part)
    elif isinstance(value, list):
        for part in value:
            yield from objects(part)


def numbers(finding: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric metrics of a finding."""
    return {name: value for name, value in finding.get("metrics", {}).items() if isinstance(value, (int, float))}
