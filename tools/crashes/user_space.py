"""Read failures of programs out of their logs: uncaught exceptions, aborts, signals, exit codes. Pure."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from whystall.tools.collect.log_exceptions import LoggedException, exceptions
from whystall.tools.contract.text import clean
from whystall.tools.crashes.times import Instant, instant

_TRACEBACK = "Traceback (most recent call last)"
_SUMMARY = "exitcode  : "
_TITLE = 200
_LINE = 2000
_CHAINED = re.compile(rb"(?:During handling of the above exception, another|The above exception was the direct cause)")
_CHAIN_BYTES = 400
_RANK_LABEL = re.compile(r"(?:\[rank(?P<rank>\d{1,7})\]|\[default(?P<local>\d{1,7})\])")
# the fields of a failure in torchrun's summary (torch/distributed/elastic/multiprocessing/errors)
_FIELDS = {
    "time": re.compile(r"time\s+: (?P<v>\S{1,40})"),
    "host": re.compile(r"host\s+: (?P<v>[\w.-]{1,255})"),
    "rank": re.compile(r"rank\s+: (?P<v>\d{1,7}) \(local_rank: \d{1,7}\)"),
    "status": re.compile(r"exitcode\s+: (?P<v>-?\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"),
}
_SUMMARY_BEFORE = 600
_AFTER = 16 << 10
"""Bytes after a failure in which the next time stamp is looked for."""


@dataclass(frozen=True)
class Failure:
    """A failure of a program. `offset`, `end`: in its log; `rank`, `local_rank`, `pid` -1: unknown; `status`: exit
    code, or minus the signal, None unknown; `of_other`: reported when another rank has failed; `frames`: of Python,
    innermost first; `at`: when, as far as the log states; `exact`: its own line states it, else it is the time of a
    line before; `until`: of a line after it."""

    offset: int
    end: int
    kind: str
    title: str
    detail: str = ""
    rank: int = -1
    local_rank: int = -1
    pid: int = -1
    host: str = ""
    status: int | None = None
    signal: str = ""
    of_other: bool = False
    frames: tuple[str, ...] = ()
    at: Instant | None = None
    exact: bool = False
    until: Instant | None = None


@dataclass(frozen=True)
class _Rule:
    begins: str
    line: re.Pattern[str]
    title: str
    kind: str
    of_other: bool
    of_other_if: re.Pattern[str] | None


@dataclass(frozen=True)
class ProgramRules:
    """The rules of `program_rules.yaml`."""

    rules: tuple[_Rule, ...]
    exceptions: tuple[tuple[re.Pattern[str], str, str], ...]
    signals: Mapping[int, str]
    by_launcher: frozenset[str]

    def begins(self) -> tuple[str, ...]:
        """Return the texts by which the scan of a file finds failures."""
        return tuple(dict.fromkeys([_TRACEBACK, _SUMMARY, *(rule.begins for rule in self.rules)]))


@functools.cache
def program_rules() -> ProgramRules:
    """Return the rules of the installed file."""
    path = Path(__file__).with_name("program_rules.yaml")
    found: dict[str, Any] = yaml.safe_load(path.read_bytes())
    rules = tuple(
        _Rule(
            one["begins"],
            re.compile(one["line"]),
            one["title"],
            one["class"],
            bool(one.get("of_other")),
            re.compile(one["of_other_if"]) if "of_other_if" in one else None,
        )
        for one in found["failures"]
    )
    named = tuple((re.compile(one["match"]), one["title"], one["class"]) for one in found["exceptions"])
    return ProgramRules(rules, named, found["signals"], frozenset(found["ended_by_launcher"]))


def failure(window: bytes, before: bytes, offset: int, year: int, rules: ProgramRules) -> Failure | None:
    """Return the failure that the first line of `window` begins; None if it begins none.

    Args:
        window: the log from the line on; `before`: what precedes it, to find its time.
        offset: of the window in the log.
        year: of time stamps without one.
    """
    end = window.find(b"\n")
    raw = window[: min(end if end >= 0 else len(window), _LINE)]
    line = raw.decode("utf-8", "replace")
    found: Failure | None = None
    if _TRACEBACK in line:
        found = _exception(window, offset, rules)
    elif _SUMMARY in line:
        found = _summary(line, before, offset, year, rules)
    else:
        found = _by_rule(line, offset, offset + len(raw), rules)
    if found is None:
        return None
    label = _RANK_LABEL.search(line)
    if label is not None and found.rank < 0 and label["rank"]:
        found = replace(found, rank=int(label["rank"]))
    if label is not None and found.local_rank < 0 and label["local"]:
        found = replace(found, local_rank=int(label["local"]))
    if found.at is not None or found.until is not None:
        return found
    own = instant(raw, year)
    if own is not None:
        return replace(found, at=own, exact=True)
    after = window[found.end - offset :][:_AFTER].splitlines()
    until = next((time for line in after if (time := instant(line, year)) is not None), None)
    return replace(found, at=_last_before(before, year), until=until)


def _last_before(before: bytes, year: int) -> Instant | None:
    """Return the time of the last line with one: the failure was logged after it."""
    for line in reversed(before.splitlines()[-200:]):
        if (found := instant(line, year)) is not None:
            return found
    return None


def _exception(window: bytes, offset: int, rules: ProgramRules) -> Failure | None:
    """Return the exception of the first traceback, or of the last one of its chain."""
    lines = window.splitlines(keepends=True)
    for one, after in _chain(window, lines):
        kind, title = "python_exception", one.exception
        text = f"{one.exception}: {one.message}"
        for pattern, name, sort in rules.exceptions:
            if (match := pattern.search(text)) is not None:
                kind, title = sort, name.format(**match.groupdict())
                break
        where = one.frames[0].partition(" (")[0] if one.frames else ""
        if where:
            title = f"{title} in {where}"
        end = offset + sum(len(line) for line in lines[:after])
        detail = clean(text, _TITLE)
        found = Failure(offset, end, kind, clean(title, _TITLE), detail, one.rank, of_other=one.of_other)
        return replace(found, frames=one.frames)
    return None


def _chain(window: bytes, lines: list[bytes]) -> Iterator[tuple[LoggedException, int]]:
    """Yield the exception that ended the program: the last one of a chain."""
    held: tuple[LoggedException, int] | None = None
    for one, after in exceptions(window):
        if held is not None and one.rank != held[0].rank:
            continue
        held = (one, after)
        following = b"".join(lines[after : after + 4])[:_CHAIN_BYTES]
        if _CHAINED.search(following) is None:
            yield held
            return
    if held is not None:
        yield held


def _summary(line: str, before: bytes, offset: int, year: int, rules: ProgramRules) -> Failure | None:
    """Return a failure of torchrun's summary::

    time      : 2026-01-12_11:22:33
    host      : gpu-7
    rank      : 3 (local_rank: 3)
    exitcode  : -9 (pid: 12345)
    """
    near = [*before[-_SUMMARY_BEFORE:].decode("utf-8", "replace").splitlines()[-4:], line]
    named: dict[str, re.Match[str]] = {}
    for text in near:
        named |= {name: field for name, one in _FIELDS.items() if (field := one.search(text)) is not None}
    if not {"rank", "status"} <= named.keys():
        return None
    status = int(named["status"]["v"])
    found = _exited(Failure(offset, offset + len(line), "exit_code", ""), status, rules)
    at = instant(named["time"]["v"].encode(), year) if "time" in named else None
    host = named["host"]["v"] if "host" in named else ""
    # the launcher's time is when it noticed
    return replace(found, rank=int(named["rank"]["v"]), pid=int(named["status"]["pid"]), host=clean(host), until=at)


def _exited(found: Failure, status: int, rules: ProgramRules) -> Failure:
    """Return `found` with the title of an exit status: negative, or above 128, by a signal."""
    number = -status if status < 0 else status - 128 if status > 128 else 0
    name = rules.signals.get(number, f"signal {number}") if number else ""
    if name:
        by_launcher = name in rules.by_launcher
        return replace(found, kind="signal", title=name, status=status, signal=name, of_other=by_launcher)
    return replace(found, title=f"exit code {status}", status=status)


def _by_rule(line: str, offset: int, end: int, rules: ProgramRules) -> Failure | None:
    for rule in rules.rules:
        if rule.begins not in line or (match := rule.line.search(line)) is None:
            continue
        named = {name: text or "" for name, text in match.groupdict().items()}
        rank, local_rank, pid = (int(named.get(name) or -1) for name in ("rank", "local_rank", "pid"))
        signal = named.get("signal", "")
        of_other = rule.of_other or (rule.of_other_if is not None and rule.of_other_if.search(line) is not None)
        title = clean(rule.title.format(**{"what": "", "signal": ""} | named).strip(" :,"), _TITLE)
        found = Failure(offset, end, rule.kind, title, clean(line.strip(), _TITLE), signal=signal, of_other=of_other)
        host = clean(named.get("host", ""))
        found = replace(found, host=host, rank=rank, local_rank=local_rank, pid=pid)
        return _exited(found, int(named["status"]), rules) if named.get("status") else found
    return None


def error_file(text: bytes, year: int, rules: ProgramRules) -> Failure | None:
    """Return the failure in an error file of torchrun (TORCHELASTIC_ERROR_FILE); None for other files::

    {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1768187045"}}}
    """
    try:
        content = json.loads(text)["message"]
        extra = content["extraInfo"]
        called, since = str(extra["py_callstack"]), int(extra["timestamp"])
        message = str(content["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    found = _exception(called.encode("utf-8", "replace"), 0, rules) or Failure(
        0, len(text), "python_exception", clean(message.split(":")[0], _TITLE)
    )
    at = Instant(since * 10**9, 10**9, True, True) if 0 <= since < 1 << 40 else None
    return replace(found, offset=0, end=len(text), detail=clean(message, _TITLE), at=at, exact=True)
