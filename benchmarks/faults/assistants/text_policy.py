"""The careful assistant in a client that passes only the text of a result to its model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.faults.adapters import whystall_words
from benchmarks.faults.answer import Answer
from benchmarks.faults.assistants.policy import Careful, named_tools
from benchmarks.faults.assistants.sentences import activities, role
from benchmarks.faults.assistants.transcripts import Called, Tool
from whystall.tools.host.common.path_codes import MODES

_VERDICT = re.compile(r"^Verdict: (\w+)(?: - (.+))?$", re.MULTILINE)
_ALSO = "Also supported by evidence:"
_REFUTED = "Ruled out:"
_NEXT = "Next:"
_AFTER = ("What could not be observed:", "Similar past incidents:", "What to do", _NEXT)
_CITED = re.compile(r"^\d+\. \[F\d+\] (.+)$", re.MULTILINE)
_PCT = re.compile(r"([\d.]+) % of the time")
# A row of the account: its share, and the finding at its end.
_ROW = re.compile(r"^ *([\d.]+) %  (.+) \[F\d+\]$", re.MULTILINE)
# Facts as the texts write them: ``save (train.py:41)``, ``python (4711)`` or ``pid 4711``, ``/data/a.bin``.
_FACTS = {
    "code": re.compile(r"[\w.<>]+ \([^()\s:]*\.[A-Za-z]\w*:\d+\)"),
    "pid": re.compile(r"(?:\((?=\d+\))|\bpid |\bthread )(\d+)\b"),
    "file": re.compile(r"(?<![\w.])/[^\s,;()\"]+"),
    "device": re.compile(r"\b(?:disk |on )((?:s|v|xv|h)d[a-z]+\d*|[a-z]+-?\d\w*)"),
    "cgroup": re.compile(r"(?<![\w.])/[^\s,;()\"]+"),
    "peer": re.compile(r"\b\d+\.\d+\.\d+\.\d+:\d+|\[[0-9a-f:]+\]:\d+"),
}


class CarefulReader(Careful):
    """`Careful`, but the texts alone are read. `titles`: of the causes, by id, as the form of the answer lists them."""

    name = "careful-text"

    def __init__(self, titles: Mapping[str, str], follow_up: int = 1) -> None:
        super().__init__(follow_up)
        self._ids = {title: id for id, title in titles.items()}

    def verdict(self, call: Called) -> str:
        """Return the verdict of a diagnosis."""
        found = _VERDICT.search(call.text)
        return found[1].lower() if found else "inconclusive"

    def conclude(self, call: Called) -> Answer:
        """Return the conclusion from the text of `diagnose`."""
        found = _VERDICT.search(call.text)
        named = [found[2]] if found and found[2] else []
        named += [line[2:].partition(": ")[0] for line in self._section(call.text, _ALSO)]
        causes = [self._ids[title] for title in named if title in self._ids]
        stated = re.split("|".join(f"\n{one}" for one in (_ALSO, _REFUTED, *_AFTER)), call.text)[0]
        scope = {key: list(dict.fromkeys(pattern.findall(stated))) for key, pattern in _FACTS.items()}
        scope["wait"] = list(dict.fromkeys(code for code, _ in activities(stated)))
        remedies = whystall_words.advice(self._ids.get(found[2] or "") if found else None)
        value: dict[str, Any] = {
            "verdict": self.verdict(call),
            "causes": list(dict.fromkeys(causes)),
            "scope": {key: facts for key, facts in scope.items() if facts},
            "evidence": _evidence(stated),
            "advice": [remedy for remedy in remedies if remedy["text"] in call.text],
            "text": call.text.partition("\n\n")[0],
        }
        return Answer.model_validate(value)

    def named(self, tools: Sequence[Tool], call: Called) -> list[str]:
        """Return the tools that a diagnosis proposes to call next, then those that it names."""
        return named_tools(tools, call.text.partition(f"\n{_NEXT}\n")[2] + call.text, set())

    @staticmethod
    def _section(text: str, heading: str) -> list[str]:
        """Return the list items below a heading."""
        rest = text.partition(f"\n{heading}\n")[2].splitlines()
        end = next((i for i, line in enumerate(rest) if not line.startswith("- ")), len(rest))
        return rest[:end]


def _evidence(text: str) -> list[dict[str, Any]]:
    """Return what the cited findings measure, those of the largest share of the time first: waits and running only."""
    lines = [(share[1], line) for line in _CITED.findall(text) if (share := _PCT.search(line))]
    found = []
    for share, line in [*_ROW.findall(text), *lines]:
        for code, detail in activities(line):
            words = {"mode" if code in MODES else "wait": code, "detail": detail, "role": role(line)}
            found += [
                {"measure": measure, "value": float(share), "unit": "% of the window", "text": line}
                for measure in whystall_words.measures("path.wait", words)
            ]
    return sorted(found, key=lambda one: -one["value"])
