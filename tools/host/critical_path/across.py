"""What a thread did over time, and the connections of its process to other hosts, so that the centre of a fleet can
follow its waits to the processes at the other ends. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from whystall.tools.contract.result import Model
from whystall.tools.contract.text import path_pattern
from whystall.tools.host.common.timelines import Timeline, Wait
from whystall.tools.host.critical_path.walk import Step
from whystall.tools.host.critical_path.world import World

SLICES = 50
"""Equal parts of the window."""
PERMILLE = 1000
_MOST_PARTS = 16
_MOST_CONNECTIONS = 256
# A thread that may wait on more connections than these waits for nobody in particular.
_MOST_ENDS = 64
# Waits whose object, if it is a connection, is what the thread waits for.
_ON_SOCKETS = frozenset({"socket", "socket_full", "collective", "queue", "events"})
_REST = "rest"


class Connection(Model):
    """An established TCP connection to another host: the process that has it, and its ends as ``10.0.0.1:4000``."""

    pid: Annotated[int, Field(ge=1)]
    local: str
    remote: str


class Part(Model):
    """What the thread did, or the one at the end of its chain of waits (`pid`, 0: not known), for a part of the window.
    `what`, `mode`, `detail`, `line` as in a row of the path; `object`: a file. `ends`: of a wait for another host, the
    connections, as positions in `Across.connections`: it waits on one of them. `slices`: its share of each slice of the
    window, permille."""

    pid: Annotated[int, Field(ge=0)]
    comm: str
    what: str
    mode: str = ""
    detail: str = ""
    line: str = ""
    object: str = ""
    ends: Annotated[list[int], Field(max_length=_MOST_ENDS)] = Field(default_factory=list)
    slices: Annotated[list[Annotated[int, Field(ge=0, le=PERMILLE)]], Field(min_length=SLICES, max_length=SLICES)]


class Across(Model):
    """The account of a thread in time. `cut`: there are more connections than are listed."""

    window_ms: Annotated[float, Field(gt=0, le=1e6)]
    parts: Annotated[list[Part], Field(max_length=_MOST_PARTS + 1)]
    connections: Annotated[list[Connection], Field(max_length=_MOST_CONNECTIONS)]
    cut: bool = False

    @model_validator(mode="after")
    def _ends_exist(self) -> Across:
        if any(not 0 <= end < len(self.connections) for part in self.parts for end in part.ends):
            raise ValueError("an end without a connection")
        return self


class _Key(NamedTuple):
    """What a part is of; `ends`: inodes of sockets."""

    tid: int
    what: str
    mode: str = ""
    detail: str = ""
    line: str = ""
    object: str = ""
    ends: tuple[int, ...] = ()


def across_of(world: World, line: Timeline) -> Across:
    """Return what thread `line` did over time, its longest parts singly."""
    return _Reader(world, line).read()


class _Reader:
    def __init__(self, world: World, line: Timeline) -> None:
        self._world = world
        self._line = line
        self._remote = world.objects.remote_connections()
        self._of_process: dict[int, tuple[int, ...]] = {}
        for inode, row in self._remote.items():
            self._of_process[row["pid"]] = (*self._of_process.get(row["pid"], ()), inode)

    def read(self) -> Across:
        window = self._world.window_ns
        self._world.walk.spent = 0  # the rows used up a part of what may be followed
        parts: dict[_Key, list[int]] = {}
        for number in range(SLICES):
            start, end = window * number // SLICES, window * (number + 1) // SLICES
            for key, took in self._did(start, end):
                parts.setdefault(key, [0] * SLICES)[number] += took
        ordered = sorted(parts, key=lambda key: -sum(parts[key]))
        left = [parts[key] for key in ordered[_MOST_PARTS:]]
        kept = {key: parts[key] for key in ordered[:_MOST_PARTS]}
        if left:
            kept[_Key(0, _REST)] = [sum(of) for of in zip(*left, strict=True)]
        numbers = self._numbers(kept)
        return Across(
            window_ms=window / 1e6,
            parts=[self._part(key, took, numbers) for key, took in kept.items()],
            connections=[self._connection(inode) for inode in numbers],
            cut=len(numbers) < len(self._remote),
        )

    def _numbers(self, parts: dict[_Key, list[int]]) -> dict[int, int]:
        """Return the positions of the connections that are listed: those waited on first, then those of the process."""
        waited = [inode for key in parts for inode in key.ends]
        own = self._of_process.get(self._line.pid, ())
        listed = list(dict.fromkeys([*waited, *own, *self._remote]))[:_MOST_CONNECTIONS]
        return {inode: number for number, inode in enumerate(listed)}

    def _part(self, key: _Key, took: list[int], numbers: dict[int, int]) -> Part:
        world = self._world
        whole = all(inode in numbers for inode in key.ends)  # of a part of them it is not known on which it waits
        pid = world.pid_of(key.tid) if key.tid else 0
        leader = world.lines.get(pid)
        return Part(
            pid=max(pid, 0),
            comm=leader.comm if leader is not None else world.comm(key.tid),
            what=key.what,
            mode=key.mode,
            detail=key.detail,
            line=key.line,
            object=key.object,
            ends=[numbers[inode] for inode in key.ends] if whole else [],
            slices=[min(PERMILLE, PERMILLE * one * SLICES // world.window_ns) for one in took],
        )

    def _connection(self, inode: int) -> Connection:
        row = self._remote[inode]
        return Connection(pid=row["pid"], local=row["local"], remote=row["remote"])

    def _did(self, start: int, end: int) -> Iterator[tuple[_Key, int]]:
        """Yield what the thread did in [start, end), with its time."""
        at = start
        for wait in self._line.waits_within(start, end):
            begin, stop = max(wait.start_ns, start), min(wait.end_ns, end)
            if begin > at:
                yield from self._pieces(None, at, begin)
            yield from self._pieces(wait, begin, stop)
            at = stop
        if end > at:
            yield from self._pieces(None, at, end)

    def _pieces(self, wait: Wait | None, start: int, end: int) -> Iterator[tuple[_Key, int]]:
        for chain, took in self._world.walk.chains(self._line, start, end):
            if chain:
                yield self._key(wait, chain), took

    def _key(self, wait: Wait | None, chain: tuple[Step, ...]) -> _Key:
        step, alone = chain[-1], len(chain) == 1
        what, pid = step.code, self._world.pid_of(step.tid)
        answers = alone and wait is not None and what == "events" and self._world.enders.awaits_server(self._line, wait)
        ends = self._ends(step, pid, unnamed=answers or what == "collective" or (what == "events" and not alone))
        if answers or (what == "events" and ends and not alone):
            what = "socket"  # as in the rows: not an idle poll
        path = path_pattern(step.object) if step.object.startswith("/") else ""
        return _Key(step.tid, what, step.mode, step.detail, step.line, path, ends)

    def _ends(self, step: Step, pid: int, *, unnamed: bool) -> tuple[int, ...]:
        """Return the connections on one of which a step waits. `unnamed`: on any of the process, if its wait does not
        name one."""
        if step.code not in _ON_SOCKETS:
            return ()
        socket = self._world.objects.socket(step.object)
        if socket is not None:
            return (socket["inode"],) if socket["inode"] in self._remote else ()
        ends = self._of_process.get(pid, ()) if unnamed else ()
        return ends if len(ends) <= _MOST_ENDS else ()
