"""Check that the numbers of a sentence are those of the findings it cites. Pure.

A number is supported if a measured value, converted to its unit, rounds to it. Values are not combined: a sum that was
not measured is not supported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from whystall.agent_server.diagnosis.grounding import time_use
from whystall.agent_server.diagnosis.grounding.numerals import Numeral, read
from whystall.agent_server.diagnosis.grounding.time_use import OF_CALLS, OF_VICTIM
from whystall.prompts.quantities import quantity

_DIMS = {"s": ("time", 1.0), "ms": ("time", 1e-3), "us": ("time", 1e-6), "ns": ("time", 1e-9)}
_DIMS |= {"pct": ("pct", 1.0), "bytes": ("size", 1.0), "bytes/s": ("byterate", 1.0), "1/s": ("rate", 1.0)}
_DIMS |= {"count": ("count", 1.0), "ratio": ("ratio", 1.0), "cpus": ("cpus", 1.0)}
# Words around a number that restrict which of the measured values it can be.
_BEFORE = (
    (
        "max",
        r"(?:\blongest|\bmax(?:imum)?|\bworst|\bpeak|\bslowest|最长|最大|"
        r"最慢)(?:[ 的:=]*[a-z的]{0,9}){0,2}[ :=为是达]*$",
    ),
    ("p50", r"(?:\bmedian|\bp50|中位数?|中位值)(?:[ 的:=]*[a-z的]{0,9}){0,2}[ :=为是]*$"),
    ("p99", r"(?:\bp99|\b99th percentile|99 ?分位数?)(?: of| is| latency)?[ :=为是]*$"),
    (
        "period",
        r"(?:\bevery|\bonce per|\bperiod(?: of| is)?|\bintervals? of|每隔|每(?= *约? *$)|周期为?|间隔)"
        r"[ :=约~≈]*(?:about |roughly |some )?$",
    ),
    (
        "total",
        r"(?:\btotal(?:s|ling|ing|led|ed)?(?: of)?|\badds? up to|\bsum(?:s|ming)? to|合计|总共|总计|累计|共计?)"
        r"[ :=约~≈阻塞等待]*(?:about |roughly |some )?$",
    ),
    (
        "each",
        r"(?:每次|单次|每个请求|(?:每次|单次|每个|一次)[^\d，。；,]{0,10}(?:耗时|需要?|用时|持续|花费?)|"
        r"\b(?:each|every|an?|one) (?:\w+ )?(?:takes?|took|taking|lasts?|lasted|lasting))"
        r"[ 约耗时为~≈]*(?:about |roughly |some )?$",
    ),
)
_AFTER = (
    ("max", r"^ (?:at worst|at the longest|maximum)\b"),
    ("p50", r"^ median\b"),
    ("period", r"^(?: period\b|的?周期)"),
    ("total", r"^(?: in (?:total|all)\b| altogether\b| total\b)"),
    ("each", r"^ (?:(?:long )?each|apiece|per (?:call|episode|request|sync|fsync|write|read|checkpoint))\b"),
)
_METRICS_OF_ROLE = {
    "max": ("max_ms", "episode_max_ms", "episode_ms", "p99_ms", "queue_p99_ms"),
    "p50": ("p50_ms", "episode_ms"),
    "p99": ("p99_ms", "queue_p99_ms"),
    "period": ("period_s",),
    "each": ("episode_ms", "p50_ms", "p99_ms", "max_ms", "mean_us", "await_ms", "transfer_ms", "own_ms", "peers_ms"),
    "total": (
        *("total_ms", "wall_s", "oncpu_s", "wait_s", "run_s", "block_io_s", "system_s", "user_s", "throttled_s"),
        "lost_ms",
    ),
}


WINDOW = "window_s"
"""The name of the length of a window; matches only beside words for the window."""
# Shares of running time match only in a sentence with words for running.
_RUNNING = ("user_pct", "oncpu_pct", f"{OF_CALLS}oncpu_pct", f"{OF_VICTIM}user_pct")
_RUNS = re.compile(
    r"\b(?:runs?|running|ran|comput\w+|user|on (?:the|a|its) cpu|cpu|busy|works?|working)\b|运行|计算|"
    r"用户态|CPU|繁忙|工作",
    re.I,
)


OF_LIMIT = "of_limit"
"""The name of the used share of a limit."""
# Counts of the subjects of the cited findings.
_CITED = {
    "threads": re.compile(r" (?:\w+ )?threads\b|(?:其他|其它|别的)?线程", re.I),
    "devices": re.compile(r" (?:\w+ )?(?:disks|devices|drives)\b|(?:磁|硬|云)?盘|块?设备", re.I),
}
_SPARE, _OF_CPU = "spare", "of_cpu"
_IS_SPARE = re.compile(
    r"^\s?(?:of (?:the|its|their|all) [\w ]{1,20})?(?:is |are |was |were )?(?:idle|spare|free|unused|空闲|闲置)", re.I
)
_IS_OF_CPU = re.compile(r"^ of (?:one|a|1|a single) (?:cpu|core)\b|^ ?(?:个|的)?(?:一个|单个)?(?:CPU|核)", re.I)
_IS_OF_WINDOW = re.compile(r"^ of (?:the|its|their|all|observed) (?:observed )?(?:time|window|run)\b", re.I)
_IS_OF_CALLS = re.compile(r"\b(?:that|this|those|these|each|every|calls?|syncs?|saves?|writes?|reads?)\b|其中", re.I)


@dataclass(frozen=True)
class Fact:
    """A value that may be cited. `dim`: as in `Numeral`, or ``share`` (a percentage as a fraction). `name`: metric."""

    dim: str
    value: float
    name: str = ""


def facts(name: str, value: float, unit: str) -> list[Fact]:
    """Return the values that a text may state for a metric: as measured, and as displayed (rounded)."""
    dim, factor = _DIMS[unit]
    found = [Fact(dim, value * factor, name)]
    found += [Fact(dim, sum(s.spans[-1]) / 2, name) for s in read(quantity(value, unit)) if s.dim in (dim, "bare")]
    if name in ("busy_pct", "util_pct"):
        found += [Fact(dim, 100.0 - f.value, _SPARE) for f in found]
    if unit == "cpus":
        found += [Fact("pct", f.value * 100, _OF_CPU) for f in found]
    return found + ([Fact("share", f.value / 100, name) for f in found if f.name == name] if unit == "pct" else [])


def unsupported(text: str, known: Sequence[Fact]) -> str | None:
    """Return the first number in `text` that no fact in `known` rounds to, as written; None without any."""
    for numeral in read(text):
        candidates = [abs(f.value) for f in known if _fits(numeral, f, text)]
        if not any(low <= value <= high for low, high in numeral.spans for value in candidates):
            return " ".join(text[numeral.start : numeral.end].split())
    return None


def _fits(numeral: Numeral, fact: Fact, text: str) -> bool:
    """Return whether the unit of a number and the words around it allow that it is `fact`."""
    if numeral.dim == "time" and (role := _role(numeral, text)) and fact.name not in _METRICS_OF_ROLE[role]:
        return False
    if fact.name == WINDOW and not _of_window(numeral, text):
        return False
    if numeral.rough and fact.name.startswith(OF_VICTIM):
        return False
    before, after = text[: numeral.start], text[numeral.end :]
    if numeral.dim in ("time", "pct") and time_use.contradicts(fact.name, before, after):
        return False
    if fact.name == _SPARE and not _IS_SPARE.search(after):
        return False
    if fact.name == _OF_CPU and not _IS_OF_CPU.search(after):
        return False
    if fact.name.startswith(OF_CALLS) and _IS_OF_WINDOW.search(after):
        return False
    if (
        fact.name.startswith(OF_CALLS)
        and numeral.rough
        and not _IS_OF_CALLS.search(text[numeral.start : numeral.end + 30])
    ):
        return False
    if fact.name == OF_LIMIT and not re.search(r"limit|上限|限额|限制", text, re.I):
        return False
    if fact.dim in _CITED:
        return numeral.dim in ("bare", "count") and _CITED[fact.dim].match(after) is not None
    if numeral.dim == "pct" and fact.name in _RUNNING and not _RUNS.search(text):
        return False
    if numeral.dim == fact.dim:
        return True
    if numeral.dim == "ratio":
        return False
    if numeral.dim == "cpus":
        return fact.dim == "count" or (fact.dim == "share" and fact.name == "cpu_pct")
    if numeral.dim != "bare":
        return False
    before, after = text[: numeral.start].rstrip(), text[numeral.end :].lstrip()
    if fact.dim in ("pid", "line"):
        opened = re.search(r"[(（](?:\s?\d+\s?(?:,|、|and|和|/))*$", before)
        closed = re.match(r"(?:(?:,|、|and|和|/)\s?\d+\s?)*[)）]", after)
        return bool(opened and closed) and _exactly(numeral, fact)
    if fact.dim == "share":
        return after.startswith("of")
    if re.match(r"times (?:as|longer|slower|more)", after):
        return fact.dim == "ratio"
    return fact.dim in ("count", "ratio", "cpus")


def _of_window(numeral: Numeral, text: str) -> bool:
    before, after = text[: numeral.start], text[numeral.end :]
    return bool(
        re.search(
            r"(?:\b(?:of|in|within|during|over|window|observed for)(?: the| these)?|窗口|观测|在|时长)[ 为:]*$",
            before,
            re.I,
        )
        or re.match(r"[ -]?(?:的)?(?:long )?(?:window|observation|窗口|观测|内|中)", after, re.I)
    )


def _exactly(numeral: Numeral, fact: Fact) -> bool:
    return any(abs((low + high) / 2 - fact.value) < 0.5 for low, high in numeral.spans)


def _role(numeral: Numeral, text: str) -> str:
    before, after = text[: numeral.start], text[numeral.end :]
    stated = re.match(r" (?:at|in) (?:the )?(median|p50|p99|99th percentile)\b", after, re.IGNORECASE)
    if stated:
        return "p50" if stated[1].lower() in ("median", "p50") else "p99"
    for role, pattern in _BEFORE:
        if re.search(pattern, before, re.IGNORECASE):
            return role
    return next((role for role, pattern in _AFTER if re.search(pattern, after, re.IGNORECASE)), "")
