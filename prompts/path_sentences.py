"""Format rows of a thread's critical path as sentences: what it ran or waited for, where, and why.

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
_USUAL = ("sleep", "timeout", "poll", "events", "cpu")
_HELD = ("stopped", "traced", "frozen")
_LONG = 200
_RETRY = "retry"
_UNKNOWN = "unknown"
_FLAGS = ("brief", "killed", "root_outside", "root_same", "root_mutual", "root_in_turn", "standstill")
_NOTHING = Safe("")
# Calls of a function that take longer by less than this factor are not said to grow.
_GROWS = 1.2
# What a thread did in less than this share of a wait, percent, does not explain it.
_LEAST_PART = 5.0
# A share of at least this is all of it; one that is less than this larger than another is the same.
_ALL_PCT, _MORE_PCT = 99.5, 5.0
# train (812), train (813 of 812), train (812) +3
_THREAD = re.compile(r"(.*?) ?\((\d+)(?: of (\d+))?\)(?: \+(\d+))?")
# save (train.py:212), save (train.py)
_FUNCTION = re.compile(r"(.+) \(([^()]+)\)")
# worker (813 of 812) file fsync ext4 at save (train.py:212) of /data/x: thread, code, detail, line, object
_STEP = re.compile(
    r"(?P<who>(?:.*? )?\(\d+(?: of \d+)?\)) (?P<code>[a-z_]+)(?: (?P<detail>(?!at |of ).*?))??"
    r"(?: at (?P<line>.+?))?(?: of (?P<object>.+))?"
)
# Metrics shown behind the place, in this order.
_NUMBERS = {
    "path.running": (),  # its count is one of samples
    "path.wait": ("count", "max_ms", "asked_ms"),
    "path.waker": ("count", "max_ms"),
    "path.pause": ("window_pct", "count", "max_ms"),
    "path.loop_lag": ("p99_ms", "p50_ms", "count", "window_pct"),
}


class PathFormatter:
    """Formats rows of critical paths in one language and format."""

    def __init__(
        self,
        words: Mapping[str, Any],
        name: Callable[[object], Safe],
        metric: Callable[[str, float, str], Safe],
    ) -> None:
        """`name`: escapes a name; `metric`: a metric (name, value, unit) as text."""
        self._words = words
        self._texts: dict[str, Any] = words["path"]
        self._name = name
        self._metric = metric

    def formats(self, kind: str) -> bool:
        """Return whether findings of `kind` are rows or pauses of a critical path."""
        return kind in _KINDS

    def sentence(self, finding: Any, who: Safe, most: int | None = None) -> Safe:
        """Return `finding` as a sentence without a full stop, with at most `most` numbers (None: all)."""
        words, metrics = finding.attributes, finding.metrics
        text = self.lead(finding, who, self._share(finding))
        text = Safe(self._words["marks"]["comma"].join([text, *self.numbers(finding)[:most]]))
        if finding.kind == "path.loop_lag":
            return Safe(f"{text}{self._longest(words)}")
        if finding.kind == "path.pause":
            return Safe(f"{text}{self._mostly(words, metrics)}")
        meanwhile = self._meanwhile(words, (metrics.get("root_pct", 0.0), metrics.get("root_by_pct", 0.0)))
        grows, looks = self._grows(metrics.get("growth_ratio")), self._looks(words, metrics)
        return Safe(f"{text}{grows}{looks}{meanwhile}{self._remarks(words)}")

    def numbers(self, finding: Any) -> list[Safe]:
        """Return the numbers of `finding` besides its share: how often, how long."""
        known, units = finding.metrics, finding.spec.metrics
        return [self._metric(n, known[n], units[n]) for n in _NUMBERS[finding.kind] if known.get(n)]

    def lead(self, finding: Any, who: Safe, share: Safe = _NOTHING) -> Safe:
        """Return the first part of the sentence: who does what, and where."""
        words, metrics = finding.attributes, finding.metrics
        if finding.kind == "path.pause":
            return Safe(f"{who} {self.pauses(words, metrics)}")
        if finding.kind == "path.loop_lag":
            text = self._texts["loop_lag"].format(who=who, longest=quantity(metrics.get("max_ms", 0.0), "ms"))
            return Safe(text + self._at({"code": words.get("code", "")}))
        if finding.kind == "path.waker":
            waiter = self.thread(words.get("waiter", ""))
            who = Safe(self._texts["waited_for" if words.get("waiter") else "waited_for_too"].format(who, waiter))
        running = finding.kind == "path.running" or (finding.kind == "path.waker" and not words.get("wait"))
        return Safe(f"{who} {self._does(RUNNING if running else words.get('wait', 'unknown'), words, share)}")

    def row(
        self,
        what: str,
        words: Mapping[str, str],
        root: tuple[float, float] = (0.0, 0.0),
        growth: float | None = None,
        looks: Mapping[str, float] | None = None,
    ) -> Safe:
        """Return what a thread did, where, and what the thread that it waited for did. `what`: a code of waits,
        ``running``, or ``rest``. `root`, `growth`: `root_pct` and `root_by_pct`, and `growth`, of an `AccountRow`;
        `looks`: its `between_ms` and `max_ms`.
        """
        if what == REST:
            return Safe(self._texts["rest"])
        words = {**words, "wait": what}
        remark = f"{self._grows(growth)}{self._looks(words, looks or {})}"
        return Safe(f"{self._does(what, words)}{remark}{self._meanwhile(words, root)}{self._flag(words)}")

    def pauses(self, words: Mapping[str, str], metrics: Mapping[str, float]) -> Safe:
        """Return that a pause recurs: its period, length and place."""
        known = metrics.get("period_s") and metrics.get("p50_ms")
        text = self._texts["pauses" if known else "pauses_at_times"].format(
            period=quantity(metrics.get("period_s", 0.0), "s"), each=quantity(metrics.get("p50_ms", 0.0), "ms")
        )
        return Safe(f"{text}{self._at({'code': _line_of_pause(words)})}")

    def pause(self, finding: Any) -> Safe:
        """Return a pause as a line of an account, without the thread."""
        words, metrics = finding.attributes, finding.metrics
        return Safe(f"{self.pauses(words, metrics)}{self._mostly(words, metrics)}")

    def _grows(self, growth: float | None) -> Safe:
        """Return whether the calls of a function take longer and longer; nothing if it is not known."""
        if growth is None or growth <= 1 / _GROWS:
            return Safe("")
        return Safe(self._texts["grows" if growth >= _GROWS else "steady"].format(quantity(growth, "ratio")))

    def _looks(self, words: Mapping[str, str], metrics: Mapping[str, float]) -> Safe:
        """Return how little the thread does between its sleeps; nothing if that was not found."""
        what, about = words.get("between", ""), words.get("between_object", "")
        if not what:
            return Safe("")
        texts: dict[str, Any] = self._texts["between"]
        named = self._texts["about"].format(self._name(short(about, _LONG))) if about else ""
        known = texts.get(what)
        if known is None:
            return Safe(texts["other"].format(self._name(short(what, _LONG))) + named)
        most, each = (quantity(metrics.get(name, 0.0), "ms") for name in ("max_ms", "between_ms"))
        return Safe(known.format(about=named, most=most, each=each))

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
            called = self._texts["called_by"].format(self._located(outer)) if outer and outer != inner else ""
            about = self._about(RUNNING, words)
            return Safe(modes["code"].format(share=share, code=self._located(inner)) + about + called)
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
        details = self._texts["cpu_details" if what == _CPU else "details"]
        known = details.get(detail) or self._retry(detail)
        parts = [known or self._name(short(detail, _LONG))] if detail else []
        parts += [self._object(what, words["object"])] if words.get("object") else []
        if cpus := words.get("cpus"):
            parts.append(Safe(self._texts["only_cpus"].format(self._name(short(cpus, _LONG)))))
        return Safe(self._texts["about"].format(self._words["marks"]["comma"].join(parts)) if parts else "")

    def _object(self, what: str, text: str) -> Safe:
        """Return what a wait is for; of a thread that could not run, who let it run again."""
        if what in _HELD and _THREAD.fullmatch(text):
            return Safe(self._texts["resumed_by"].format(self.thread(text)))
        return self._name(short(text, _LONG))

    def _retry(self, detail: str) -> Safe | None:
        """Return which call fails, and is tried again, if `detail` states one."""
        words = detail.split(" ")
        if len(words) != 3 or words[0] != _RETRY:
            return None
        call, error = (self._name(short(word, _LONG)) for word in words[1:])
        return Safe(self._texts["retry"].format(call=call, error=error))

    def _at(self, words: Mapping[str, str]) -> Safe:
        """Return the line of code, and the program's line that called it."""
        inner, outer = words.get("code", ""), words.get("function", "")
        text = self._texts["at"].format(self._located(inner or outer)) if inner or outer else ""
        if inner and outer and inner != outer:
            text += self._texts["called_by"].format(self._located(outer))
        return Safe(text)

    def _by(self, what: str, words: Mapping[str, str]) -> Safe:
        """Return who ended the wait or had the CPU, unless `_meanwhile` names the same thread."""
        by = words.get("by", "")
        same = _number(by) == _number(words.get("root_by", "")) and words.get("root_wait") != _UNKNOWN
        number = _number(by)
        unended = words.get("open") == "yes" and bool(number) and f"({number}" in words.get("chain", "")
        if not by or unended or (same and what != _CPU):
            return Safe("")
        if words.get("detail", "").startswith(_RETRY):
            return Safe(self._texts["held_by"].format(self.thread(by)))
        texts = {_CPU: self._texts["had_cpu"], RUNNING: self._texts["because_of"]}
        return Safe(texts.get(what, self._texts["ended_by"]).format(self.thread(by)))

    def _located(self, text: str) -> Safe:
        """Return a line of code or a function such as ``save (train.py:212)``, ``save (train.py)``."""
        known = _FUNCTION.fullmatch(text)
        if known is None:
            return self._name(short(text, _LONG))
        function, line = (self._name(short(part, _LONG)) for part in known.groups())
        return Safe(f"{function} ({line})")

    def thread(self, text: str) -> Safe:
        """Return a thread such as ``worker (830)``, with its command as a name."""
        known = _THREAD.fullmatch(text)
        if known is None:
            return self._name(short(text, _LONG))
        number = self._texts["thread_of"].format(known[2], known[3]) if known[3] else known[2]
        named = f"{self._name(short(known[1], _LONG))} ({number})" if known[1] else self._texts["thread"].format(number)
        return Safe(named + (self._texts["and_others"].format(known[4]) if known[4] else ""))

    def _meanwhile(self, words: Mapping[str, str], root: tuple[float, float]) -> Safe:
        """Return what the thread at the end of the chain of waits did, and the chain if it has more than one wait."""
        who, what = words.get("root_by", ""), words.get("root_wait", "")
        if not what or (not who and what in (words.get("wait", ""), _UNKNOWN)):
            return Safe("")
        if 0 < root[1] < _LEAST_PART:
            return Safe("")
        if what == _UNKNOWN and words.get("by") and _number(words["by"]) == _number(who):
            return Safe("")  # `_by` names it
        did = {"code": words.get("root_code", ""), "object": words.get("root_object", "")}
        did |= {"detail": words.get("root_detail", ""), "mode": words.get("root_mode", "")}
        text = self._texts["meanwhile" if who else "in_the_end"].format(
            who=self.thread(who) if who else "", does=self._does(what, did)
        )
        part, whole = root
        if whole - part >= _MORE_PCT:
            text += self._texts["part_of_more"].format(quantity(part, "pct"), quantity(whole, "pct"))
        elif 0 < part < _ALL_PCT:
            text += self._texts["part"].format(quantity(part, "pct"))
        if words.get("chain") and words.get("by") and _number(words["by"]) != _number(who):
            text += self._texts["chain"].format(self._chain(words["chain"]))
        return Safe(text)

    def _chain(self, text: str) -> Safe:
        """Return a chain of waits, such as ``a (812) queue at get (x.py:1) < b (815) running``, in words."""
        return Safe(" ← ".join(self._step(step) for step in short(text, 3 * _LONG).split(" < ")))

    def _step(self, text: str) -> Safe:
        known = _STEP.fullmatch(text)
        short_words = {RUNNING: self._words["path_page"]["running"], **self._words["path_page"]["waits"]}
        does = known is not None and {**short_words, **self._words["path_page"]["modes"]}.get(known["code"])
        if known is None or not does:
            return self._name(text)
        step = f"{self.thread(known['who'])} {does}"
        if known["detail"]:
            details = self._texts["cpu_details" if known["code"] == _CPU else "details"]
            known_detail = details.get(known["detail"])
            step += "".join(f" {self._name(word)}" for word in known["detail"].split() if not known_detail)
            step += self._texts["about"].format(known_detail) if known_detail else ""
        if known["line"]:
            step += self._texts["at"].format(self._located(known["line"]))
        if known["object"]:
            step += self._texts["about"].format(self._object(known["code"], known["object"]))
        return Safe(step)

    def _mostly(self, words: Mapping[str, str], metrics: Mapping[str, float]) -> Safe:
        """Return what most of a pause was spent on: `main` is the mode of running and its detail."""
        main, what, pct = words.get("main", ""), words.get("main_wait", ""), metrics.get("main_pct", 0.0)
        if not pct and not main and not what:
            return Safe("")
        place = words.get("code", "") if words.get("code") != _line_of_pause(words) else ""
        if what in ("", RUNNING):
            mode, _, detail = main.partition(" ")
            text = self._runs({"mode": mode, "detail": detail, "code": place}, _NOTHING)
        else:
            text = self._does(what, {"detail": main, "code": place})
        return Safe(self._texts["mostly" if pct else "mostly_unmeasured"].format(pct=quantity(pct, "pct"), does=text))

    def _longest(self, words: Mapping[str, str]) -> Safe:
        """Return what the longest time between two polls was spent on: a line of the program, a wait, or running."""
        what = words.get("main_wait", "")
        if not what or what == words.get("code"):
            return Safe("")
        if what == RUNNING:
            text = self._texts["modes"]["user"].format(share="")
        elif what in self._words["path_waits"]:
            text = self._verb(what).format(share="")
        else:
            return Safe(self._texts["called_by"].format(self._located(what)))
        return Safe(self._texts["mostly_unmeasured"].format(does=text))

    def _remarks(self, words: Mapping[str, str]) -> Safe:
        """Return the role of library code, by way of which line a waker was reached, the disk, and whether it ended."""
        parts = []
        if role := words.get("role"):
            known = self._texts["roles"].get(role) or self._name(short(role, _LONG))
            parts.append(self._texts["role"].format(known))
        if via := words.get("via"):
            parts.append(self._texts["via"].format(self._located(via)))
        parts += [
            self._words["attributes"][name].format(self._name(short(words[name], _LONG)))
            for name in ("device", "mount")
            if words.get(name)
        ]
        comma = self._words["marks"]["comma"]
        return Safe("".join(f"{comma}{part}" for part in parts) + self._flag(words))

    def _flag(self, words: Mapping[str, str]) -> Safe:
        """Return the notes on the end of the chain (short-lived processes, one outside of the job, one that waits too),
        and that the wait did not end, unless its kind is usually open."""
        open_ = words.get("open") == "yes" and words.get("wait") not in _USUAL
        found = {**{name: words.get(name) == "yes" for name in _FLAGS}, "open": open_}
        comma = self._words["marks"]["comma"]
        return Safe("".join(f"{comma}{self._words['flags'][name]}" for name, shown in found.items() if shown))


def _number(thread: str) -> str:
    """Return the id of a thread, else its text."""
    known = _THREAD.fullmatch(thread)
    return known[2] if known else thread


def _line_of_pause(words: Mapping[str, str]) -> str:
    """Return the line of the recurring function with most of its time, or the function if that line is elsewhere."""
    line, function = words.get("code", ""), words.get("function", "")
    one, other = _FUNCTION.fullmatch(line), _FUNCTION.fullmatch(function)
    return line if not function or (one and other and one[1] == other[1]) else function
