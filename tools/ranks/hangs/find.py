"""Find hangs: which rank did not enter which operation that others wait in, from Flight Recorder dumps.

A rank that has not entered an operation may itself wait in another one. So waits are followed from rank to rank to
those who wait for no other (the roots), or to a cycle (ranks that enter operations in different orders). Ranks without
a dump are never accused, nor are ranks that wait for one of them.

Dumps do not state when they were written, and a running job looks for an instant like a hanging one. It is assumed that
they were written because the job hung, and reported (``dump_instant``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.ranks.hangs.mismatches import Mismatch, mismatches
from whystall.tools.ranks.hangs.progress import Progress, progress_of
from whystall.tools.ranks.hangs.tables import HangRow
from whystall.tools.ranks.job import Job
from whystall.tools.timeline.collectives import SYNCHRONISING
from whystall.tools.timeline.rank_data.rank_list import rank_list
from whystall.tools.timeline.rank_data.wait_graph import roots_and_cycles

ALL_ENTERED = "all_entered"
"""Operations are open that all their ranks entered: the transfer or a device stopped."""
MEMBERS_UNKNOWN = "members_unknown"
"""All ranks known to use a group entered its operation, but the dumps do not list the group's other members."""
DEADLOCK = "deadlock"
"""Ranks wait for each other in a cycle."""
RANKS_MISSING = "ranks_missing"
"""Some wait for ranks without a dump."""
NO_ENTRY = "no_entry"
"""Some wait for ranks whose dump has no entry of the operation, which may be lost."""
DUMPS_EMPTY = "dumps_empty"
"""No dump has an entry or a counter."""
OTHER_ORDER = "mismatch"
"""Ranks of a group entered operations that do not match."""
# Dumps do not state when they were written. The last instant in any of them bounds how long others have waited, and as
# all stop about together the bound is often too small to be useful.
_LEAST_WAIT_NS = 10**9
# Stands for the missing rank in a group whose members are unknown.
_UNKNOWN_RANK = -1
# A hanging job loses all of its time.
_ALL_PCT = 100.0
# Assumed difference between clocks of hosts where instants of different ranks are compared.
_SKEW_NS = 10**9


@dataclass(frozen=True)
class Hangs:
    """The hangs found. Empty rows and findings: none, as far as the dumps show.

    `roots`: ranks that did not enter what others wait in, and wait for no other rank. `circle`: ranks that wait for
    each other. `victims`: did not enter it either, because they wait. `not_finished`: entered, but have not finished
    what others of the group have. `reasons`: codes (`ALL_ENTERED` ...). `notes`: (blind spot, detail).
    """

    rows: list[HangRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    roots: tuple[int, ...] = ()
    circle: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    not_finished: tuple[int, ...] = ()
    mismatched: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def accused(self) -> tuple[int, ...]:
        """The ranks to inspect: roots, ranks of a cycle, those that do not finish or whose operation does not match."""
        return tuple(sorted({*self.roots, *self.circle, *self.not_finished, *self.mismatched}))


@dataclass(frozen=True)
class _Blocked:
    """An operation that `waiting` ranks entered (with the instants) and `lacking` ones with a dump did not.

    `unknown`: members without a dump. `over`: it ended for all who entered it, which without the others is a failure.
    """

    group: str
    label: str
    op: str
    seq: int
    bytes: int
    waiting: Mapping[int, int]
    entered: frozenset[int]
    lacking: frozenset[int]
    unknown: frozenset[int]
    over: bool = False

    @property
    def none_missing(self) -> bool:
        """Whether no rank is known to be missing."""
        return not self.lacking | self.unknown


def hangs(job: Job) -> Hangs:
    """Return the hangs in `job`; empty if no rank has a Flight Recorder dump."""
    progress = progress_of(job)
    if not progress.ranks:
        return Hangs()
    if not progress.of and not progress.oldest_ns and len(progress.ranks) == len(job.present):
        return Hangs(reasons=(DUMPS_EMPTY,))
    odd = mismatches(progress)
    blocked = [found for key in sorted(progress.of) for found in _blocked(key, progress)]
    to_peers = _peers(progress)
    edges: dict[int, set[int]] = {}
    for found in [*blocked, *to_peers]:
        for rank in found.waiting:
            edges.setdefault(rank, set()).update((found.lacking | found.unknown) - {rank} or {_UNKNOWN_RANK})
    lacking = set[int]().union(*(found.lacking for found in blocked))
    # Point-to-point operations have no common counter: only a rank without any open operation is known to be missing.
    idle = {rank for rank in progress.ranks if not _takes_part(rank, progress)}
    lacking |= {rank for found in to_peers for rank in found.lacking if rank in idle}
    roots, circles = roots_and_cycles(edges, lacking)
    # A sender need not wait for its receiver, so pairs that only send do not prove a cycle.
    circle = {rank for ranks in circles if _by_collectives(ranks, blocked) for rank in ranks}
    unfinished = _not_finished(progress, lacking) if lacking or any(found.unknown for found in blocked) else {}
    unseen = _first_of_each(found for found in to_peers if found.unknown)
    shown = [*blocked, *(found for found in to_peers if found.lacking & lacking.union(*circles)), *unseen]
    open_odd = [one for one in odd if one.still_open]
    explained = {one.group for one in open_odd}
    stuck = [] if shown or open_odd else _stuck(progress)
    present = set(progress.ranks)
    undecided = set[int]().union(*(found.unknown for found in shown))
    gone = undecided - present
    reasons = [
        *([DEADLOCK] if circles else []),
        *([OTHER_ORDER] if open_odd else []),
        *([RANKS_MISSING] if gone else []),
        *([NO_ENTRY] if undecided & present else []),
        *([MEMBERS_UNKNOWN] if any(one.none_missing and one.group not in explained for one in blocked) else []),
        *([ALL_ENTERED] if stuck else []),
    ]
    return Hangs(
        rows=[_row(found, progress) for found in sorted([*shown, *stuck], key=_since)],
        findings=[
            *_not_entered(roots, circle, shown, progress),
            *_unfinished_findings(unfinished, progress),
            *(_mismatch(one, progress) for one in odd),
        ],
        roots=tuple(sorted(roots)),
        circle=tuple(sorted(circle)),
        victims=tuple(sorted(lacking - roots - circle)),
        not_finished=tuple(sorted(unfinished)),
        mismatched=tuple(sorted({one.rank for one in open_odd})),
        reasons=tuple(reasons),
        notes=tuple(
            note
            for note, applies in (
                (("ranks_missing", rank_list(gone)), bool(gone)),
                (("group_guessed", "from who used it"), any(group.inferred for group in progress.groups.values())),
                (("dump_instant", ""), any(_waited_s(found, progress) is None for found in shown)),
            )
            if applies
        ),
    )


def _blocked(key: str, progress: Progress) -> Iterable[_Blocked]:
    """Yield where a group stops: its first open operation that a member has not entered, or may not have."""
    # All have entered what one has finished together with all: a dump without it is an earlier one.
    joined = max(state.joined for state in progress.of[key].values())
    of = {rank: state for rank, state in progress.of[key].items() if state.last_entered >= joined}
    others = frozenset(set(progress.groups[key].members) - of.keys())
    numbers = sorted({seq for state in of.values() for seq in state.opened})
    for seq in numbers:
        absent = _absent(key, seq, progress, others)
        lacking = absent | {rank for rank, state in of.items() if state.last_entered < seq}
        unknown = others - absent
        if lacking or unknown or progress.groups[key].inferred:
            # a rank that waits in a later one waits for the same ranks
            waiting = {
                rank: min(at for number, at in state.opened.items() if number >= seq)
                for rank, state in of.items()
                if any(number >= seq for number in state.opened)
            }
            yield _operation(key, seq, progress, waiting, lacking, unknown)
            return
    last = max(state.last_entered for state in of.values())
    lacking = frozenset(rank for rank, state in of.items() if state.last_entered < last)
    if not numbers and lacking and all(of[rank].last_entered == last - 1 for rank in lacking):
        yield from _failed(key, last, progress, lacking, others)


def _absent(key: str, seq: int, progress: Progress, others: frozenset[int]) -> frozenset[int]:
    """Return members without a record of a group that would have one had they entered its operation `seq`: their dump
    has nothing at all, or holds operations from before the others entered this one, which no rank can have finished."""
    rows = progress.collectives.filter((pl.col("group") == key) & (pl.col("seq") == seq))
    entered = rows.select(pl.max_horizontal("launch_ns", "start_ns").min()).item() or 0
    together = bool(rows["op"].is_in(list(SYNCHRONISING)).all())
    return frozenset(
        rank
        for rank in others
        if rank in progress.ranks
        and rank not in progress.of[key]
        and (
            (progress.is_blank(rank) and not progress.says_nothing(rank, key, seq))
            or (together and progress.oldest_ns.get(rank, entered) < entered - _SKEW_NS)
        )
    )


def _failed(
    key: str, seq: int, progress: Progress, lacking: frozenset[int], unknown: frozenset[int]
) -> Iterable[_Blocked]:
    """Yield the last operation of a group, over for those who entered it though it cannot succeed without the others:
    gloo ends operations that timed out so."""
    rows = progress.collectives.filter((pl.col("group") == key) & (pl.col("seq") == seq))
    unproven = rows.filter(pl.col("op").is_in(list(SYNCHRONISING)) & (pl.col("end_ns") == 0))
    if rows.height and unproven.height == rows.height and all(progress.of[key][r].done < seq for r in rows["rank"]):
        found = _operation(key, seq, progress, {}, lacking, unknown)
        yield _Blocked(**(vars(found) | {"over": True}))


def _operation(
    key: str,
    seq: int,
    progress: Progress,
    waiting: Mapping[int, int],
    lacking: frozenset[int],
    unknown: frozenset[int],
) -> _Blocked:
    rows = progress.collectives.filter((pl.col("group") == key) & (pl.col("seq") == seq))
    op = rows["op"].mode().sort()[0] if rows.height else "other"
    size = rows["bytes"].max()
    entered = frozenset(rank for rank, state in progress.of[key].items() if state.last_entered >= seq)
    label = progress.groups[key].label
    return _Blocked(
        group=key,
        label=label,
        op=op,
        seq=seq,
        bytes=size if isinstance(size, int) else -1,
        waiting=waiting,
        entered=entered,
        lacking=lacking,
        unknown=unknown,
    )


def _peers(progress: Progress) -> list[_Blocked]:
    """Return sends and receives that are open on one side, without an open counterpart on the other."""
    found: list[_Blocked] = []
    other = {"send": "recv", "recv": "send"}
    for (rank, peer, op), _ in sorted(progress.p2p_open.items()):
        if op not in other or progress.p2p_open.get((peer, rank, other[op])):
            continue
        rows = progress.p2p_rows.filter((pl.col("rank") == rank) & (pl.col("peer") == peer) & (pl.col("op") == op))
        first = rows.sort("seq").row(0, named=True)
        there = peer in progress.ranks and not progress.says_nothing(peer, first["group"], first["seq"])
        group = progress.groups.get(first["group"])
        found.append(
            _Blocked(
                group=first["group"],
                label=group.label if group else first["group"],
                op=op,
                seq=first["seq"],
                bytes=first["bytes"],
                waiting={rank: max(first["launch_ns"], first["start_ns"])},
                entered=frozenset({rank}),
                lacking=frozenset({peer} if there else ()),
                unknown=frozenset(() if there else {peer}),
            )
        )
    return found


def _first_of_each(found: Iterable[_Blocked]) -> list[_Blocked]:
    """Return of every waiting rank the first it waits in."""
    first: dict[int, _Blocked] = {}
    for one in sorted(found, key=_since):
        for rank in one.waiting:
            first.setdefault(rank, one)
    return list(first.values())


def _by_collectives(ranks: set[int], blocked: Iterable[_Blocked]) -> bool:
    """Return whether any of these ranks waits for another of them in a collective."""
    return any(found.lacking & ranks and found.waiting.keys() & ranks for found in blocked)


def _takes_part(rank: int, progress: Progress) -> bool:
    return any(rank in of and of[rank].opened for of in progress.of.values()) or rank in progress.p2p_rows["rank"]


def _not_finished(progress: Progress, lacking: set[int]) -> dict[int, tuple[str, int, int]]:
    """Return ranks that have open what others of the group finished, with where and by how many: in no group are they
    ahead, and their dump is not merely older, because they entered as much as the others (or are known not to have)."""
    behind: dict[int, tuple[str, int, int]] = {}
    ahead: set[int] = set()
    for key, of in progress.of.items():
        furthest = max(state.done for state in of.values())
        newest = max(state.last_entered for state in of.values())
        for rank, state in of.items():
            number = furthest - state.first_open + 1 if state.first_open else 0
            if number > 0 and (state.last_entered == newest or rank in lacking):
                behind[rank] = max(
                    behind.get(rank, ("", 0, 0)), (key, state.first_open, number), key=lambda one: one[2]
                )
            others = (one.first_open for other, one in of.items() if other != rank and one.first_open)
            if state.done >= min(others, default=state.done + 1):
                ahead.add(rank)
    return {rank: where for rank, where in behind.items() if rank not in ahead}


def _stuck(progress: Progress) -> list[_Blocked]:
    """Return the first open operation of each group, when all entered all of them."""
    found = []
    for key, of in sorted(progress.of.items()):
        first = min((one.first_open for one in of.values() if one.first_open), default=0)
        if first and len(of) > 1:
            waiting = {rank: one.opened[first] for rank, one in of.items() if first in one.opened}
            found.append(_operation(key, first, progress, waiting, frozenset(), frozenset()))
    return found


def _since(found: _Blocked) -> int:
    return min(found.waiting.values(), default=0)


def _waited_s(found: _Blocked, progress: Progress) -> float | None:
    waited = progress.latest_ns - _since(found) if found.waiting and progress.comparable else 0
    return waited / 1e9 if waited >= _LEAST_WAIT_NS else None


def _row(found: _Blocked, progress: Progress) -> HangRow:
    return HangRow(
        group=found.label,
        op=found.op,
        seq=found.seq,
        bytes=found.bytes,
        entered=rank_list(found.entered),
        not_entered=rank_list(found.lacking),
        unknown=rank_list(found.unknown),
        no_dump=rank_list(found.unknown - set(progress.ranks)),
        over=found.over,
        waiting_s=_waited_s(found, progress),
    )


def _not_entered(roots: set[int], circle: set[int], shown: list[_Blocked], progress: Progress) -> Iterable[Finding]:
    """Yield one per rank: the operation most others wait in, of those the first; in a circle one that closes it."""
    for rank in sorted(roots | circle):
        lacked = [found for found in shown if rank in found.lacking]
        if rank in circle:
            lacked = [found for found in lacked if circle & found.waiting.keys()]
        found = max(lacked, key=lambda one: (len(one.entered), -_since(one)))
        waited = _waited_s(found, progress)
        metrics = {"seq": float(found.seq), "waiting": float(len(found.entered)), "window_pct": _ALL_PCT}
        yield Finding(
            kind="rank.not_entered",
            subject=Subject(type="rank", rank=rank),
            interval=_interval(_since(found) or progress.latest_ns, progress),
            metrics=metrics | ({"waiting_s": waited} if waited is not None else {}),
            attributes={"name": found.label, "operation": found.op},
            severity=Severity.CRITICAL,
            polarity=Polarity.ABNORMAL,
        )


def _unfinished_findings(unfinished: Mapping[int, tuple[str, int, int]], progress: Progress) -> Iterable[Finding]:
    for rank, (key, seq, number) in sorted(unfinished.items()):
        yield Finding(
            kind="rank.not_finished",
            subject=Subject(type="rank", rank=rank),
            interval=_interval(progress.of[key][rank].opened.get(seq, progress.latest_ns), progress),
            metrics={"seq": float(seq), "count": float(number), "window_pct": _ALL_PCT},
            attributes={"name": progress.groups[key].label},
            severity=Severity.CRITICAL,
            polarity=Polarity.ABNORMAL,
        )


def _mismatch(one: Mismatch, progress: Progress) -> Finding:
    # Where neither side is the rule, each is named and neither held to be wrong.
    severity = Severity.CRITICAL if one.still_open and not one.even else Severity.MAJOR
    return Finding(
        kind="rank.mismatch",
        subject=Subject(type="rank", rank=one.rank),
        interval=_interval(one.at_ns, progress),
        metrics={"seq": float(one.seq)},
        attributes={
            "name": progress.groups[one.group].label,
            "operation": one.op,
            "what": one.what,
            "expected": one.expected,
            "found": one.found,
        },
        severity=severity,
        polarity=Polarity.ABNORMAL,
    )


def _interval(start_ns: int, progress: Progress) -> Interval:
    start = max(start_ns, 0)
    return Interval(start_ns=start, end_ns=max(progress.latest_ns, start))
