"""Make calls of the events of a library's functions: each operation that a rank asked for, began and finished. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from whystall.bpf.collective_symbols import (
    CALL,
    CREATE,
    ENQUEUE,
    EXECUTE,
    FINISH,
    OP_TYPES,
    SIZE,
    TYPE_BYTES,
    Function,
    elements_of,
)
from whystall.bpf.layout import FUNCTION_RETURNED

_MOST_BYTES = 1 << 50
_MOST_SEQ = 1 << 48
# torch's names of operations that differ from ours
_OPS = {
    **{"allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "_allreduce_sparse": "all_reduce"},
    **{"allgather": "all_gather", "_allgather_base": "all_gather", "allgather_coalesced": "all_gather"},
    **{"_reduce_scatter_base": "reduce_scatter", "alltoall": "all_to_all_v", "alltoall_base": "all_to_all"},
    **{"recv_anysource": "recv", "coalesced": "other"},
}
Row = tuple[int, int, int, int, int, str, str, int, int, int, int, int, bool]
"""As the table ``collectives.calls``."""


@dataclass
class _Call:
    """An operation; -1: unknown, of instants 0. `queued`: asked for; `start`: begun; `end`: finished."""

    pid: int
    tid: int
    library: str
    op: str = ""
    queued: int = 0
    start: int = 0
    end: int = 0
    group: int = -1
    context: int = -1
    seq: int = -1
    count: int = -1
    size: int = -1
    peer: int = -1

    def row(self, *, open_: bool) -> Row:
        """Return its row."""
        group = self.group if self.group != -1 else self.context
        numbers = (self.seq, self.count, self.size, self.peer)
        return (
            *(self.start, self.end, self.queued, self.pid, self.tid, self.library, self.op),
            group - (1 << 64) if group >= 1 << 63 else group,
            *numbers,
            open_,
        )


@dataclass
class Calls:
    """`rows`: calls in the order of their end, those that had not ended at last. `before`: calls that had begun before
    the first event and ended later, which have no start. `broken`: calls whose end was not recorded though later ones
    were."""

    rows: list[Row] = field(default_factory=list)
    before: int = 0
    broken: int = 0


def calls_of(events: Iterable[tuple[int, ...]], functions: Sequence[Function], end_ns: int) -> Calls:
    """Return the calls of `events`, as `whystall.bpf.functions.records` yields them, sorted by time; `functions` by
    their number. Calls that are open end at `end_ns`."""
    joining = _Joining()
    for event in events:
        if event[7] < len(functions):
            joining.add(event, functions[event[7]])
    return joining.close(end_ns)


class _Joining:
    """The calls in progress: work objects of torch by process and address, others on a stack per thread."""

    def __init__(self) -> None:
        self._works: dict[tuple[int, int], _Call] = {}
        self._executed: dict[tuple[int, int], _Call] = {}
        self._stacks: dict[tuple[int, int], list[_Call | None]] = {}
        self._result = Calls()

    def add(self, event: tuple[int, ...], function: Function) -> None:
        """Take one event."""
        at, pid, tid, unread = event[0], event[5], event[6], event[9]
        if function.event == CALL:
            if event[8] == FUNCTION_RETURNED:
                self._return(at, pid, tid, function)
                return
            known = _known(event, function, unread)
            self._enter(at, pid, tid, function, known)
            return
        known = _known(event, function, unread)
        if function.event == SIZE:
            _set_size(self._executed.get((pid, tid)), known)
        elif "work" in known:
            self._work(at, pid, tid, function, known)

    def _work(self, at: int, pid: int, tid: int, function: Function, known: dict[str, int]) -> None:
        key = (pid, known["work"])
        call = self._works.get(key)
        if function.event == CREATE:
            if call is not None:
                self._result.broken += 1
            number = known.get("op", -1) & 0xFF
            name = OP_TYPES[number] if "op" in known and number < len(OP_TYPES) else ""
            seq = known.get("seq", -1)
            self._works[key] = _Call(pid, tid, function.library, _OPS.get(name, name), at)
            self._works[key].seq = seq if seq < _MOST_SEQ else -1
            self._works[key].context = known.get("context", -1)
            return
        if call is None:
            call = self._works[key] = _Call(pid, tid, function.library)
        if function.event == ENQUEUE:
            call.queued, call.group = at, known.get("group", -1)
        elif function.event == EXECUTE:
            call.start = at
            self._executed[pid, tid] = call
        elif function.event == FINISH:
            call.end = at
            del self._works[key]
            self._executed.pop((pid, tid), None)
            self._finish(call)

    def _enter(self, at: int, pid: int, tid: int, function: Function, known: dict[str, int]) -> None:
        stack = self._stacks.setdefault((pid, tid), [])
        if stack:  # the library calls itself
            stack.append(None)
            return
        count, kind = known.get("count", -1), known.get("type", -1) & 0xFFFFFFFF
        widths = TYPE_BYTES.get("nccl" if function.library == "rccl" else function.library, ())
        call = _Call(pid, tid, function.library, function.op, at, at, group=known.get("comm", -1))
        call.count = count if 0 <= count < _MOST_BYTES else -1
        if call.count >= 0 and kind < len(widths):
            call.size = call.count * widths[kind]
        call.peer = known.get("peer", -1) & 0x7FFFFFFF if "peer" in known else -1
        stack.append(call)

    def _return(self, at: int, pid: int, tid: int, function: Function) -> None:
        stack = self._stacks.get((pid, tid))
        if not stack:
            self._result.before += 1
            return
        call = stack.pop()
        if call is not None:
            call.end = at
            self._finish(call)

    def _finish(self, call: _Call) -> None:
        if not call.start or not call.op:
            self._result.before += 1
            return
        self._result.rows.append(call.row(open_=False))

    def close(self, end_ns: int) -> Calls:
        """Add the calls that have not ended; those of which only the middle was seen are left out."""
        stacked = (call for stack in self._stacks.values() for call in stack)
        for call in (*self._works.values(), *stacked):
            if call is not None and call.op:
                call.end = end_ns
                self._result.rows.append(call.row(open_=True))
        return self._result


def _known(event: tuple[int, ...], function: Function, unread: int) -> dict[str, int]:
    """Return the values of an event by what they mean, without those that could not be read."""
    return {name: event[1 + place] for place, name in enumerate(function.meaning) if not unread >> place & 1}


def _set_size(call: _Call | None, known: dict[str, int]) -> None:
    """Set the payload of the work that a thread executes, if these options are those of its group and make sense."""
    if call is None or call.context == -1 or known.get("context") != call.context:
        return
    if (found := elements_of(known)) is not None:
        call.count, call.size = found[0], found[0] * found[1]
    elif 0 <= known.get("size", -1) < _MOST_BYTES:
        call.size = known["size"]
