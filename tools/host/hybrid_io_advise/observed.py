"""Extract each process's reads and writes of each file from a recording, as `advice` needs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import polars as pl

from whystall.tools.contract.text import path_pattern, path_series
from whystall.tools.host.common.cache_measures import CACHE, Measures, measure
from whystall.tools.host.common.cache_streams import judge_files
from whystall.tools.host.common.cache_uses import Use
from whystall.tools.host.common.file_operations import DURABLE, FILE_CLASS
from whystall.tools.host.hybrid_io_advise.advice import Observed
from whystall.tools.host.hybrid_io_advise.trials import Operation
from whystall.tools.recording.store import Recording

LEAST_BYTES = 8 << 20
"""A process that moves less of a file in the window does not matter to any page cache."""
_LEAST_PCT = 1.0
_RECLAIM_BYTES = 4 << 20
"""Evicted bytes; a kernel evicts fewer without pressure (see `cache_streams`)."""
_THROTTLED_PCT = 1.0
_MAPPED_PCT = 1.0
"""Share of the touched pages; reading a header through a mapping causes no more."""
_FORWARD_CALLS = 8
_FORWARD = 0.95
_OPERATIONS: tuple[Operation, ...] = ("read", "write")


@dataclass
class _Series:
    """One process's reads or writes of one series of files: bytes by request size."""

    sizes: dict[int, int] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)
    files: set[int] = field(default_factory=set)
    requests: int = 0
    bytes: int = 0
    direct: int = 0


def observed(recording: Recording) -> list[Observed]:
    """Return the I/O worth advice, most bytes first: the target's, and that of streams that harm the target."""
    files = recording.table(f"{CACHE}.files")
    rows = recording.table(f"{CACHE}.sizes").join(files, on="file", how="inner")
    series: dict[tuple[int, Operation, str, str, str], _Series] = {}
    for r in rows.iter_rows(named=True):
        if r["operation"] not in _OPERATIONS:
            continue
        one = series.setdefault((r["pid"], r["operation"], path_pattern(r["path"]), r["dev"], r["fstype"]), _Series())
        one.sizes[r["low_bytes"]] = one.sizes.get(r["low_bytes"], 0) + r["bytes"]
        one.paths.add(r["path"])
        one.files.add(r["file"])
        one.requests += r["count"]
        one.bytes += r["bytes"]
        one.direct += r["bytes"] if r["direct"] else 0
    least = max(LEAST_BYTES, _LEAST_PCT / 100 * sum(one.bytes for one in series.values()))
    cache, calls = _Cache(recording), _Calls(recording)
    found = []
    for (pid, operation, pattern, dev, fstype), one in series.items():
        own = cache.of(pid, pattern)
        if one.bytes < least or pid <= 0 or not cache.concerns(pid, own):
            continue
        shared = cache.sharing(one.files)
        stalled, forward = calls.reads(pid, one.paths)
        found.append(
            Observed(
                operation=operation,
                request_bytes=_median_size(one.sizes),
                requests=one.requests,
                bytes=one.bytes,
                path=path_series(one.paths),
                files=len(one.paths),
                pid=pid,
                comm=own.comm if own else None,
                dev=dev,
                filesystem=fstype,
                reread_pct=_reread_pct(operation, shared),
                cached_pct=_cached_pct(shared),
                one_pass_pct=own.one_pass_pct if own else None,
                refaulted_pct=own.refault_pct if own else None,
                pressed=own is not None and cache.pressed(own),
                harms=own is not None and cache.harms(own),
                waited=pid in cache.throttled or calls.syncs(pid, one.paths),
                sequential=forward,
                stalled_pct=stalled,
                direct_pct=100 * one.direct / one.bytes,
                cache_bytes=(max(own.added, own.dirtied) if operation == "write" else own.added) * cache.page
                if own
                else 0,
                numbers=frozenset(one.files),
            )
        )
    return sorted(found, key=lambda o: -o.bytes)


def _median_size(sizes: dict[int, int]) -> int:
    """Return the largest request size such that half of the bytes moved in requests at least that large."""
    half, passed = sum(sizes.values()) / 2, 0
    for low in sorted(sizes, reverse=True):
        passed += sizes[low]
        if passed >= half:
            return low
    return 0


def _reread_pct(operation: Operation, uses: list[Use]) -> float | None:
    """Return the share of read pages that had been read before, or of written pages read back, percent.

    None if unknown: use of an existing mapping causes no event, and before Linux 6.12 mappings are not reported.
    """
    if not uses or not _complete(uses):
        return None
    touched, again = sum(use.touched for use in uses), sum(use.again for use in uses)
    if operation == "write":
        return min(100.0, 100 * touched / max(1, *(sum(u.dirtied for u in uses), sum(u.added for u in uses))))
    return 100 * again / touched if touched else None


def _cached_pct(uses: list[Use]) -> float | None:
    """Return the share of the read pages that did not have to be added, percent."""
    touched, added = sum(use.touched for use in uses), sum(use.added for use in uses)
    if not touched or not _complete(uses):
        return None
    return 100 * (1 - min(added, touched) / touched)


def _complete(uses: list[Use]) -> bool:
    mapped, touched = sum(use.mapped for use in uses), sum(use.touched for use in uses)
    return all(use.known and use.mapped_known for use in uses) and 100 * mapped <= _MAPPED_PCT * touched


class _Cache:
    """The page cache of one recording, judged as in `page_cache`."""

    def __init__(self, recording: Recording) -> None:
        entry = recording.manifest.collectors[CACHE]
        self._measures: Measures = measure(recording)
        self._uses = {(use.pid, path_pattern(use.path)): use for use in self._measures.uses}
        judged = judge_files(self._measures, entry.lost, entry.seen)
        self._accused = judged.accused
        self._everything = recording.manifest.target.everything
        self.page = self._measures.page
        self.throttled = {
            stall.pid
            for stall in self._measures.stalls
            if stall.what == "dirty_throttle" and 100 * stall.total_ns >= _THROTTLED_PCT * self._measures.window_ns
        }

    def of(self, pid: int, pattern: str) -> Use | None:
        """Return what this process did with these files."""
        return self._uses.get((pid, pattern))

    def sharing(self, files: set[int]) -> list[Use]:
        """Return what all processes did with them."""
        return [use for use in self._measures.uses if use.files & files]

    def pressed(self, use: Use) -> bool:
        """Return whether its pages were evicted under pressure."""
        return use.reclaimed * self.page >= _RECLAIM_BYTES

    def harms(self, use: Use) -> bool:
        """Return whether it is a stream that makes another process suffer."""
        return any(use is stream.use for stream in self._accused)

    def concerns(self, pid: int, use: Use | None) -> bool:
        """Return whether it is in the target or harms it."""
        members = self._measures.members
        hurt = frozenset[int]().union(*(s.hurt for s in self._accused if s.use is use))
        return self._everything or pid in members or bool(hurt & members)


class _Calls:
    """System calls on files, by process and path; empty if they were not recorded."""

    def __init__(self, recording: Recording) -> None:
        self._synced: set[tuple[int, str]] = set()
        self._reads: dict[tuple[int, str], dict[int, list[tuple[int, int, int]]]] = {}
        self._window_ns = max(recording.manifest.window_ns, 1)
        if not recording.has("syscalls"):
            return
        files = recording.table("syscalls.files").select("file", "path")
        latency = recording.table("syscalls.latency").filter(pl.col("syscall").is_in(list(DURABLE)))
        self._synced = {(r["pid"], r["path"]) for r in latency.join(files, on="file").iter_rows(named=True)}
        reading = [call for call, name in FILE_CLASS.items() if name == "read"]
        slow = recording.table("syscalls.calls").filter(pl.col("syscall").is_in(reading)).join(files, on="file")
        for r in slow.iter_rows(named=True):
            threads = self._reads.setdefault((r["pid"], r["path"]), {})
            threads.setdefault(r["tid"], []).append((r["start_ns"], r["offset"], r["blocked_ns"]))

    def syncs(self, pid: int, paths: Iterable[str]) -> bool:
        """Return whether the process waits until its writes to one of these are on the disk."""
        return any((pid, path) in self._synced for path in paths)

    def reads(self, pid: int, paths: Iterable[str]) -> tuple[float, bool | None]:
        """Return the largest share of the window that a thread was blocked in slow reads of these, percent, and whether
        they are sequential; None if too few are known."""
        blocked: dict[int, int] = {}
        forward = steps = 0
        for path in paths:
            for tid, calls in self._reads.get((pid, path), {}).items():
                blocked[tid] = blocked.get(tid, 0) + sum(ns for _, _, ns in calls)
                offsets = [offset for _, offset, _ in sorted(calls) if offset >= 0]
                steps += max(0, len(offsets) - 1)
                forward += sum(a <= b for a, b in pairwise(offsets))
        stalled = 100 * max(blocked.values(), default=0) / self._window_ns
        return min(stalled, 100.0), forward >= _FORWARD * steps if steps >= _FORWARD_CALLS - 1 else None
