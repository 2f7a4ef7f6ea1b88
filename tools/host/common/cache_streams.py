"""Judging how files are used in the page cache: streams that take room from others, and sets that do not fit.

A page that is evicted and was used at most once did nobody any good in the cache. That harms only where room is short:
a reader that streams on a host with free memory takes nothing away from anybody and is not accused; nor is one that
gives its pages back. An accusation needs all of it: the stream, reclaim that it drives, and somebody who suffers.

Where thresholds come from. The kernel's own idea of a working set is that pages come back soon after they were evicted
(mm/workingset.c, "refault"), of a stream that they do not (the two LRU lists exist to keep it from pushing out the
rest): so refaults tell both apart, with a gap between `_STREAM_REFAULT_PCT` and `_THRASH_REFAULT_PCT` where nothing is
said. A share of 5 % of a CPU or of a thread's time is what users notice (see snapshot_findings); waits of `STALL_PCT`
are those that file operations are called slow for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.host.common.cache_measures import HOST, Measures, Stall
from whystall.tools.host.common.cache_uses import UNKNOWN_FILE, Use
from whystall.tools.host.common.severity import severity

STALL_PCT = 2.0
KSWAPD_PCT = 5.0
_STREAM_PCT = 90.0
_STREAM_REFAULT_PCT = 10.0
_THRASH_REFAULT_PCT = 30.0
# Below this a share of what could be followed says too little of the rest.
_FOLLOWED_PCT = 50.0
# Of all that was brought in, and of all that was reclaimed: who makes less of it does not drive reclaim.
_DRIVES_PCT = 20.0
# A few readahead windows: less is noise of the host.
_STREAM_BYTES = 32 << 20
_RECLAIM_BYTES = 4 << 20
# Read back, it keeps a fast disk busy for a noticeable time; and it is the rule, not the exception.
_MUCH_BYTES = 256 << 20
_MOST_PCT = 50.0
# Of a stream, this share given back by itself leaves others their room.
_GIVES_BACK_PCT = 80.0
# What was lost before it was counted makes pages look less used than they were.
_LOST = 0.01
_FINDINGS = 5
_MOST = 2 * _FINDINGS
PUSHED_OUT = "pushed_out"
# lies within one of the others, which is the time that was lost
THROTTLED = "throttled_reclaim"
RECLAIMS = ("direct_reclaim", "cgroup_reclaim", THROTTLED)


@dataclass(frozen=True)
class Stream:
    """A stream and what it does: `harm` is a code of `cache_reasons`; `bad`: how much, None for none; `hurt`: the
    processes that suffer, itself included."""

    use: Use
    harm: str
    bad: Severity | None
    hurt: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Judged:
    """The streams and the sets that do not fit (`reasons` by them), and whose pages others pushed out."""

    streams: list[Stream]
    thrash: list[tuple[Use, str]]
    victims: list[Use]

    @property
    def accused(self) -> list[Stream]:
        """The streams that do harm."""
        return [s for s in self.streams if s.bad is not None]


def judge_files(m: Measures, lost: int, seen: int) -> Judged:
    """Judge every use in `m`; with many events `lost` of those `seen`, nothing is said."""
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
    """Whether what it brings in is used at most once, and much of it."""
    once, followed, back = use.one_pass_pct, use.judged_pct, use.refault_pct
    if once is None or followed is None or back is None or use.added * m.page < _STREAM_BYTES:
        return False
    # of pages that it touched, few may have been touched before: a second look at what is still there is use
    again = 100 * use.again / use.touched if use.touched else 0.0
    return (
        once >= _STREAM_PCT
        and followed >= _FOLLOWED_PCT
        and back < _STREAM_REFAULT_PCT
        and again <= 100 - _STREAM_PCT
        and use.pid > 0
    )


def _suffers(use: Use, m: Measures) -> bool:
    """Whether it had to read back a noticeable part of what it had in memory."""
    return use.back * m.page >= _RECLAIM_BYTES and (use.refault_pct or 0.0) >= _STREAM_REFAULT_PCT


def _reached(use: Use, pid: int, m: Measures) -> bool:
    """Whether `use` can have taken memory from process `pid`: they share a scope, or the host itself ran short."""
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
    """Whether it makes a good part of what its scope takes in, and so of what has to leave. Files that nobody used in
    the window count as reclaimed there too: somebody's own memory may have grown, which evicts more than anybody reads.
    """
    inside = [u for u in m.uses if _reached(use, u.pid, m)]
    mine = {file for u in inside for file in u.files}
    used = {file for u in m.uses for file in u.files}
    left = sum(pages for file, pages in m.evicted.items() if file in mine or file not in used)
    # workers of one job each read their part: together they drive reclaim or do not
    together = sum(c.added for c in candidates if c.comm == use.comm and _reached(use, c.pid, m))
    return 100 * together >= _DRIVES_PCT * max(sum(u.added for u in inside), left, 1)


def grade(use: Use, m: Measures) -> Severity:
    """How bad it is to have read so much back: what it cost in time is not known from pages alone."""
    much = use.back * m.page >= _MUCH_BYTES and (use.refault_pct or 0.0) >= _MOST_PCT
    return Severity.MAJOR if much else Severity.MINOR


def _stalled_by(use: Use, stall: Stall, m: Measures) -> bool:
    if stall.what not in RECLAIMS:
        return False
    return _short(m) if stall.what == "direct_reclaim" else m.scope(stall.pid) == m.scope(use.pid)


def _returns(use: Use, m: Measures) -> bool:
    """Whether much of what it brings in had been evicted shortly before."""
    return use.back * m.page >= _RECLAIM_BYTES and (use.refault_pct or 0.0) >= _THRASH_REFAULT_PCT and use.pid > 0


def _thrashes(use: Use, again: list[Use], m: Measures) -> str:
    """Why what it reads again does not stay; empty if others pushed it out, or if that cannot be told. `again`: all of
    which much returns, which may be too large together."""
    scope = m.scope(use.pid)
    room = m.room_bytes(scope)
    distinct = [u.distinct for u in again if m.scope(u.pid) == scope]
    known = [pages for pages in distinct if pages is not None]
    larger = room is not None and sum(known) * m.page > room
    if not larger:
        returned = sum(u.added for u in again if _reached(u, use.pid, m))
        others = sum(u.added for u in m.uses if u not in again and _reached(u, use.pid, m))
        if 100 * others >= _DRIVES_PCT * (others + returned):
            return ""  # it may well fit, were it not for what others bring in
        if room is not None and len(known) == len(distinct):
            return "short_reuse"
    return "too_large" if scope == HOST else "too_large_cgroup"


def file_findings(judged: Judged, m: Measures, mine: Callable[[int], bool], *, sure: bool) -> list[Finding]:
    """Findings about streams, sets that do not fit, and sets that would fit but are pushed out: of the processes that
    are asked about (`mine`), of whoever harms them and whom they harm. `sure`: everything was seen, so that normal may
    be said."""
    found = []
    for stream in sorted(judged.streams, key=lambda s: (s.bad is None, -s.use.added)):
        concerns = mine(stream.use.pid) or any(mine(pid) for pid in stream.hurt)
        if concerns and (sure or stream.bad is not None):
            found.append(_finding("cache.streaming", stream.use, m, stream.bad, stream.harm))
    found = found[:_MOST]
    returns = [*judged.thrash, *((victim, PUSHED_OUT) for victim in judged.victims)]
    concerned = {pid for s in judged.accused for pid in s.hurt if mine(s.use.pid) or any(map(mine, s.hurt))}
    for use, why in [(u, w) for u, w in returns if mine(u.pid) or (w == PUSHED_OUT and u.pid in concerned)][:_MOST]:
        found.append(_finding("cache.thrash", use, m, grade(use, m), why))
    return found


def use_findings(judged: Judged, m: Measures, mine: Callable[[int], bool]) -> list[Finding]:
    """Per process that is asked about, how it fares as a whole: abnormal where others push out what it uses; nothing of
    one that is accused itself."""
    accused = {s.use.pid for s in judged.accused} | {u.pid for u, _ in judged.thrash}
    victims = {u.pid: u for u in judged.victims}
    found = []
    for use in by_process(m):
        if use.pid > 0 and mine(use.pid) and use.pid not in accused and (use.touched or use.added or use.dirtied):
            hurt = grade(use, m) if use.pid in victims else None
            found.append(_finding("cache.use", use, m, hurt, ""))
    return found[:_FINDINGS]


def by_process(m: Measures) -> list[Use]:
    """The uses of each process together, those that brought most in first."""
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
        metrics["refault_pct"] = None  # a share of next to nothing
    # nothing was written, nothing evicted: not worth a word
    silent = {name for name in ("evicted_bytes", "dirtied_bytes", "rate", "accessed_bytes") if not metrics[name]}
    words = {"operations": use.operations, "reason": reason}
    if kind != "cache.use":
        words |= {"files": str(len(use.files)) if len(use.files) > 1 else "", "example": use.example}
    if use.example == use.path or use.example == UNKNOWN_FILE:
        words.pop("example", None)
    path = use.path if kind != "cache.use" and use.path != UNKNOWN_FILE else None
    return Finding(
        kind=kind,
        subject=Subject(type="process" if kind == "cache.use" else "file", pid=use.pid, comm=use.comm, path=path),
        interval=Interval(start_ns=0, end_ns=m.window_ns),
        metrics={name: float(v) for name, v in metrics.items() if v is not None and name not in silent},
        attributes={name: word for name, word in words.items() if word},
        severity=bad or Severity.INFO,
        polarity=Polarity.ABNORMAL if bad else Polarity.NORMAL,
    )
