"""Lay out the critical path in time: what the thread, and each thread on its chains of waits, did in order. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.critical_path.rows import ABSENT, Row
from whystall.tools.host.critical_path.world import World

MOST_LANES = 12
MOST_SPANS = 5000
"""In a lane with more spans, short ones are joined."""
_CPU = "cpu"


class Span(NamedTuple):
    """What a thread did from `start_ns` to `end_ns`: `code` is a wait's, `RUNNING` or `ABSENT`. `line`: of the program;
    `inner`: the innermost line of Python. `by`: the thread that ended the wait, 0 if none or not known. `joined`:
    number of short spans that were merged into it; its values are those of the longest."""

    start_ns: int
    end_ns: int
    code: str
    detail: str = ""
    line: str = ""
    inner: str = ""
    object: str = ""
    by: int = 0
    joined: int = 1


@dataclass
class PathLane:
    """The spans of one thread, in order."""

    thread: Timeline
    spans: list[Span] = field(default_factory=list)


def path_lanes(world: World, line: Timeline, rows: Sequence[Row]) -> tuple[list[PathLane], int]:
    """Return the lanes of the path of thread `line`: its own first, then those with most time on it, at most
    `MOST_LANES`; and the number of threads left out."""
    time: Counter[int] = Counter()
    for row in rows:
        for chain, took in row.chains.items():
            for tid in {step.tid for step in chain}:
                time[tid] += took
    time.pop(line.tid, None)
    others = [world.lines[tid] for tid, _ in time.most_common() if tid in world.lines]
    shown = [line, *others[: MOST_LANES - 1]]
    return [PathLane(one, _joined(list(_spans(world, one)), world.window_ns)) for one in shown], len(others) + 1 - len(
        shown
    )


def _spans(world: World, line: Timeline) -> Iterator[Span]:
    begin, end = line.alive
    if begin > 0:
        yield Span(0, begin, ABSENT)
    at = begin
    for wait in line.waits:
        if wait.start_ns > at:
            yield _ran(line, at, wait.start_ns)
        if wait.awake_ns > wait.start_ns:
            yield _waited(world, line, wait)
        if wait.end_ns > wait.awake_ns:
            place = wait.place
            who = f"{wait.ran_comm} ({wait.ran_pid})" if wait.ran_pid > 0 else ""
            yield Span(wait.awake_ns, wait.end_ns, _CPU, who, place.line, place.code)
        at = max(at, wait.end_ns)
    if end > at:
        yield _ran(line, at, end)
    if end < world.window_ns:
        yield Span(max(end, at), world.window_ns, ABSENT)


def _ran(line: Timeline, start: int, end: int) -> Span:
    places = Counter(sample.place for sample in line.samples_within(start, end))
    if places:
        place = places.most_common(1)[0][0]
        return Span(start, end, RUNNING, "", place.line, place.code)
    return Span(start, end, RUNNING, "", line.line_near((start + end) // 2))


def _waited(world: World, line: Timeline, wait: Wait) -> Span:
    kind, place = world.kind(line, wait), wait.place
    long = wait.awake_ns - wait.start_ns >= 2 * world.window_ns // MOST_SPANS
    other = world.enders.waker(line, wait, kind.code) if long or len(line.waits) <= MOST_SPANS // 2 else None
    return Span(
        *(wait.start_ns, wait.awake_ns, kind.code, kind.detail),
        *(place.line, place.code, wait.path or world.objects.name(wait.object)),
        by=other.tid if other is not None else 0,
    )


def _joined(spans: list[Span], window_ns: int) -> list[Span]:
    """Join spans that begin in the same piece of the window and are shorter than it, if there are too many."""
    if len(spans) <= MOST_SPANS:
        return spans
    width = max(2 * window_ns // MOST_SPANS, 1)
    found: list[Span] = []
    pieces: dict[int, list[Span]] = {}
    for span in spans:
        if span.end_ns - span.start_ns >= width:
            found.append(span)
        else:
            pieces.setdefault(span.start_ns // width, []).append(span)
    for few in pieces.values():
        longest = max(few, key=lambda span: span.end_ns - span.start_ns)
        found.append(longest._replace(start_ns=few[0].start_ns, end_ns=few[-1].end_ns, joined=len(few)))
    return sorted(found)
