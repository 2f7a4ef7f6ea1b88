"""How a file should be read or written, by what is known of its I/O and what was tried. Pure.

Where the thresholds come from: autoIO (Qian et al., FAST '24) never goes direct below 32 KiB and always from 2 MiB on;
what lies between it decides by pressure and contention, which on other disks than its own does not carry: there nothing
is advised unless it was tried. Upstream Lustre (2.17) switches writes at 2 MiB and reads at 8 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from whystall.tools.host.hybrid_io_advise.trials import Compared, Operation, cpu_crossover, crossover, nearest

Way = Literal["buffered", "direct", "dontneed", "readahead"]
Reason = Literal[
    "already_direct",
    "cached",
    "direct_slower_here",
    "direct_unsupported",
    "dropped_before_reread",
    "evicted_before_reread",
    "faster_here",
    "in_memory",
    "large",
    "less_cpu_here",
    "no_crossover",
    "no_harm",
    "no_pressure",
    "read_back",
    "reread",
    "reread_unknown",
    "slower_here",
    "small",
    "small_and_cold",
    "untried",
    "write_not_waited",
]
"""Why a way is advised; ``..._here``: as tried on that file system. The sentences are in prompts/."""

ALWAYS_DIRECT = 2 << 20
NEVER_DIRECT = 32 << 10
READAHEAD_UP_TO = 128 << 10
"""Requests up to the kernel's usual readahead (read_ahead_kb 128): larger ones keep a disk busy by themselves."""
REREAD_PCT = 5.0
"""Read again, or found in the cache: from here on it counts as data that the cache serves. Below lies what the edges of
requests and pages whose touches were not followed make of a file that is read once."""
CACHED_PCT = 20.0
"""Pages that were in the cache before they were asked for: what is left of an earlier write or read is less."""
HALF_AS_LONG_AGAIN = 2 / 3
"""Direct I/O that costs less CPU time, and is not clearly slower, may still be slower by this much. (A contended disk
serves one direct request at a time up to 1.5 times as slowly as readahead, which keeps several under way.)"""
ONE_PASS_PCT = 90.0
"""Of the pages whose touches were followed, touched at most once: one pass, but for headers and indexes."""
THRASH_PCT = 30.0
"""Of the added pages, brought back after eviction (see `page_cache_files`): what is read again does not stay."""
STALLED_PCT = 5.0
"""Of the window, blocked in such reads: less is within what step times vary by on a healthy host (STALL_PCT)."""


@dataclass(frozen=True)
class Observed:
    """What is known of one process's reads or writes of one file, or of one numbered series of files. Shares in
    percent, None where not known.

    `request_bytes`: half of the bytes were moved by requests at least that large. `reread_pct`: of the pages that
    anybody read, read before in the window; of a writer's, read back. `cached_pct`: in the cache before they were asked
    for. `refaulted_pct`: of the added pages, evicted before. `pressed`: its pages were evicted to make room; `harms`:
    and somebody suffers from it, as `page_cache` judges. `waited`: the writer waits for the disk, since it syncs or is
    throttled. `sequential`: known to be read forward. `stalled_pct`: of the window, blocked in reads of it.
    `direct_pct`: of the bytes, with O_DIRECT already. `cache_bytes`: what went into the page cache for it. `numbers`:
    of its files in the recording.
    """

    operation: Operation
    request_bytes: int
    requests: int = 0
    bytes: int = 0
    path: str | None = None
    files: int = 1
    pid: int | None = None
    comm: str | None = None
    dev: str = ""
    filesystem: str = ""
    reread_pct: float | None = None
    cached_pct: float | None = None
    one_pass_pct: float | None = None
    refaulted_pct: float | None = None
    pressed: bool = False
    harms: bool = False
    waited: bool = False
    sequential: bool | None = None
    stalled_pct: float = 0.0
    direct_pct: float = 0.0
    cache_bytes: int = 0
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Advice:
    """`way`, why (`reason`, a code), and what was tried of it (`tried`; None: nothing, it rests on a rule).

    `crossover_bytes`: from which size on direct I/O was faster in the trials; None: not tried, or none was found.
    `direct_bytes`: where direct is advised, from which size on it is.
    `change`: it is not what is done today. Where nothing should change, `tried` is what was tried of direct I/O.
    """

    way: Way
    reason: Reason
    tried: Compared | None = None
    crossover_bytes: int | None = None
    direct_bytes: int | None = None
    change: bool = False


@dataclass(frozen=True)
class Tried:
    """The trials on one file system (see `io_trials.compare`); `refused`: why there are none, codes."""

    compared: Sequence[Compared] = ()
    refused: Sequence[str] = ()

    def of(self, operation: Operation, way: str) -> list[Compared]:
        """Those of one operation and way."""
        return [c for c in self.compared if c.operation == operation and c.way == way]


_IN_MEMORY = frozenset(
    {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs"}
)
_NO_DIRECT = frozenset({"no_direct", "not_direct", "in_memory", "fuse"})


def advise(seen: Observed, tried: Tried) -> Advice:
    """What to do. `buffered` is the answer wherever something is not known that a change would rest on."""
    found = _advised(seen, tried)
    if found.way == "dontneed":  # chosen for what direct I/O would cost; what it costs itself was tried too
        return replace(found, tried=nearest(tried.of(seen.operation, "dontneed"), seen.request_bytes))
    return found


def _advised(seen: Observed, tried: Tried) -> Advice:
    if seen.filesystem in _IN_MEMORY:
        return Advice("buffered", "in_memory")
    if seen.direct_pct >= 50:
        return _already_direct(seen, tried)
    found = _kept(seen) or _stalled(seen, tried)
    if found is not None:
        return found
    rows = tried.of(seen.operation, "direct")
    found = _one_pass(seen, tried, nearest(rows, seen.request_bytes))
    crossing = crossover(rows)
    if found.way != "direct":
        return replace(found, crossover_bytes=crossing)
    since = crossing if found.reason == "faster_here" else cpu_crossover(rows) if found.tried else ALWAYS_DIRECT
    return replace(found, crossover_bytes=crossing, direct_bytes=min(since or seen.request_bytes, seen.request_bytes))


def _kept(seen: Observed) -> Advice | None:
    """Whether the cache serves this data, or may: then it stays there."""
    touched: Reason = "read_back" if seen.operation == "write" else "reread"
    if seen.reread_pct is None:
        return Advice("buffered", "reread_unknown")
    if seen.reread_pct >= REREAD_PCT:
        missed = seen.cached_pct is not None and seen.cached_pct < 50
        if seen.operation == "read" and missed and (seen.refaulted_pct or 0.0) >= THRASH_PCT:
            return Advice("buffered", "evicted_before_reread")
        # Had the cache served what was read again, as much would have been there, or come back after an eviction.
        gone = seen.cached_pct is not None and seen.cached_pct < seen.reread_pct / 2
        kept = seen.refaulted_pct is None or seen.refaulted_pct >= REREAD_PCT
        return Advice(
            "buffered", "dropped_before_reread" if seen.operation == "read" and gone and not kept else touched
        )
    if seen.cached_pct is not None and seen.cached_pct >= CACHED_PCT and seen.operation == "read":
        return Advice("buffered", "cached")
    if seen.one_pass_pct is not None and seen.one_pass_pct < ONE_PASS_PCT:
        return Advice("buffered", touched)
    return None


def _stalled(seen: Observed, tried: Tried) -> Advice | None:
    """Reads that wait for each small piece, one after the other."""
    small = seen.operation == "read" and seen.request_bytes <= READAHEAD_UP_TO
    if not (small and seen.sequential and seen.stalled_pct >= STALLED_PCT):
        return None
    found = nearest(tried.of("read", "readahead"), seen.request_bytes)
    if found is None:
        return Advice("readahead", "small_and_cold", change=True)
    return Advice("readahead", "faster_here", found, change=True) if found.clear == "faster" else None


def _one_pass(seen: Observed, tried: Tried, found: Compared | None) -> Advice:
    """Data that goes through the cache once. `found`: what was tried of direct I/O in requests of this size."""
    waits = seen.operation == "write" and seen.waited
    if not (seen.harms or seen.pressed or waits):
        return Advice("buffered", _unharmed(seen), found)
    if seen.operation == "write" and not seen.waited:
        # Today its calls return as soon as the data is in memory. Direct ones would make the writer wait for the disk.
        return (
            Advice("dontneed", "write_not_waited", change=True) if seen.harms else Advice("buffered", _unharmed(seen))
        )
    if found is not None and found.clear == "faster":
        return Advice("direct", "faster_here", found, change=True)
    if not seen.harms:
        # It would only be for its own sake, and there is nothing in it that was seen.
        slower = found is not None and found.clear == "slower"
        return Advice("buffered", "slower_here" if slower else "no_crossover" if found else _unharmed(seen), found)
    if _NO_DIRECT & set(tried.refused):
        return Advice("dontneed", "direct_unsupported", change=True)
    if found is None:
        if seen.request_bytes >= ALWAYS_DIRECT:
            return Advice("direct", "large", change=True)
        return Advice("dontneed", "small" if seen.request_bytes < NEVER_DIRECT else "untried", change=True)
    if found.clear == "slower":
        return Advice("dontneed", "slower_here", change=True)
    if found.less_cpu and found.low_ratio >= HALF_AS_LONG_AGAIN:
        return Advice("direct", "less_cpu_here", found, change=True)
    return Advice("dontneed", "no_crossover", change=True)


def _unharmed(seen: Observed) -> Reason:
    return "no_harm" if seen.pressed else "no_pressure"


def _already_direct(seen: Observed, tried: Tried) -> Advice:
    """Small direct requests one after the other are what readahead would spare; of others the trials say nothing."""
    rows = tried.of(seen.operation, "direct")
    found = nearest(rows, seen.request_bytes)
    forward = seen.operation == "write" or bool(seen.sequential)
    if found is not None and found.clear == "slower" and forward:
        return Advice("buffered", "direct_slower_here", found.turned(), crossover(rows), change=True)
    return Advice("direct", "already_direct", found, crossover(rows))
