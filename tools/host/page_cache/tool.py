"""page_cache: which processes fill the page cache, whether the pages are used, and who loses pages or time by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from whystall.tools.collect.options import ProcOptions, SampleOptions
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.host.common.cache_measures import CACHE, Measures, Stall, measure
from whystall.tools.host.common.cache_streams import (
    PUSHED_OUT,
    RECLAIMS,
    THROTTLED,
    by_process,
    file_findings,
    judge_files,
    use_findings,
)
from whystall.tools.host.common.cache_uses import RESIDENCY, Use
from whystall.tools.host.page_cache.cpu import SAMPLES, cpu_findings, cpu_rows
from whystall.tools.host.page_cache.data import Data, FileRow, ProcessRow, StallRow, Verdict
from whystall.tools.host.page_cache.memory import memory_findings
from whystall.tools.host.page_cache.stalls import LOCK, THROTTLE, stall_findings
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

_MUCH_BYTES = 1 << 20
_VERDICTS: dict[str, Verdict] = {
    "cache.streaming": "streaming",
    "cache.thrash": "thrash",
    "writeback.throttled": "dirty_throttling",
    "cache.limit_small": "limit_small",
    "file.lock_contention": "lock_contention",
    "memory.reclaim_stall": "reclaim_stalls",
}


class Params(LiveParams):
    """Parameters of page_cache. Pages are counted on the whole host: often a process outside the target evicts them."""

    hz: Annotated[int, Field(ge=0, le=999, description="CPU samples per second; 0 takes none")] = 99


def _needs(params: Params) -> list[Need]:
    period = int(min(1.0, params.duration / 4) * 1e9)
    needs = [Need(CACHE), Need("proc", ProcOptions(period_ns=period), optional=True), Need(RESIDENCY, optional=True)]
    if params.hz:
        needs.append(Need(SAMPLES, SampleOptions(period_ns=1_000_000_000 // params.hz), optional=True))
    return needs


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the page cache of `recording`, and which processes suffer."""
    m = measure(recording)
    target = recording.manifest.target
    entry = recording.manifest.collectors[CACHE]
    sure = recording.manifest.saw_everything(CACHE)
    judged = judge_files(m, entry.lost, entry.seen)

    def requested(pid: int) -> bool:
        return pid > 0 and (target.everything or pid in m.members)

    cpu = cpu_rows(recording)
    found = [
        *file_findings(judged, m, requested, sure=sure),
        *stall_findings(m, target, requested, sure=sure),
        *memory_findings(m, judged, target, sure=sure),
        *use_findings(judged, m, requested),
        *cpu_findings(cpu, recording, m.members),
    ]
    if not sure:  # missed events may have been the harmful ones
        found = [f for f in found if f.polarity is Polarity.ABNORMAL or f.spec.mechanism.value != "pages"]
    seen = sum(u.touched + u.added + u.dirtied for u in m.uses) + m.reclaimed + sum(s.count for s in m.stalls)
    processes = _processes(m, requested)
    files = [_file(use, m) for use in m.uses if (requested(use.pid) and _used(use)) or _is_large(use, m)]
    stalls = [_stall(stall, m) for stall in m.stalls if requested(stall.pid)]
    return Judgement(
        findings=found,
        data=Data(
            verdicts=_verdicts(found, m, requested, sure=sure),
            host=m.host,
            files=files[: params.top],
            processes=processes[: params.top],
            stalls=stalls[: params.top],
            cgroups=[c.row for c in m.cgroups][: params.top],
            cpu=cpu[: params.top],
        ),
        seen=seen,
        totals={"files": len(files), "processes": len(processes), "stalls": len(stalls), "cgroups": len(m.cgroups)},
        not_seen=_not_seen(recording, m),
    )


def _verdicts(found: list[Finding], m: Measures, requested: Callable[[int], bool], *, sure: bool) -> list[Verdict]:
    bad = [
        _VERDICTS[f.kind]
        for f in found
        if f.polarity is Polarity.ABNORMAL and f.kind in _VERDICTS and f.attributes.get("reason") != PUSHED_OUT
    ]
    if bad:
        return list(dict.fromkeys(bad))
    if not sure:
        return ["cannot_tell"]
    if not any(_used(use) for use in m.uses if requested(use.pid)) and not any(requested(s.pid) for s in m.stalls):
        return ["idle"]
    blind = any(use.added and not (use.known and use.once_known) for use in m.uses if requested(use.pid))
    return ["cannot_tell" if blind else "healthy"]


def _not_seen(recording: Recording, m: Measures) -> list[tuple[str, str]]:
    spots = [("less_told", name) for name in ("proc", RESIDENCY) if not recording.has(name)]
    if m.untracked:
        spots.append(("cache_untracked", f"{m.untracked} of {m.untracked + m.tracked} pages"))
    return spots


def _used(use: Use) -> bool:
    return bool(use.touched or use.added or use.dirtied or use.direct_bytes)


def _is_large(use: Use, m: Measures) -> bool:
    """Return whether a process outside the target is listed; otherwise every mapped library would be."""
    return max(use.added, use.dirtied) * m.page >= _MUCH_BYTES or use.direct_bytes >= _MUCH_BYTES


def _file(use: Use, m: Measures) -> FileRow:
    return FileRow(
        pid=use.pid,
        comm=use.comm,
        filesystem=use.filesystem,
        files=len(use.files),
        operations=use.operations or ("direct" if use.direct_bytes else ""),
        accessed_bytes=use.touched * m.page if use.known else None,
        added_bytes=use.added * m.page,
        dirtied_bytes=use.dirtied * m.page,
        written_back_bytes=None if use.written_back is None else use.written_back * m.page,
        direct_bytes=use.direct_bytes,
        evicted_bytes=use.reclaimed * m.page,
        dropped_bytes=use.dropped * m.page,
        hit_pct=use.hit_pct,
        one_pass_pct=use.one_pass_pct,
        judged_pct=use.judged_pct,
        refault_pct=use.refault_pct,
        cached_bytes=use.cached_bytes,
        path=use.path,
    )


def _processes(m: Measures, requested: Callable[[int], bool]) -> list[ProcessRow]:
    lost: dict[int, dict[str, int]] = {}
    names = {s.pid: s.comm for s in m.stalls}
    for stall in m.stalls:
        spent = lost.setdefault(stall.pid, {})
        spent[stall.what] = spent.get(stall.what, 0) + stall.total_ns
    uses = [use for use in by_process(m) if _used(use) or use.pid in lost]
    uses += [Use(pid, names[pid]) for pid in sorted(lost.keys() - {u.pid for u in uses})]
    rows = []
    for use in uses:
        spent = lost.get(use.pid, {})
        rows.append(
            ProcessRow(
                pid=use.pid,
                comm=use.comm,
                in_target=requested(use.pid),
                accessed_bytes=use.touched * m.page if use.known else None,
                added_bytes=use.added * m.page,
                dirtied_bytes=use.dirtied * m.page,
                direct_bytes=use.direct_bytes,
                hit_pct=use.hit_pct,
                refault_pct=use.refault_pct,
                of_added_pct=m.of_added_pct(use.added),
                reclaim_ms=sum(spent.get(what, 0) for what in RECLAIMS if what != THROTTLED) / 1e6,
                throttled_ms=spent.get(THROTTLE, 0) / 1e6,
                lock_ms=spent.get(LOCK, 0) / 1e6,
                cgroup=m.cgroup_of.get(use.pid, ""),
            )
        )
    return rows


def _stall(stall: Stall, m: Measures) -> StallRow:
    return StallRow(
        at_ms=stall.at_ns / 1e6,
        pid=stall.pid,
        tid=stall.tid,
        comm=stall.comm,
        what=stall.what,
        count=stall.count,
        total_ms=stall.total_ns / 1e6,
        max_ms=stall.max_ns / 1e6,
        window_pct=min(100.0, 100 * stall.total_ns / max(m.window_ns, 1)),
        pages=stall.pages,
        in_flight=stall.in_flight,
        path=stall.path,
    )


TOOL = Tool(
    name="page_cache",
    title="Page cache",
    description=(
        "What enters the page cache, per file, process and cgroup: hit ratio, one-pass share, refaults, evictions; "
        "who pushes others out, whose working set does not fit, whose writes are throttled, who reclaims, who waits "
        "for a file's lock."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(
        {
            *("cache.streaming", "cache.thrash", "cache.use", "cache.limit_small", "cache.cpu"),
            *("memory.reclaim_stall", "memory.kswapd", "writeback.throttled", "file.lock_contention"),
        }
    ),
    cost=3.0,
)
