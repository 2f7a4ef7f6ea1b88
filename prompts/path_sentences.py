"""Rows of a thread's critical path as sentences: what it ran or waited for, where, and what others did meanwhile.

Attributes are those of the finding kinds ``path.*``, codes those of `whystall.tools.host.common.path_codes`, which is
not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import quantity

RUNNING, REST = "running", "rest"
_KINDS = ("path.running", "path.wait", "path.waker", "path.pause", "path.loop_lag")
_USER, _CPU = "user", "cpu"
_LONG = 200
_NOTHING = Safe("")
# A thread: its command and id.
_THREAD = re.compile(r"(.+) \((\d+)\)")
# Metrics shown behind the place, in this order.
_NUMBERS = {
    "path.running": ("count", "max_ms"),
    "path.wait": ("count", "max_ms", "asked_ms"),
    "path.waker": ("count", "max_ms"),
    "path.pause": ("window_pct", "count", "max_ms"),
    "path.loop_lag": ("p99_ms", "p50_ms", "count", "window_pct"),
}


class PathVoice:
    """Formats rows of critical paths in one language and format."""

    def __init__(
        self,
        words: dict[str, Any],
        name: Callable[[object], Safe],
        place: Callable[[str], Safe],
        metric: Callable[[str, float, str], Safe],
    ) -> None:
        """`name`, `place`: escape a name, and a line of code; `metric`: a metric (name, value, unit) as text."""
        self._words = words
        self._texts: dict[str, Any] = words["path"]
        self._name = name
        self._place = place
        self._metric = metric

    def knows(self, kind: str) -> bool:
        """Return whether findings of `kind` are rows or pauses of a critical path."""
        return kind in _KINDS

    def sentence(self, finding: Any, who: Safe, most: int | None = None) -> Safe:
        """Return `finding` as a sentence without a full stop, with at most `most` numbers (None: all)."""
        words, metrics = finding.attributes, finding.metrics
        numbers = [
            self._metric(n, metrics[n], finding.spec.metrics[n]) for n in _NUMBERS[finding.kind] if metrics.get(n)
        ]
        text = self.lead(finding, who, self._share(finding))
        text = Safe(self._words["marks"]["comma"].join([text, *numbers[:most]]))
        if finding.kind == "path.loop_lag":
            return text
        if finding.kind == "path.pause":
            return Safe(f"{text}{self._mostly(words, metrics)}")
        return Safe(f"{text}{self._meanwhile(words, metrics.get('root_pct', 0.0))}{self._remarks(words)}")

    def lead(self, finding: Any, who: Safe, share: Safe = _NOTHING) -> Safe:
        """Return the first part of the sentence: who does what, and where."""
        words, metrics = finding.attributes, finding.metrics
        if finding.kind == "path.pause":
            return Safe(f"{who} {self.pauses(words, metrics)}")
        if finding.kind == "path.loop_lag":
            longest = quantity(metrics.get("max_ms", 0.0), "ms")
            return Safe(self._texts["loop_lag"].format(who=who, longest=longest) + self._at(words))
        if finding.kind == "path.waker":
            waiter = self._name(short(words.get("waiter", ""), _LONG))
            who = Safe(self._texts["waited_for" if words.get("waiter") else "waited_for_too"].format(who, waiter))
        running = finding.kind == "path.running" or (finding.kind == "path.waker" and not words.get("wait"))
        return Safe(f"{who} {self._does(RUNNING if running else words.get('wait', 'unknown'), words, share)}")

    def row(self, what: str, words: Mapping[str, str], root_pct: float = 0.0) -> Safe:
        """Return what a thread did, where, and what who it waited for did. `what`: a code of waits, ``running``, or
        ``rest``.
        """
        if what == REST:
            return Safe(self._texts["rest"])
        return Safe(f"{self._does(what, words)}{self._meanwhile(words, root_pct)}{self._flag(words)}")

    def pauses(self, words: Mapping[str, str], metrics: Mapping[str, float]) -> Safe:
        """Return what recurs: how often, for how long, and where."""
        known = metrics.get("period_s") and metrics.get("p50_ms")
        text = self._texts["pauses" if known else "pauses_at_times"].format(
            period=quantity(metrics.get("period_s", 0.0), "s"), each=quantity(metrics.get("p50_ms", 0.0), "ms")
        )
        return Safe(f"{text}{self._at(words)}")

    def pause(self, finding: Any) -> Safe:
        """Return a pause as a line of an account, without the thread."""
        words, metrics = finding.attributes, finding.metrics
        return Safe(f"{self.pauses(words, metrics)}{self._mostly(words, metrics)}")

    def _share(self, finding: Any) -> Safe:
        pct = finding.window_pct
        return Safe(self._texts["share"].format(quantity(pct, "pct")) if pct else "")

    def _does(self, what: str, words: Mapping[str, str], share: Safe = _NOTHING) -> Safe:
        """Return what the thread did, and where."""
        if what == RUNNING:
            return self._runs(words, share)
        text = self._verb(what).format(share=share)
        return Safe(f"{text}{self._about(what, words)}{self._at(words)}{self._by(what, words)}")

    def _runs(self, words: Mapping[str, str], share: Safe) -> Safe:
        mode, detail = words.get("mode", "") or _USER, words.get("detail", "")
        modes: dict[str, Safe] = self._texts["modes"]
        inner, outer = words.get("code") or words.get("function", ""), words.get("function", "")
        if mode == _USER and inner:
            called = self._texts["called_by"].format(self._place(outer)) if outer and outer != inner else ""
            about = self._about(RUNNING, words)
            return Safe(modes["code"].format(share=share, code=self._place(inner)) + about + called)
        if mode == "system" and detail:
            text = modes["call"].format(share=share, call=self._name(short(detail, _LONG)))
            return Safe(text + self._about(RUNNING, {**words, "detail": ""}) + self._at(words))
        text = (modes.get(mode) or Safe(f"{modes['other']} ({self._name(short(mode, _LONG))})")).format(share=share)
        return Safe(f"{text}{self._about(RUNNING, words)}{self._at(words)}{self._by(RUNNING, words)}")

    def _verb(self, what: str) -> Safe:
        known: Safe | None = self._words["path_waits"].get(what)
        if known is not None:
            return known
        shown = self._name(short(what, _LONG)).replace("{", "{{").replace("}", "}}")
        return Safe(f"{self._words['path_waits']['other']} ({shown})")

    def _about(self, what: str, words: Mapping[str, str]) -> Safe:
        """Return detail and object of a row in parentheses."""
        detail = words.get("detail", "")
        known = self._texts["cpu_details"].get(detail) if what == _CPU else None
        parts = [known or self._name(short(detail, _LONG))] if detail else []
        parts += [self._name(short(words["object"], _LONG))] if words.get("object") else []
        return Safe(self._texts["about"].format(self._words["marks"]["comma"].join(parts)) if parts else "")

    def _at(self, words: Mapping[str, str]) -> Safe:
        """Return the line of code, and the program's line that called it."""
        inner, outer = words.get("code", ""), words.get("function", "")
        text = self._texts["at"].format(self._place(inner or outer)) if inner or outer else ""
        if inner and outer and inner != outer:
            text += self._texts["called_by"].format(self._place(outer))
        return Safe(text)

    def _by(self, what: str, words: Mapping[str, str]) -> Safe:
        """Return who ended the wait or had the CPU, unless it is the one whose doing is told."""
        by = words.get("by", "")
        if not by or (by == words.get("root_by") and what != _CPU):
            return Safe("")
        texts = {_CPU: self._texts["had_cpu"], RUNNING: self._texts["because_of"]}
        return Safe(texts.get(what, self._texts["ended_by"]).format(self.thread(by)))

    def thread(self, text: str) -> Safe:
        """Return a thread such as ``worker (830)``, with its command as a name."""
        known = _THREAD.fullmatch(text)
        if known is None:
            return self._name(short(text, _LONG))
        return Safe(f"{self._name(short(known[1], _LONG))} ({known[2]})")

    def _meanwhile(self, words: Mapping[str, str], root_pct: float) -> Safe:
        """Return what the thread at the end of the chain of waits did, and the chain if it has more than one wait."""
        who, what = words.get("root_by", ""), words.get("root_wait", "")
        if not what or (not who and what in (words.get("wait", ""), "unknown")):
            return Safe("")
        root = {"code": words.get("root_code", ""), "object": words.get("root_object", "")}
        text = self._texts["meanwhile" if who else "in_the_end"].format(
            who=self.thread(who) if who else "", does=self._does(what, root)
        )
        if 0 < root_pct < 99.5:
            text += self._texts["part"].format(quantity(root_pct, "pct"))
        if words.get("chain") and words.get("by") and words["by"] != who:
            text += self._texts["chain"].format(self._name(short(words["chain"], 2 * _LONG)))
        return Safe(text)

    def _mostly(self, words: Mapping[str, str], metrics: Mapping[str, float]) -> Safe:
        """Return what most of a pause was spent on."""
        main, what = words.get("main", ""), words.get("main_wait", "")
        if not main and not what:
            return Safe("")
        text = self._doing(what, main)
        pct = metrics.get("main_pct", 0.0)
        return Safe(self._texts["mostly" if pct else "mostly_unmeasured"].format(pct=quantity(pct, "pct"), does=text))

    def _doing(self, what: str, main: str) -> Safe:
        place = self._place(main) if main else Safe("")
        if what in ("", RUNNING):
            return Safe(self._texts["modes"]["code"].format(share="", code=place))
        return Safe(self._verb(what).format(share="") + (self._texts["about"].format(place) if main else ""))

    def _remarks(self, words: Mapping[str, str]) -> Safe:
        """Return what library code a finding is about, by way of what it is known, and whether it ended."""
        parts = []
        if role := words.get("role"):
            known = self._texts["roles"].get(role) or self._name(short(role, _LONG))
            parts.append(self._texts["role"].format(known))
        if via := words.get("via"):
            parts.append(self._texts["via"].format(self._name(short(via, _LONG))))
        comma = self._words["marks"]["comma"]
        return Safe("".join(f"{comma}{part}" for part in parts) + self._flag(words))

    def _flag(self, words: Mapping[str, str]) -> Safe:
        flag = self._words["flags"]["open"] if words.get("open") == "yes" else ""
        return Safe(f"{self._words['marks']['comma']}{flag}" if flag else "")
