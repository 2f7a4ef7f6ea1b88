"""Deduplication keys of alerts and work orders, from what is stable when they recur. Pure functions.

Merging two faults hides one, which is worse than two tickets for one: names of hosts, devices and files count, and only
numbers known to vary are dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.classify.wording import wording
from whystall.knowledge_base.tokens import plain

_VERSION = 2
# Labels that vary for the same alert, or give its severity.
_PASSING = re.compile(
    r"severity|level|priority|status|value|timestamp|time|date|startsat|endsat|prometheus|monitor|endpoint|replica|"
    r"receiver|image(_id)?|id|uid|.*_uid|.*_id|guid|pid|tid|attempt|restart_count|run|generatorurl|fingerprint"
)
# Kubernetes: deployment-<hash>-<five of its alphabet without vowels>, and the latter alone for jobs and daemon sets.
_SUFFIX = "[bcdfghjklmnpqrstvwxz2456789]"
_OF_A_POD = re.compile(rf"^(?P<name>[a-z0-9][a-z0-9.-]*?)(?:-{_SUFFIX}{{8,10}})?-{_SUFFIX}{{5}}$")
_ORDINAL = re.compile(r"[-_]\d+$")
_PORT = re.compile(r"^(?P<host>[^:/\s]+|\[[0-9a-f:]+\]):\d{1,5}$")

_UUID = r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
_STAMP = r"\d{4}[-/.\u5e74]\d{1,2}[-/.\u6708]\d{1,2}\u65e5?"
_STAMP += r"(?:[t ]?\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:z|[+-]\d{2}:?\d{2})?)?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_IP = r"\d{1,3}(?:\.\d{1,3}){3}(?![\d.])"
_HEX = r"0x[0-9a-f]+|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}"
_NUMBER = r"\d+(?:[.,]\d+)*"
_MEASURE = (
    r"%|(?:[kmgtp]i?b?|b|bytes?|ns|us|ms|s|sec|secs|seconds?|m|min|mins|minutes?|h|hr|hrs|hours?|d|days?|w|x|times)"
    r"(?![a-z0-9_])"
)
_PATH = r"/[\w.+@%=~:-]+(?:/[\w.+@%=~:-]+)+"
_WORD = r"[a-z_][a-z0-9_]*(?:[-.][a-z0-9_]+)*"
# Names assigned anew each time: of a run, a process, a rotated file.
_COUNTED = re.compile(
    r"^(?P<what>(?:[a-z]+[-_.]+)*?(?:job|jobs|run|task|exp|experiment|trial|step|iter|epoch|pod|worker|replica|ckpt|checkpoint|"
    r"pid|tid|id|ticket|order|req|request|trace|session|batch|attempt|shard|part|rank|proc|process|build|pipeline))"
    r"[-_.#]?\d[\w.-]*$"
)
# Number of a rotated file: many digits. Fewer digits may be a disk, a volume, a model's size.
_SERIAL, _OF_A_SERIES = re.compile(r"\d{4,}"), re.compile(r"(?<=[-_.])\d+(?=[-_.])")
_VERSION_NUMBER = re.compile(r"\d+(?:\.\d+){2,}")
_JOINING = frozenset({"to", "from", "and", "or", "by"})  # between two numbers of one word
_SIZE = re.compile(r"\d{1,3}b")  # of a model
_SHORT = 3  # digits of a number that may name one of several
_CLOSE = re.compile(r"\s*[#:=]?\s*")
_OF_MANY = re.compile(r"\s*(?:[a-z]+s\b(?<!ss)(?<!is)(?<!has)(?<!was)|per\b|(?:out )?of\s+\d|/)")
_FEW = 4.0  # fewer stable words do not distinguish faults ("training is slow")


def dedup_key(report: Report) -> str:
    """Return ``2:`` and a hash of the stable parts: an alert's name and labels, a work order's words and place, without
    varying numbers, ids and times.

    A text with too few words is the same only at the same time: it is never merged.
    """
    if report.origin == "alert" and (name := _label(report.labels, "alertname")):
        parts = ["alert", plain(name), *_labels(report.labels)]
    else:
        words = list(stable(f"{report.title}\n{report.description}"))
        place = _places(report.labels)
        parts = [report.origin, *place, "", *words]
        wide = wording().sameness.wide
        if _weight(words) < _FEW and all(one.partition("=")[0] in wide for one in place):
            parts += ["", report.created, *(f"{k}={v}" for k, v in sorted(report.labels.items()))]
    return f"{_VERSION}:{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'replace')).hexdigest()}"


def stable(text: str) -> Iterator[str]:
    """Return the words of `text` in order, without varying parts: numbers (but those that name a thing, as in ``node
    17`` and ``Xid 79``), measures, times, ids, pod suffixes, numbers in the last parts of paths.
    """
    lower = plain(text)
    before, ended = "", 0  # the word that a number may belong to, and its end
    for found in _tokens().finditer(lower):
        kind, token = found.lastgroup, found[0]
        if kind == "word":
            word = _nameless(token)
            if word not in _fillers():
                yield word
            if word not in _JOINING:
                before, ended = word, found.end()
        elif kind == "cjk":
            if token not in _fillers():
                yield token
            before, ended = token, found.end()
        elif kind == "number":
            close = _CLOSE.fullmatch(lower[ended : found.start()]) is not None
            if _names(before, close, lower[found.end() : found.end() + 40], token):
                yield token
        elif kind in ("path", "ip", "digits"):
            yield _path(token) if kind == "path" else _PORT.sub(r"\g<host>", _nameless(token))
            before = ""


def _names(before: str, close: bool, after: str, token: str) -> bool:
    """Return whether the number `token` is a name or version, and no measure.

    A short number after a noun names one of several (``fan 2``), unless the noun is a measured quantity or the number
    counts something (``3 workers``). `close`: it directly follows `before`.
    """
    sameness = _namers()
    if _VERSION_NUMBER.fullmatch(token) or before in sameness.programs or before.endswith(sameness.program_runs):
        return token[-1].isdigit()
    if _SIZE.fullmatch(token):
        return True
    if not token.isdigit():
        return False
    if before in sameness.words or before.endswith(sameness.runs) or sameness.naming.match(after.lstrip()) is not None:
        return True
    if not close or len(token) > _SHORT or before in sameness.measured or before.endswith(sameness.measured_runs):
        return False
    return _COUNTED.match(f"{before}0") is None and _OF_MANY.match(after) is None


def _path(path: str) -> str:
    """Return `path` without the counters in its last two parts; devices keep their numbers."""
    if path.startswith("/dev/"):
        return path
    *above, parent, leaf = ["", *path.split("/")]
    kept = [_SERIAL.sub("*", _nameless(part)) for part in (parent, leaf)]
    if "." in kept[1]:  # a file, and not a directory
        kept[1] = _OF_A_SERIES.sub("*", kept[1])
    return "/".join([*above, *kept])


def _nameless(word: str) -> str:
    counted = _COUNTED.match(word)
    if counted is not None:
        return counted["what"]
    pod = _OF_A_POD.match(word)
    if pod is not None and any(c.isdigit() for c in word.rpartition("-")[2]):
        return pod["name"]
    return word


def _weight(words: list[str]) -> float:
    """Number of words; a Chinese one has two characters."""
    return sum(len(w) / 2 if "\u3400" <= w[0] <= "\u9fff" else 1.0 for w in set(words))


def _label(labels: Mapping[str, str], name: str) -> str:
    return next((value for key, value in labels.items() if key.lower() == name), "")


def _labels(labels: Mapping[str, str]) -> list[str]:
    """Return the stable labels of an alert, sorted."""
    kept = {}
    for key, value in labels.items():
        name = plain(key)
        if name != "alertname" and not _PASSING.fullmatch(name):
            kept[name] = _value(name, plain(value))
    return [f"{name}={value}" for name, value in sorted(kept.items())]


def _places(labels: Mapping[str, str]) -> list[str]:
    named = {plain(key): plain(value) for key, value in labels.items() if value.strip()}
    places = wording().sameness.places
    return [f"{name}={_value(name, value)}" for name, value in sorted(named.items()) if name in places]


def narrow_places(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield name and stable value of the labels of places, without places of many jobs."""
    wide = wording().sameness.wide
    for place in _places(labels):
        name, _, value = place.partition("=")
        if name not in wide:
            yield name, value


def _value(name: str, value: str) -> str:
    """Return a label's value without its varying part: a pod's suffix, an instance's port, a series' number."""
    if name in wording().sameness.pods:
        pod = _OF_A_POD.match(value)
        return _ORDINAL.sub("", pod["name"] if pod else value)
    port = _PORT.match(value)
    if port is not None:
        return port["host"]
    if value.startswith("/"):
        return _path(value) if name not in ("mountpoint", "device") else value
    return _nameless(value)


@cache
def _tokens() -> re.Pattern[str]:
    measures = "|".join([_MEASURE, *sorted(wording().sameness.measures, key=len, reverse=True)])
    return re.compile(
        rf"(?P<uuid>(?<![\w])(?:{_UUID})(?![\w]))|(?P<stamp>(?<!\d)(?:{_STAMP}|{_CLOCK})(?!\d))"
        rf"|(?P<ip>(?<![\w.]){_IP}(?::\d+)?)|(?P<hex>(?<![a-z0-9_-])(?:{_HEX})(?![a-z0-9_-]))|(?P<path>{_PATH})"
        rf"|(?P<number>(?<![a-z0-9_]){_NUMBER}(?:\s?(?:{measures}))*)|(?P<word>{_WORD})"
        r"|(?P<digits>[0-9][a-z0-9_]*(?:[-.][a-z0-9_]+)*)|(?P<cjk>[\u3400-\u4dbf\u4e00-\u9fff]+)"
    )


@dataclass(frozen=True)
class _Namers:
    words: frozenset[str]
    runs: tuple[str, ...]
    naming: re.Pattern[str]
    programs: frozenset[str]
    program_runs: tuple[str, ...]
    measured: frozenset[str]
    measured_runs: tuple[str, ...]


@cache
def _namers() -> _Namers:
    sameness = wording().sameness
    named, programs, measured = sameness.named, sameness.versioned, sameness.measured
    return _Namers(
        words=frozenset(named.words),
        runs=tuple(named.runs),
        naming=re.compile(named.naming),
        programs=frozenset(programs.words),
        program_runs=tuple(programs.runs),
        measured=frozenset(measured.words),
        measured_runs=tuple(measured.runs),
    )


@cache
def _fillers() -> frozenset[str]:
    return frozenset(wording().sameness.fillers)
