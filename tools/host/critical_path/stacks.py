"""Convert the critical path to stacks: the frames of a thread, its wait, the threads that it waits for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.places import text
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.findings import thread_label
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.world import World


class PathFrame(NamedTuple):
    """One frame. `sort`: ``thread``, ``line``, ``wait`` or `RUNNING`; `text`: the thread or line, the code of the wait,
    or the mode of running; `detail` and `object` as in a row."""

    sort: str
    text: str
    detail: str = ""
    object: str = ""


def path_stacks(world: World, line: Timeline, rows: Sequence[Row]) -> Counter[tuple[PathFrame, ...]]:
    """Return nanoseconds by stack, outermost frame first; together they last as long as the window."""
    weights: Counter[tuple[PathFrame, ...]] = Counter()
    for row in rows:
        places = [PathFrame("line", text(frame)) for frame in reversed(row.place.python)]
        frames = [
            PathFrame("thread", thread_label(world, line.tid)),
            *places,
            _does(row.code, row.mode, row.detail, row.object),
        ]
        followed = 0
        for chain, took in row.chains.items():
            steps = [
                part
                for step in chain
                for part in _frames(thread_label(world, step.tid), step.line, _does(step.code, step.mode, "", ""))
            ]
            weights[tuple(frames + list(_without_repeats(steps)))] += took
            followed += took
        if row.total_ns > followed:
            weights[tuple(frames)] += row.total_ns - followed
    return weights


def _does(code: str, mode: str, detail: str, name: str) -> PathFrame:
    return PathFrame(RUNNING if code == RUNNING else "wait", mode if code == RUNNING else code, detail, name)


def _frames(thread: str, line: str, does: PathFrame) -> Iterator[PathFrame]:
    if thread:
        yield PathFrame("thread", thread)
    if line:
        yield PathFrame("line", line)
    yield does


def _without_repeats(frames: Sequence[PathFrame]) -> Iterator[PathFrame]:
    """Yield frames; the frame of a thread that waits and then runs is not repeated."""
    last: PathFrame | None = None
    for frame in frames:
        if frame != last:
            yield frame
        last = frame
