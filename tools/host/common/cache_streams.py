"""Find uses of the page cache that do harm: streams that evict other data, and working sets that do not fit.

A page evicted after at most one use gained nothing from being cached. That harms only under memory pressure: a stream
on a host with free memory, or one that drops its pages itself, is not accused. An accusation needs a stream, reclaim
that it causes, and a process that suffers.

Sources of the thresholds. The kernel defines a working set by refaults (pages that return soon after eviction,
mm/workingset.c); its two LRU lists keep streams, whose pages do not return, from evicting it. So refaults distinguish
the two; between `_STREAM_REFAULT_PCT` and `_THRASH_REFAULT_PCT` there is no verdict. 5 % of a CPU or of a thread's time
is what users notice (see host_snapshot.findings); `STALL_PCT` is the limit that slow file operations use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.cache_measures import HOST, Measures, Stall
from whystall.tools.host.common.cache_uses import UNKNOWN_FILE, Use
from whystall.tools.host.common.findings import finding, severity, window

STALL_PCT = 2.0
KSWAPD_PCT = 5.0
_STREAM_PCT = 90.0
_STREAM_REFAULT_PCT = 10.0
_THRASH_REFAULT_PCT = 30.0
# With a smaller share of tracked pages, they do not represent the rest.
_TRACKED_PCT = 50.0
# Share of all pages added, and of all pages reclaimed; a stream below it does not cause the reclaim.
_DRIVES_PCT = 20.0
# A few readahead windows; less is noise.
_STREAM_BYTES = 32 << 20
_RECLAIM_BYTES = 4 << 20
# Reading it back keeps a fast disk busy for a noticeable time; and most of the pages are concerned.
_MUCH_BYTES = 256 << 20
_MOST_PCT = 50.0
# A stream that drops this share of its pages itself does not evict others' pages.
_GIVES_BACK_PCT = 80.0
# Lost events make pages appear less used than they were.
_LOST = 0.01
_FINDINGS = 5
_MOST = 2 * _FINDINGS
PUSHED_OUT = "pushed_out"
# Part of one of the other two reclaims, whose time includes it.
THROTTLED = "throttled_reclaim"
RECLAIMS = ("direct_reclaim", "cgroup_reclaim", THROTTLED)


@dataclass(frozen=True)
class Stream:
    """A stream and its effect: `harm` is a code in prompts/; `bad`: severity, None if harmless; `hurt`: the pids that
    suffer, its own included."""

    use: Use
    harm: str
    bad: Severity | None
    hurt: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Judged:
    """The streams, the working sets that do not fit (with the reason), and the uses that others evicted."""

    streams: list[Stream]
    thrash: list[tuple[Use, str]]
    victims: list[Use]

    @property
    def accused(self) -> list[Stream]:
        """Return the streams that do harm."""
        return [s for s in self.streams if s.bad is not None]


def judge_files(m: Measures, lost: int, seen: int) -> Judged:
    """Judge every use in `m`; return nothing if more than `_LOST` of the `seen` events were `lost`."""
    if lost > _LOST * max(seen, 1):
        return Judged([], [], [])
    candidates = [u for u in m.uses if _streams(u, m)]
    streams, victims = [], []
    for use in candidates:
        suffer = [v for v in m.uses if v not in candidates and _suffers(v, m) and _reached(use, v.pid, m)]
        stream = _harm(use, suffer, candidates, m)
        streams.append(stream)
        victims += [v for v in suffer if stream.bad is not None and v not in victims]
    again = [u for u in m.uses if u not in candidates and _returns(u, m)]
    thrash = [(u, why) for u in again if (why := _thrashes(u, again, m))]
    return Judged(streams, thrash, [v for v in victims if v not in [u for u, _ in thrash]])


def _streams(use: Use, m: Measures) -> bool:
    """Return whether the use adds many pages and uses them at most once."""
    once, tracked, back = use.one_pass_pct, use.judged_pct, use.refault_pct
    if once is None or tracked is None or back is None or use.added * m.page < _STREAM_BYTES:
        return False
    # Touched again while still cached: that is a use.
    again = 100 * use.again / use.touched if use.touched else 0.0
    return (
        once >= _STREAM_PCT
        and tracked >= _TRACKED_PCT
        and back < _STREAM_REFAULT_PCT
        and again <= 100 - _STREAM_PCT
        and use.pid > 0
    )


def _suffers(use: Use, m: Measures) -> bool:
    """Return whether the process had to read back a noticeable part of its data."""
    return use.back * m.page >= _RECLAIM_BYTES and (use.refault_pct or 0.0) >= _STREAM_REFAULT_PCT


def _reached(use: Use, pid: int, m: Measures) -> bool:
    """Return whether `use` can have taken memory from `pid`: they share a scope, or the host itself was short."""
    return _short(m) or m.scope(use.pid) == m.scope(pid)


def _short(m: Measures) -> bool:
    return m.short is not None and m.short * m.page >= _RECLAIM_BYTES


def _harm(use: Use, suffer: list[Use], candidates: list[Use], m: Measures) -> Stream:
    if use.dropped * 100 >= _GIVES_BACK_PCT * max(use.added, 1):
        return Stream(use, "gives_back", None)
    if m.reclaimed * m.page < _RECLAIM_BYTES:
        return Stream(use, "free_memory", None)
    if not _drives(use, candidates, m):
        return Stream(use, "no_harm", None)
    waits: dict[int, float] = {}
    for stall in m.stalls:
        pct = 100 * stall.total_ns / max(m.window_ns, 1)
        if pct >= STALL_PCT and _stalled_by(use, stall, m):
            waits[stall.pid] = max(pct, waits.get(stall.pid, 0.0))
    worst = max(waits.values(), default=0.0)
    kswapd = (m.host.kswapd_cpu_pct or 0.0) if _short(m) else 0.0
    if suffer:
        grave = max([severity(worst), severity(kswapd / 2), *(grade(v, m) for v in suffer)], key=lambda g: g.rank)
        return Stream(use, "others_refault", grave, frozenset(waits) | {v.pid for v in suffer})
    if waits:
        return Stream(use, "stalls" if waits.keys() - {use.pid} else "own_stalls", severity(worst), frozenset(waits))
    if kswapd >= KSWAPD_PCT and use.reclaimed * m.page >= _RECLAIM_BYTES:
        return Stream(use, "kswapd", severity(kswapd / 2), frozenset({use.pid}))
    return Stream(use, "no_harm", None)


def _drives(use: Use, candidates: list[Use], m: Measures) -> bool:
    """Return whether the use makes up a good part of what its scope adds, and of what is evicted there.

    Reclaimed files that no process used count as well: growing anonymous memory evicts more than anyone reads.
    """
    inside = [u for u in m.uses if _reached(use, u.pid, m)]
    own = {file for u in inside for file in u.files}
    used = {file for u in m.uses for file in u.files}
    left = sum(pages for file, pages in m.evicted.items() if file in own or file not in used)
    # Workers of one job each read a part: they are judged together.
    together = sum(c.added for c in candidates if c.comm == use.comm and _reached(use, c.pid, m))
    return 100 * together >= _DRIVES_PCT * max(sum(u.added for u in inside), left, 1)


def grade(use: Use, m: Measures) -> Severity:
    """Return the severity of reading so much back, by volume: pages alone do not give the time it cost."""
    much = use.back * m.page >= _MUCH_BYTES and (use.refault_pct or 0.0) >= _MOST_PCT
    return Severity.MAJOR if much else Severity.MINOR


def _stalled_by(use: Use, stall: Stall, m: Measures) -> bool:
    if stall.what not in RECLAIMS:
        return False
    return _short(m) if stall.what == "direct_reclaim" else m.scope(stall.pid) == m.scope(use.pid)


def _returns(use: Use, m: Measures) -> bool:
    """Return whether many of the added pages had been evicted shortly before."""
    return use.back * m.page >= _RECLAIM_BYTES and (use.refault_pct or 0.0) >= _THRASH_REFAULT_PCT and use.pid > 0


def _thrashes(use: Use, again: list[Use], m: Measures) -> str:
    """Return why the reread data does not stay cached; empty if others evicted it or the cause is unknown.

    `again`: all uses with many refaults, which together may be too large.
    """
    scope = m.scope(use.pid)
    space = m.space_bytes(scope)
    distinct = [u.distinct for u in again if m.scope(u.pid) == scope]
    known = [pages for pages in distinct if pages is not None]
    larger = space is not None and sum(known) * m.page > space
    if not larger:
        returned = sum(u.added for u in again if _reached(u, use.pid, m))
        others = sum(u.added for u in m.uses if u not in again and _reached(u, use.pid, m))
        if 100 * others >= _DRIVES_PCT * (others + returned):
            return ""  # it may fit without what others add
        if space is not None and len(known) == len(distinct):
            return "short_reuse"
    return "too_large" if scope == HOST else "too_large_cgroup"


def file_findings(judged: Judged, m: Measures, requested: Callable[[int], bool], *, sure: bool) -> list[Finding]:
    """Return findings about streams, working sets that do not fit, and working sets that others evict.

    Reported are the requested processes (`requested`), those that harm them, and those they harm. `sure`: nothing was
    missed, so that normal findings are allowed.
    """
    found = []
    for stream in sorted(judged.streams, key=lambda s: (s.bad is None, -s.use.added)):
        concerns = requested(stream.use.pid) or any(requested(pid) for pid in stream.hurt)
        if concerns and (sure or stream.bad is not None):
            found.append(_finding("cache.streaming", stream.use, m, stream.bad, stream.harm))
    found = found[:_MOST]
    returns = [*judged.thrash, *((victim, PUSHED_OUT) for victim in judged.victims)]
    concerned = {pid for s in judged.accused for pid in s.hurt if requested(s.use.pid) or any(map(requested, s.hurt))}
    for use, why in [(u, w) for u, w in returns if requested(u.pid) or (w == PUSHED_OUT and u.pid in concerned)][
        :_MOST
    ]:
        found.append(_finding("cache.thrash", use, m, grade(use, m), why))
    return found


def use_findings(judged: Judged, m: Measures, requested: Callable[[int], bool]) -> list[Finding]:
    """Return one finding per requested process for all its uses, abnormal if others evict them; none for an accused."""
    accused = {s.use.pid for s in judged.accused} | {u.pid for u, _ in judged.thrash}
    victims = {u.pid: u for u in judged.victims}
    found = []
    for use in by_process(m):
        if use.pid > 0 and requested(use.pid) and use.pid not in accused and (use.touched or use.added or use.dirtied):
            hurt = grade(use, m) if use.pid in victims else None
            found.append(_finding("cache.use", use, m, hurt, ""))
    return found[:_FINDINGS]


def by_process(m: Measures) -> list[Use]:
    """Return the uses of each process merged, most pages added first."""
    found: dict[int, Use] = {}
    for use in m.uses:
        sums = found.setdefault(use.pid, Use(use.pid, use.comm))
        sums.files |= use.files
        for name in ("known", "mapped_known", "once_known"):
            setattr(sums, name, getattr(sums, name) and getattr(use, name))
        sums.parts.append(use)
        for name in (
            *("accessed", "mapped", "again", "added", "refaulted", "dirtied", "direct_bytes", "reclaimed", "dropped"),
            *("judged", "one_pass", "touched_once", "tracked", "untracked", "recent"),
        ):
            setattr(sums, name, getattr(sums, name) + getattr(use, name))
    return sorted(found.values(), key=lambda u: (-max(u.added, u.touched, u.dirtied), u.pid))


def _finding(kind: str, use: Use, m: Measures, bad: Severity | None, reason: str) -> Finding:
    metrics: dict[str, float | None] = {
        "accessed_bytes": use.touched * m.page if use.known else None,
        "added_bytes": use.added * m.page,
        "evicted_bytes": use.reclaimed * m.page,
        "dirtied_bytes": use.dirtied * m.page,
        "hit_pct": use.hit_pct,
        "one_pass_pct": use.one_pass_pct,
        "refault_pct": use.refault_pct,
        "of_added_pct": m.of_added_pct(use.added),
        "rate": use.added * m.page * 1e9 / max(m.window_ns, 1),
        "judged_pct": use.judged_pct,
    }
    if kind == "cache.use" and use.added * m.page < _RECLAIM_BYTES:
        metrics["refault_pct"] = None  # a share of almost nothing
    for name in ("evicted_bytes", "dirtied_bytes", "rate", "accessed_bytes"):
        metrics[name] = metrics[name] or None  # zero values are omitted
    attributes = {"operations": use.operations, "reason": reason}
    if kind != "cache.use":
        attributes |= {"files": str(len(use.files)) if len(use.files) > 1 else "", "example": use.example}
    if use.example == use.path or use.example == UNKNOWN_FILE:
        attributes.pop("example", None)
    path = use.path if kind != "cache.use" and use.path != UNKNOWN_FILE else None
    subject = Subject(type="process" if kind == "cache.use" else "file", pid=use.pid, comm=use.comm, path=path)
    shown = {name: text for name, text in attributes.items() if text}
    return finding(kind, subject, window(m.window_ns), metrics, bad, shown)
