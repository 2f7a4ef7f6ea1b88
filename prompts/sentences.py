"""Findings, blind spots and codes as sentences. A finding has the attributes of
`whystall.tools.contract.findings.Finding`, which is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from whystall.prompts.escape import Safe, placed, short
from whystall.prompts.path_sentences import PathFormatter
from whystall.prompts.quantities import direction, points, quantity
from whystall.prompts.reasons import in_words

# Metrics shown for slow files and for normal findings, in this order.
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
# Metrics shown even if zero.
_ALWAYS = ("window_pct", "seq", "exit_status", "before_ms", "after_ms")
_LONG = 200
_SHORT_ID = 12  # characters of a container id
_CODES = ("reason", "mostly")
# Groups of texts for attributes that may be codes; an event may also be a name.
_SAMPLED = {
    "event": "profile_events",
    "frame_kind": "frame_kinds",
    "direction": "directions",
    "what": "what_recurs",
    "reason": "cache_reasons",
    "operations": "cache_operations",
    "advice": "io_ways",
    "operation": "io_operations",
    "answer": "net_answers",
    "evidence": "lock_evidence",
    "proof": "lock_proof",
    "limit": "net_limits",
    "meaning": "xid_meanings",
    "action": "xid_actions",
    "further": "xid_actions",
    "recovery": "gpu_recoveries",
    "relevance": "xid_relevance",
    "switch_class": "sxid_classes",
    "area": "gpu_areas",
    "condition": "hardware_conditions",
    "throttle": "gpu_throttles",
    "stage": "serving_stages",
    "basis": "serving_bases",
    "symptom": "serving_symptoms",
}
# Attributes that are codes of what a thread does: a wait, or running.
_DOING = ("wait", "holder_doing")
_BLANK = re.compile(r"{(\w+)}")
# Ranks: 0-3, 8
_NUMBERS = re.compile(r"[\d, -]{1,200}")


class Voice:
    """Formats findings and codes in one language and format."""

    def __init__(
        self,
        words: Mapping[str, Any],
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
        self.path = PathFormatter(words, name, self.metric)

    def finding(self, finding: Any, most: int | None = None) -> Safe:
        """Return `finding` as a sentence without a full stop, with the first `most` details (None: all)."""
        if self.path.formats(finding.kind):
            return self.path.sentence(finding, self.who(finding.subject), most)
        text = self.lead(finding)
        phrases = self._words["phrases"].get(finding.kind)
        details = self._phrases(finding, phrases) if phrases else self._metrics(finding) + self._attributes(finding)
        details = details[:most]
        marks = self._words["marks"]
        return Safe(text + marks["colon"] + marks["comma"].join(details)) if details else text

    def lead(self, finding: Any) -> Safe:
        """Return the first part of the sentence: who does what, and where."""
        if self.path.formats(finding.kind):
            return self.path.lead(finding, self.who(finding.subject))
        # `allowed_cpus`: it is about these CPUs only
        confined = self._words["confined"].get(finding.kind) if "allowed_cpus" in finding.metrics else None
        text = (confined or self._words["kinds"][finding.kind])[finding.polarity.value]
        blanks = set(_BLANK.findall(text)) - {"who", "where"}
        named = {name: self._sampled(finding, name) or self._words["subjects"]["frame"] for name in blanks}
        return Safe(text.format(who=self.who(finding.subject), where=self.where(finding.subject), **named))

    def who(self, subject: Any) -> Safe:
        """Return the rank and its host; else the command with thread (or process) and pod or container; else a text for
        the target.
        """
        if subject.rank is not None:
            rank = self._words["ranks"]["rank"].format(subject.rank)
            return Safe(f"{rank} ({self._name(short(subject.host, _LONG))})" if subject.host else rank)
        if subject.comm is None:
            return Safe(self._words["subjects"].get(subject.type, subject.type))
        number = subject.tid if subject.tid is not None else subject.pid
        place = self.place_of(subject.container, subject.pod)
        parts = [Safe(number) if number is not None else "", place]
        inner = self._words["marks"]["comma"].join(part for part in parts if part)
        return Safe(f"{self._name(subject.comm)} ({inner})" if inner else self._name(subject.comm))

    def place_of(self, container: str | None, pod: str | None) -> Safe:
        """Return the pod, else the container by the start of its id; empty without both."""
        if not pod and not container:
            return Safe("")
        kind, name = ("pod", pod) if pod else ("container", str(container)[:_SHORT_ID])
        return Safe(self._words["places"][kind].format(self._name(short(name, _LONG))))

    def where(self, subject: Any) -> Safe:
        """Return the file, device or cgroup of `subject`."""
        name = subject.path or subject.device or subject.cgroup
        if name is None:
            return Safe(self._words["subjects"]["any_file" if subject.type == "file" else subject.type])
        named = self._name(short(name, self._limit))
        if subject.type != "device" or not subject.host:
            return named
        return Safe(self._words["places"]["device"].format(named, self._name(short(subject.host, _LONG))))

    def place(self, text: str) -> Safe:
        """Return a program location such as ``save (train.py:212)``, with function and file as names."""
        return placed(text, self._name, _LONG)

    def blind(self, spot: Any) -> Safe:
        """Return a blind spot (`code`, `detail`) as a sentence; a code without a text unchanged."""
        text = self._words["blind"].get(spot.code) or self._running(spot.code)
        if not spot.detail:
            return Safe(text)
        stop = text[-1:] if text.endswith((".", "。")) else ""
        detail = in_words(self._lang, spot.detail)
        return Safe(f"{text.removesuffix(stop)} ({self._name(short(detail, _LONG))}){stop}")

    def missing(self, code: str) -> Safe:
        """Return what a higher verdict lacks; codes of blind spots and of the check of ranks are included."""
        groups = (self._words["missing"], self._words["ranks"]["reasons"], self._words["blind"])
        found = next((group[code] for group in groups if code in group), None)
        return found if found is not None else self._running(code)

    def code(self, group: str, code: str) -> Safe:
        """Return the text of `code` in `group` (``why``, ``chosen_by``, ...); a code without a text unchanged."""
        found = self._words[group].get(code)
        return found if found is not None else self._running(code)

    def shared(self, key: str) -> Safe:
        """Return why a past incident matched: ``cause:ID``, ``cause+op:ID:CALL``, ``finding:...``, ``kind:...``,
        ``word:...``, or a code of a fault such as ``xid:79``.
        """
        kind, _, value = key.partition(":")
        if kind == "fault" and "@" in value:  # see `faults.fault_key`
            kind = "fault_place" if "/" in value.partition("@")[2] else "fault_host"
        text = self._words["shared"].get(kind)
        if text is None:
            return self._name(key)
        known = self._known(kind, value)
        return Safe(text.format(known or self._name(value.rpartition(":")[2] if kind == "cause+op" else value)))

    def _known(self, kind: str, value: str) -> Safe | None:
        """Return the text of a code that a match shares: of a wait, a role, a mode, or a kind of findings."""
        page: dict[str, Any] = self._words["path_page"]
        if kind == "kind" and value in self._words["kinds"]:
            text: str = self._words["kinds"][value]["abnormal"]
            subjects = self._words["subjects"]
            if not set(_BLANK.findall(text)) <= {"who", "where"}:
                return None
            return Safe(text.format(who=subjects["thread"], where="…"))
        groups = {
            "wait": page["waits"],
            "root": {**page["waits"], "running": page["running"]},
            "mode": page["modes"],
            "role": self._words["path"]["roles"],
        }
        found: Safe | None = groups.get(kind, {}).get(value)
        return found

    def remedy(self, remedy: Any) -> Safe:
        """Return a remedy (`code`, `who`, `cpus`, `command`), with the most time it can save (`pct`)."""
        text = self._words["remedies"][remedy.code].format(
            who=self._name(short(remedy.who, _LONG)),
            cpus=self._name(remedy.cpus),
            command=self._running(short(remedy.command, self._limit)),
        )
        if remedy.pct is None:
            return Safe(text)
        return Safe(f"{text} ({self._words['labels']['at_most'].format(quantity(remedy.pct, 'pct'))})")

    def metric(self, name: str, value: float, unit: str, kind: str = "") -> Safe:
        """Return a metric as text; some kinds have their own texts."""
        once = self._words["one"].get(name) if value == 1 and unit == "count" else None
        if once is not None and name not in self._words["of_kind"].get(kind, {}):
            return Safe(once)
        return Safe(self._of_kind(kind, "metrics", name).format(quantity(value, unit)))

    def _of_kind(self, kind: str, group: str, name: str) -> str:
        text: str = self._words["of_kind"].get(kind, {}).get(name) or self._words[group][name]
        return text

    def _metrics(self, finding: Any) -> list[Safe]:
        units, values = finding.spec.metrics, finding.metrics
        abnormal = finding.polarity.value == "abnormal"
        wanted = _NORMAL if not abnormal else _FILE if finding.kind.startswith("file.slow") else units
        every = not abnormal and finding.subject.type == "thread" and finding.subject.tid is None
        return [
            self._of_any_thread(values[n])
            if every and n == "window_pct"
            else self.metric(n, values[n], units[n], finding.kind)
            for n in wanted
            if n in values and (values[n] or n in _ALWAYS) and not _unknown(n, values[n], units[n])
        ]

    def _of_any_thread(self, share: float) -> Safe:
        """Return the largest share of a thread, for a finding about all threads of the target."""
        return Safe(self._words["labels"]["any_thread"].format(quantity(share, "pct")))

    def _phrases(self, finding: Any, phrases: dict[str, str]) -> list[Safe]:
        """Return those of `phrases` whose blanks are all known, except repetitions."""
        parts: list[Safe] = []
        used: set[str] = set()
        for text in phrases.values():
            known = {name: self._sampled(finding, name) for name in _BLANK.findall(text)}
            if all(known.values()) and not known.keys() <= used:
                used |= known.keys()
                parts.append(Safe(text.format(**known)))
        return parts

    def _sampled(self, finding: Any, blank: str) -> Safe:
        """Return the value of a blank: a metric with its unit, or in points if the name ends so, an attribute as text,
        or (``frame``) the frame with its source location. Empty if unknown.
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
        if blank in _DOING:
            return self.path.row(words[blank], {})
        if blank == "direction" and {"before_pct", "after_pct"} <= finding.metrics.keys():
            before, after = (finding.metrics[name] for name in ("before_pct", "after_pct"))
            code = direction(words[blank], quantity(before, "pct"), quantity(after, "pct"), after - before)
            if code in self._words["directions"]:
                return Safe(self._words["directions"][code])
        known = self._words[_SAMPLED[blank]].get(words[blank]) if blank in _SAMPLED else None
        return known if known is not None else self._name(short(words[blank], _LONG))

    def _attributes(self, finding: Any) -> list[Safe]:
        parts = []
        for name, value in finding.attributes.items():
            if name in self._words["flags"]:
                if value == "yes":
                    parts.append(self._words["flags"][name])
            elif value:
                # some attributes are codes, others are names of the host
                known = self._words["reasons"].get(value) if name in _CODES else None
                if name == "what":
                    ranks = self._words["ranks"]
                    groups = (ranks["differences"], ranks["classes"], self._words["stall_kinds"])
                    known = next((group[value] for group in groups if value in group), None)
                elif name == "shape":
                    known = self._words["ranks"]["shapes"].get(value)
                elif name == "code":
                    known = self.place(value)
                elif _NUMBERS.fullmatch(value):
                    known = Safe(value)
                text = self._of_kind(finding.kind, "attributes", name)
                parts.append(Safe(text.format(known or self._name(short(value, _LONG)))))
        return parts


def _unknown(name: str, value: float, unit: str) -> bool:
    """Return whether a value is unknown: a negative count, or the excess of a rank that is faster in that part."""
    return value < 0 and (unit == "count" or name.endswith("excess_ms"))
