"""What the thread that makes progress did in each step, and what the threads did that it waited for: in two recordings,
as accounts that `whystall.tools.history.path_changes` compares. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from whystall.tools.collect.continuous_budget import Limits, wake_min_of
from whystall.tools.collect.slice_waits import role_of
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import path_pattern
from whystall.tools.history.path_changes import Account, Chain, Did, PathKey, changes_of
from whystall.tools.history.path_data import PathDifference, PathSpan
from whystall.tools.history.summary import at_text
from whystall.tools.host.common.held import HELD_WAITS
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.timelines import Timeline, complete_until
from whystall.tools.host.critical_path.choose import choose_thread
from whystall.tools.host.critical_path.comparable import differences, little_in_common, refusal
from whystall.tools.host.critical_path.findings import chain_text, thread_label
from whystall.tools.host.critical_path.moved_lines import moved_lines, moved_text, without_number
from whystall.tools.host.critical_path.rows import ENDED_BY_TIME, INODE_NAMES, wait_code
from whystall.tools.host.critical_path.steps import Instants, common_steps, observed
from whystall.tools.host.critical_path.walk import NOT_FOLLOWED, Step
from whystall.tools.host.critical_path.world import World
from whystall.tools.host.critical_path.worlds import world_of
from whystall.tools.recording.store import Recording

_FULL_NS = Limits().min_ns
"""The threshold of waits of the watch, unless it has lowered its detail."""
_PARTS, _SHORTEST_PART_NS = 48, 50_000_000  # of the shorter window, without steps
_MOST_PARTS = 4096
_WITHOUT_CPU = ("cpu", "quota")


class _Side(NamedTuple):
    """`moved`: see `moved_lines`."""

    recording: Recording
    world: World
    line: Timeline
    moved: Mapping[str, str]


class _Part(NamedTuple):
    """What the thread did for `took` ns, and what the threads did that it waited for; `ran`: pid and name of who had
    the CPU."""

    does: Step
    chain: tuple[Step, ...]
    took: int
    ran: tuple[int, str] = (0, "")


def path_difference(
    before: Recording, after: Recording, top: int = 10, tid: int | None = None
) -> tuple[PathDifference | None, list[BlindSpot]]:
    """Return by how much the account of the thread that makes progress, or of thread `tid` of `after`, differs between
    two recordings, its `top` rows, and what could not be compared; None: nothing could."""
    if (why := refusal(before, after)) is not None:
        return None, [why]
    both, spots = [before, after], differences(before, after)
    if not all(one.has("objects") for one in both):  # else the same wait would have another name in one of them
        spots.append(BlindSpot(code="objects_not_read", detail="baseline" if after.has("objects") else ""))
        both = [_without_objects(one) for one in both]
    least = {_option(one, "switches", "min_ns") for one in both}
    periods = {_option(one, "samples", "period_ns") for one in both}
    min_ns, wake_ns = max(least), wake_min_of(max(least))
    if min_ns > _FULL_NS or len(periods) > 1:
        spots.append(BlindSpot(code="path_lowered", detail=f"{min_ns / 1e6:g} ms, {wake_ns / 1e6:g} ms"))
    worlds = [world_of(one, min_ns, wake_ns) for one in both]
    chosen, names = _threads(both, worlds, tid)
    if chosen is None:
        return None, [BlindSpot(code="path_other_thread", detail=names)]
    moved: Mapping[str, str] = {}
    if not _same_process(both, chosen):
        spots.append(BlindSpot(code="path_one_run"))
        moved = moved_lines(worlds[0], worlds[1])
    if moved:
        spots.append(BlindSpot(code="path_lines_moved", detail=moved_text(moved)))
    sides = [_Side(*one) for one in zip(both, worlds, chosen, (moved, {}), strict=True)]
    steps = common_steps((worlds[0], chosen[0]), (worlds[1], chosen[1]), moved)
    found_edges = steps[1] if steps is not None else _even(sides)
    edges = [_whole(side, of) for side, of in zip(sides, found_edges, strict=True)]
    if any(len(of) < 2 for of in edges):
        return None, [BlindSpot(code="path_gap")]
    accounts = [
        _account(side, of, per_second=steps is None, lines=len(periods) == 1)
        for side, of in zip(sides, edges, strict=True)
    ]
    if not all(account.parts.shape[1] for account in accounts):
        return None, [BlindSpot(code="path_gap")]
    if (other := little_in_common(accounts[0], accounts[1])) is not None:
        spots.append(other)
    found = changes_of(accounts[0], accounts[1])
    spans = [_span(side, of, account) for side, of, account in zip(sides, edges, accounts, strict=True)]
    victim = chosen[1]
    return PathDifference(
        pid=victim.pid,
        tid=victim.tid,
        comm=victim.comm,
        unit="second" if steps is None else "step",
        step_line=steps[0].line if steps is not None else "",
        before=spans[0],
        after=spans[1],
        step=found.step if steps is not None else None,
        rows=found.rows[:top],
        left_out=max(0, len(found.rows) - top),
        tested=found.tested,
        changed=found.changed,
    ), spots


def _without_objects(recording: Recording) -> Recording:
    kept = {name: entry for name, entry in recording.manifest.collectors.items() if name != "objects"}
    return Recording(recording.manifest.model_copy(update={"collectors": kept}), recording.tables())


def _option(recording: Recording, collector: str, name: str) -> int:
    entry = recording.manifest.collectors.get(collector)
    return entry.options.get(name, 0) if entry is not None else 0


def _threads(both: Sequence[Recording], worlds: Sequence[World], tid: int | None) -> tuple[list[Timeline] | None, str]:
    """Return the thread that makes progress in the later recording, or thread `tid` of it, and before it the same one,
    or one of the same role, in the earlier one; None if there is none, with the names of those that differ."""
    made = [choose_thread(world, one.manifest.target.pid) for one, world in zip(both, worlds, strict=True)]
    lines = [choice.line if choice is not None else None for choice in made]
    line = worlds[1].lines.get(tid) if tid is not None else lines[1]
    names = " / ".join(one.comm if one is not None else "-" for one in (lines[0], line))
    if line is None:
        return None, names
    same = worlds[0].lines.get(line.tid) if both[0].manifest.host == both[1].manifest.host else None
    if same is not None and same.pid == line.pid and _role(same) == _role(line):
        return [same, line], names
    earlier = lines[0]
    if tid is not None:  # one that was asked for need not be the one that makes progress
        alike = [one for one in worlds[0].lines.values() if one.pid in worlds[0].target and _role(one) == _role(line)]
        earlier = alike[0] if len(alike) == 1 else earlier
    return ([earlier, line] if earlier is not None and _role(earlier) == _role(line) else None), names


def _role(line: Timeline) -> tuple[str, bool]:
    return role_of(line.comm.encode()), line.tid == line.pid


def _same_process(both: Sequence[Recording], chosen: Sequence[Timeline]) -> bool:
    """Return whether both threads are of one process, whose code is the same: by its start, if that was recorded."""
    if both[0].manifest.host != both[1].manifest.host or chosen[0].pid != chosen[1].pid:
        return False
    starts = [_started(one, line.pid) for one, line in zip(both, chosen, strict=True)]
    return None in starts or starts[0] == starts[1]


def _started(recording: Recording, pid: int) -> int | None:
    rows = recording.find("proc.processes")
    found = rows.filter(pl.col("pid") == pid)["start_ticks"].to_list() if rows is not None else []
    return found[0] if found else None


def _even(sides: Sequence[_Side]) -> tuple[Instants, ...]:
    """Return the edges of equal parts of the time in which each thread was observed."""
    ends = [observed(side.line) for side in sides]
    lengths = [end - start for start, end in ends]
    part = max(min(lengths) // _PARTS, max(lengths) // _MOST_PARTS, _SHORTEST_PART_NS)
    return tuple(np.arange(start, end + 1, part, dtype=np.int64) for start, end in ends)


def _whole(side: _Side, edges: Instants) -> list[int]:
    """Return the edges up to which the recording has every wait."""
    until = complete_until(side.recording)
    return [int(edge) for edge in edges if edge <= until]


def _account(side: _Side, edges: Sequence[int], *, per_second: bool, lines: bool) -> Account:
    """Return the account of the steps between `edges`. `lines`: with the functions that ran."""
    cells: dict[PathKey, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    ends: dict[PathKey, Counter[_Part]] = defaultdict(Counter)
    count = 0
    for number, (start, end) in enumerate(pairwise(edges)):
        parts = list(_parts(side.world, side.line, start, end))
        if side.world.walk.exhausted:  # the ends of further chains are not known
            break
        count += 1
        for part in parts:
            key = _key(side, part, lines)
            cells[key][number] += part.took
            if key.who:
                ends[key][part._replace(took=0)] += part.took
    keys = tuple(cells)
    made = np.zeros((len(keys), count))
    for at, key in enumerate(keys):
        for number, took in cells[key].items():
            made[at, number] = took
    unit = np.diff(np.array(edges[: count + 1], np.float64)) if per_second else np.full(count, 1e9)
    return Account(keys, made / unit, {key: _chain(side, found.most_common(1)[0][0]) for key, found in ends.items()})


def _chain(side: _Side, part: _Part) -> Chain:
    if not part.chain:
        return Chain(by=f"{part.ran[1]} ({part.ran[0]})")
    first, last = (thread_label(side.world, part.chain[at].tid) for at in (0, -1))
    return Chain(last, first, chain_text(side.world, part.chain))


def _parts(world: World, line: Timeline, start: int, end: int) -> Iterator[_Part]:
    """Yield what thread `line` did in [start, end), as the rows of its path have it, and who it waited for."""
    at = start
    for wait in line.waits_within(start, end):
        begin, stop = max(wait.start_ns, start), min(wait.end_ns, end)
        yield from _ran(world, line, at, begin)
        awake = min(max(wait.awake_ns, begin), stop)
        if awake > begin:
            kind = world.kind(line, wait)
            code = wait_code(world, line, wait, kind)
            name = wait.path or wait.object or world.object_at_end(line, wait)
            does = Step(line.tid, code, "", kind.detail, wait.place.line, name)
            other = world.enders.waker(line, wait, kind.code)
            if other is None or code in (*ENDED_BY_TIME, *HELD_WAITS):
                yield _Part(does, (), awake - begin)
            else:
                for chain, took in world.walk.answers(other, begin, awake, (line.tid,)):
                    yield _Part(does, chain, took)
        if stop > awake:
            yield _Part(Step(line.tid, "cpu", "", "", "", ""), (), stop - awake, (wait.ran_pid, wait.ran_comm))
        at = stop
    yield from _ran(world, line, at, end)


def _ran(world: World, line: Timeline, start: int, end: int) -> Iterator[_Part]:
    if end > start:
        for chain, took in world.walk.chains(line, start, end):
            yield _Part(chain[0], chain[1:], took)


def _key(side: _Side, part: _Part, lines: bool) -> PathKey:
    world, own = side.world, side.line.pid
    does = _did(side, part.does, lines)
    if not part.chain:
        pid, comm = part.ran
        return PathKey(does, _who(pid, comm, own) if pid > 0 else "")
    root = part.chain[-1]
    if root.code == NOT_FOLLOWED or root.tid <= 0:
        return PathKey(does, "", Did("unknown"))
    return PathKey(does, _who(world.pid_of(root.tid), world.comm(root.tid), own), _did(side, root, lines))


def _who(pid: int, comm: str, own: int) -> str:
    return f"{'thread' if pid == own else 'process'} {role_of(comm.encode())}"


def _did(side: _Side, step: Step, lines: bool) -> Did:
    """Return what a step is counted as: of a thread that ran, or could, the function."""
    line = side.moved.get(step.line, step.line)
    if step.code == RUNNING or step.code in _WITHOUT_CPU:
        line = without_number(line) if lines and step.code == RUNNING else ""
    name = side.world.objects.name(step.object)
    name = "" if name.startswith(INODE_NAMES) else path_pattern(name) if name.startswith("/") else name
    return Did(step.code, step.mode, step.detail, line, name)


def _span(side: _Side, edges: Sequence[int], account: Account) -> PathSpan:
    """Return the part of a recording that was compared."""
    count = account.parts.shape[1]
    try:
        began = datetime.fromisoformat(side.recording.manifest.started.replace("Z", "+00:00"))
    except ValueError:
        began = datetime.fromtimestamp(0, timezone.utc)
    if began.tzinfo is None:
        began = began.replace(tzinfo=timezone.utc)
    start = int(began.timestamp() * 1e9)
    return PathSpan(since=at_text(start + edges[0]), until=at_text(start + edges[count]), count=count)
