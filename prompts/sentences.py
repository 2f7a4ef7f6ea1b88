"""Findings, blind spots and other codes as sentences. One sentence per finding, numbers with their units.

Findings come as objects with the attributes of `whystall.tools.contract.findings.Finding`; this room
imports no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from whystall.prompts.escape import Safe, placed, short
from whystall.prompts.quantities import points, quantity
from whystall.prompts.reasons import in_words

# Of the many metrics of a file or of a normal measurement, those a reader wants, in the order of reading.
_FILE = (
    "window_pct",
    "episodes",
    "episode_ms",
    "episode_max_ms",
    "episode_bytes",
    "period_s",
    "blocked_pct",
    "sleep_pct",
    "runnable_pct",
    "oncpu_pct",
)
_NORMAL = (
    "window_pct",
    "count",
    "max_ms",
    "p99_ms",
    "util_pct",
    "psi_some_pct",
    "busy_pct",
    "cpu_pct",
    "own_ms",
    "transfer_ms",
    "peers_ms",
    "before_ms",
    "after_ms",
    "change_pct",
    "ranks",
    "steps",
    "lost_pct",
)
# Said although they are zero.
_ALWAYS = ("window_pct", "seq", "before_ms", "after_ms")
_LONG = 200
_SHORT_ID = 12  # characters of a container's id, as its runtimes show it
_CODES = ("reason", "mostly")
# Attributes in phrases that may be codes, and the group of their words; an event may be named by the host.
_SAMPLED = {
    "event": "profile_events",
    "frame_kind": "frame_kinds",
    "direction": "directions",
    "what": "what_recurs",
    "reason": "cache_reasons",
    "operations": "cache_operations",
    "advice": "io_ways",
    "operation": "io_operations",
}
_BLANK = re.compile(r"{(\w+)}")
# Numbers of ranks: 0-3, 8
_NUMBERS = re.compile(r"[\d, -]{1,200}")


class Voice:
    """Puts things into the words of one language, escaped for one format."""

    def __init__(
        self,
        words: dict[str, Any],
        lang: str,
        name: Callable[[object], Safe],
        running: Callable[[object], Safe],
        limit: int,
    ) -> None:
        self._words = words
        self._lang = lang
        self._name = name
        self._running = running
        self._limit = limit

    def finding(self, finding: Any, most: int | None = None) -> Safe:
        """`finding` as a sentence without a full stop: who and where, how much, in which call; `most`: so many of these
        details, the first ones, None for all.
        """
        text = self.lead(finding)
        phrases = self._words["phrases"].get(finding.kind)
        details = self._phrases(finding, phrases) if phrases else self._metrics(finding) + self._attributes(finding)
        details = details[:most]
        marks = self._words["marks"]
        return Safe(text + marks["colon"] + marks["comma"].join(details)) if details else text

    def lead(self, finding: Any) -> Safe:
        """The first part of the sentence: who does what, and where."""
        text = self._words["kinds"][finding.kind][finding.polarity.value]
        blanks = set(_BLANK.findall(text)) - {"who", "where"}
        named = {name: self._sampled(finding, name) or self._words["subjects"]["frame"] for name in blanks}
        return Safe(text.format(who=self.who(finding.subject), where=self.where(finding.subject), **named))

    def who(self, subject: Any) -> Safe:
        """The rank of a job and its host; else the command of `subject` with its thread (or process) and its pod or
        container, or words for the target where it names none.
        """
        if subject.rank is not None:
            said = self._words["ranks"]["rank"].format(subject.rank)
            return Safe(f"{said} ({self._name(short(subject.host, _LONG))})" if subject.host else said)
        if subject.comm is None:
            return Safe(self._words["subjects"].get(subject.type, subject.type))
        number = subject.tid if subject.tid is not None else subject.pid
        place = self.place_of(subject.container, subject.pod)
        said = [Safe(number) if number is not None else "", place]
        inner = self._words["marks"]["comma"].join(part for part in said if part)
        return Safe(f"{self._name(subject.comm)} ({inner})" if inner else self._name(subject.comm))

    def place_of(self, container: str | None, pod: str | None) -> Safe:
        """The pod, else the container by the beginning of its id; empty where there is neither."""
        if not pod and not container:
            return Safe("")
        kind, name = ("pod", pod) if pod else ("container", str(container)[:_SHORT_ID])
        return Safe(self._words["places"][kind].format(self._name(short(name, _LONG))))

    def where(self, subject: Any) -> Safe:
        """The file, device or cgroup of `subject`."""
        name = subject.path or subject.device or subject.cgroup
        if name is None:
            return Safe(self._words["subjects"]["any_file" if subject.type == "file" else subject.type])
        return self._name(short(name, self._limit))

    def place(self, text: str) -> Safe:
        """A line of a program, ``save (train.py:212)``: function and file each as a name, so that it reads as one."""
        return placed(text, self._name, _LONG)

    def blind(self, spot: Any) -> Safe:
        """A blind spot (`code`, `detail`) as a sentence; a code without words is shown as it is."""
        text = self._words["blind"].get(spot.code) or self._running(spot.code)
        if not spot.detail:
            return Safe(text)
        stop = text[-1:] if text.endswith((".", "。")) else ""
        detail = in_words(self._lang, spot.detail)
        return Safe(f"{text.removesuffix(stop)} ({self._name(short(detail, _LONG))}){stop}")

    def missing(self, code: str) -> Safe:
        """What a firmer verdict lacked; blind spots and the reasons of a check of ranks are codes of it too."""
        groups = (self._words["missing"], self._words["ranks"]["reasons"], self._words["blind"])
        found = next((group[code] for group in groups if code in group), None)
        return found if found is not None else self._running(code)

    def code(self, group: str, code: str) -> Safe:
        """The words for `code` of `group` (``why``, ``chosen_by``, ...); a code without words is shown as
        it is.
        """
        found = self._words[group].get(code)
        return found if found is not None else self._running(code)

    def shared(self, key: str) -> Safe:
        """Why a past incident was matched: ``cause:ID``, ``cause+op:ID:CALL``, ``finding:...``,
        ``kind:...``, ``word:...``.
        """
        kind, _, value = key.partition(":")
        if kind == "fault" and "@" in value:  # see `faults.fault_key`
            kind = "fault_place" if "/" in value.partition("@")[2] else "fault_host"
        text = self._words["shared"].get(kind)
        if text is None:
            return self._name(key)
        return Safe(text.format(self._name(value.rpartition(":")[2] if kind == "cause+op" else value)))

    def remedy(self, remedy: Any) -> Safe:
        """What to do (`code`, `who`, `cpus`, `command`), and how much of the window it can give back (`pct`)."""
        text = self._words["remedies"][remedy.code].format(
            who=self._name(short(remedy.who, _LONG)),
            cpus=self._name(remedy.cpus),
            command=self._running(short(remedy.command, self._limit)),
        )
        if remedy.pct is None:
            return Safe(text)
        return Safe(f"{text} ({self._words['labels']['at_most'].format(quantity(remedy.pct, 'pct'))})")

    def metric(self, name: str, value: float, unit: str, kind: str = "") -> Safe:
        """A number in words, as `kind` of finding says it."""
        once = self._words["one"].get(name) if value == 1 and unit == "count" else None
        if once is not None and name not in self._words["of_kind"].get(kind, {}):
            return Safe(once)
        return Safe(self._of_kind(kind, "metrics", name).format(quantity(value, unit)))

    def _of_kind(self, kind: str, group: str, name: str) -> str:
        """The words for `name` of `group`; some kinds say it otherwise."""
        said: str = self._words["of_kind"].get(kind, {}).get(name) or self._words[group][name]
        return said

    def _metrics(self, finding: Any) -> list[Safe]:
        units, values = finding.spec.metrics, finding.metrics
        abnormal = finding.polarity.value == "abnormal"
        wanted = _NORMAL if not abnormal else _FILE if finding.kind.startswith("file.slow") else units
        return [
            self.metric(n, values[n], units[n], finding.kind)
            for n in wanted
            if n in values and (values[n] or n in _ALWAYS) and not _unknown(n, values[n], units[n])
        ]

    def _phrases(self, finding: Any, phrases: dict[str, str]) -> list[Safe]:
        """Those of `phrases` whose blanks are all known, without one that repeats what was said."""
        said: list[Safe] = []
        used: set[str] = set()
        for text in phrases.values():
            known = {name: self._sampled(finding, name) for name in _BLANK.findall(text)}
            if all(known.values()) and not known.keys() <= used:
                used |= known.keys()
                said.append(Safe(text.format(**known)))
        return said

    def _sampled(self, finding: Any, blank: str) -> Safe:
        """What a blank about stack samples stands for: a metric with its unit, the same in points where it is called
        so, an attribute in words, or (``frame``) the frame with its place in the source. Empty where not known.
        """
        value = finding.metrics.get(blank.replace("_points", "_pct"))
        if value is not None:
            return Safe(points(value) if blank.endswith("_points") else quantity(value, finding.spec.metrics[blank]))
        words = finding.attributes
        if blank == "frame":
            name, code = words.get("name", ""), words.get("code", "")
            place = f" ({self._name(short(code, _LONG))})" if code else ""
            return Safe(f"{self._name(short(name, _LONG))}{place}" if name else "")
        if not words.get(blank):
            return Safe("")
        known = self._words[_SAMPLED[blank]].get(words[blank]) if blank in _SAMPLED else None
        return known if known is not None else self._name(short(words[blank], _LONG))

    def _attributes(self, finding: Any) -> list[Safe]:
        said = []
        for name, value in finding.attributes.items():
            if name in self._words["flags"]:
                if value == "yes":
                    said.append(self._words["flags"][name])
            elif value:
                # some attributes are codes, the others are names from the host
                known = self._words["reasons"].get(value) if name in _CODES else None
                if name == "what":
                    known = self._words["ranks"]["differences"].get(value) or self._words["stall_kinds"].get(value)
                elif name == "code":
                    known = self.place(value)
                elif _NUMBERS.fullmatch(value):
                    known = Safe(value)
                text = self._of_kind(finding.kind, "attributes", name)
                said.append(Safe(text.format(known or self._name(short(value, _LONG)))))
        return said


def _unknown(name: str, value: float, unit: str) -> bool:
    """A count below zero is one that is not known; a rank that is faster in a part has no excess there."""
    return value < 0 and (unit == "count" or name.endswith("excess_ms"))
