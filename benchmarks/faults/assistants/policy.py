"""Policies: what an assistant does next, given only the tools of the server and what they returned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.faults.adapters import whystall_rules
from benchmarks.faults.answer import Answer
from benchmarks.faults.assistants.transcripts import Called, Started, Tool

DIAGNOSE = "diagnose"
LONGER_S = 2 * whystall_rules.DURATION_S
"""Length of a second diagnosis; the first observes as long as the other diagnosers do."""
_STRENGTH = ("idle", "healthy", "inconclusive", "likely", "confirmed")
# A next call `- NAME {...}`, `whystall run NAME`, or a name with an underscore: others are also plain words.
_NAME = re.compile(r"(?<=^- )[a-z_]+(?= \{)|(?<=whystall run )[a-z_]+|\b[a-z]+_[a-z_]+\b", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A call that an assistant wants. `message`: its text beside the call."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    message: str = ""


class Policy(Protocol):
    """An assistant. `model`: the name of its language model, empty without one."""

    name: str
    model: str

    async def next(self, tools: Sequence[Tool], start: Started, calls: Sequence[Called]) -> Call | Answer:
        """Return the next call, or the conclusion; `calls`: those so far with their results."""


class Careful:
    """Fixed rules, as the instructions of the server advise: diagnose; if that is not conclusive, run the tools that
    the answer names, and diagnose again for longer. The structured results are read.
    """

    name = "careful"
    model = ""

    def __init__(self, follow_up: int = 1) -> None:
        """`follow_up`: most tools to run between two diagnoses."""
        self._follow_up = follow_up

    async def next(self, tools: Sequence[Tool], start: Started, calls: Sequence[Called]) -> Call | Answer:
        """Return the next call, or the conclusion."""
        tried = [call for call in calls if call.tool == DIAGNOSE]
        done = [call for call in tried if not call.error]
        question = {"pid": start.pid, "symptom": start.symptom, "duration": whystall_rules.DURATION_S}
        if not done:
            if len(tried) < 2:  # once more after an error
                return Call(DIAGNOSE, question)
            return Answer(verdict="inconclusive", text=tried[-1].text)
        best = max(done, key=lambda call: _STRENGTH.index(self.verdict(call)))
        if self.verdict(best) not in ("inconclusive", "idle") or len(tried) > 1:
            return self.conclude(best)
        between = calls[calls.index(done[0]) + 1 :]
        left = [name for name in self.named(tools, done[0]) if name not in {call.tool for call in between}]
        if self.verdict(best) == "inconclusive" and left and len(between) < self._follow_up:
            return Call(left[0], {"pid": start.pid})
        return Call(DIAGNOSE, {**question, "duration": LONGER_S})

    def verdict(self, call: Called) -> str:
        """Return the verdict of a diagnosis."""
        return str((call.structured or {}).get("verdict", "inconclusive"))

    def conclude(self, call: Called) -> Answer:
        """Return the conclusion from the result of `diagnose`."""
        found = whystall_rules.answer(call.structured or {})
        return Answer.model_validate({**found, "text": call.text.partition("\n\n")[0]})

    def named(self, tools: Sequence[Tool], call: Called) -> list[str]:
        """Return the tools that a diagnosis names and did not run, in the order of its text."""
        ran = {tool for step in (call.structured or {}).get("steps", []) for tool in step["tools"]}
        return named_tools(tools, call.text, ran)


def named_tools(tools: Sequence[Tool], text: str, ran: set[str]) -> list[str]:
    """Return the tools that observe a process and whose names are in a text, but not in `ran`."""
    able = {
        tool.name
        for tool in tools
        if tool.name != DIAGNOSE and {"pid", "duration"} <= set(tool.input_schema.get("properties", {}))
    }
    return [word for word in dict.fromkeys(_NAME.findall(text)) if word in able - ran]
