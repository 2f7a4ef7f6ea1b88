"""Events of functions become calls: of C functions by their return, of torch's gloo by its work objects."""

from __future__ import annotations

from typing import Any

import polars as pl

from whystall.bpf.collective_symbols import CALL, CREATE, ENQUEUE, EXECUTE, FINISH, SIZE, Function
from whystall.tools.collect.collective_calls import Calls, calls_of
from whystall.tools.collect.tables import COLLECTORS

CREATED = Function("gloo", "create", CREATE, "", ("work", "context", "op", "seq"))
QUEUED = Function("gloo", "enqueue", ENQUEUE, "", ("work", "group"))
BEGUN = Function("gloo", "execute", EXECUTE, "", ("work",))
ENDED = Function("gloo", "finish", FINISH, "", ("work",))
SIZED = Function("gloo", "allreduce", SIZE, "", ("context", "first", "second", "third"))
BUFFER = Function("gloo", "broadcast", SIZE, "", ("context", "size"))
REDUCE = Function("nccl", "ncclAllReduce", CALL, "all_reduce", ("count", "type", "comm"), returns=True)
SEND = Function("hccl", "HcclSend", CALL, "send", ("count", "type", "comm", "peer"), returns=True)
MPI = Function("mpi", "MPI_Bcast", CALL, "broadcast", ("count", "type", "comm"), returns=True)
FUNCTIONS = (CREATED, QUEUED, BEGUN, ENDED, SIZED, BUFFER, REDUCE, SEND, MPI)
ALL_REDUCE, BROADCAST = 1, 0


def event(
    at: int, function: Function, *values: int, tid: int = 7, pid: int = 7, ret: bool = False, unread: int = 0
) -> Any:
    four = (*values, 0, 0, 0, 0)[:4]
    return (at, *four, pid, tid, FUNCTIONS.index(function), int(ret), unread)


def rows(*events: Any, end: int = 1000) -> tuple[list[dict[str, Any]], Calls]:
    found = calls_of(sorted(events), FUNCTIONS, end)
    table = pl.DataFrame(found.rows, COLLECTORS["collectives"]["calls"], orient="row")
    return list(table.iter_rows(named=True)), found


def test_a_work_object_is_followed_from_thread_to_thread() -> None:
    (call,), found = rows(
        event(10, CREATED, 0xA, 0xC, ALL_REDUCE, 41),
        event(12, QUEUED, 0xA, 0xF),
        event(20, BEGUN, 0xA, tid=8),
        event(22, SIZED, 0xC, 0x7F0000000000, 1000, 4, tid=8),
        event(90, ENDED, 0xA, tid=8),
    )
    assert (call["queued_ns"], call["start_ns"], call["end_ns"], call["tid"]) == (12, 20, 90, 7)
    assert (call["op"], call["group"], call["seq"], call["count"], call["bytes"]) == ("all_reduce", 0xF, 41, 1000, 4000)
    assert (call["open"], found.before, found.broken) == (False, 0, 0)


def test_a_size_counts_only_for_the_work_of_its_group() -> None:
    begun = [event(10, CREATED, 0xA, 0xC, BROADCAST, 1), event(20, BEGUN, 0xA), event(90, ENDED, 0xA)]
    assert rows(*begun, event(21, BUFFER, 0xC, 256))[0][0]["bytes"] == 256
    assert rows(*begun, event(21, BUFFER, 0xD, 256))[0][0]["bytes"] == -1
    assert rows(*begun, event(21, BUFFER, 0xC, 256, tid=9))[0][0]["bytes"] == -1
    assert rows(*begun, event(21, BUFFER, 0xC, 1 << 60))[0][0]["bytes"] == -1
    assert rows(*begun, event(21, BUFFER, 0xC, 256, unread=2))[0][0]["bytes"] == -1


def test_calls_that_began_before_are_counted_and_left_out() -> None:
    calls, found = rows(
        event(10, ENDED, 0xA),
        event(20, BEGUN, 0xB),
        event(30, ENDED, 0xB),
        event(40, REDUCE, ret=True),
        event(50, QUEUED, 0xD, 0xF),
    )
    assert (calls, found.before) == ([], 3)


def test_calls_in_progress_are_open() -> None:
    calls, _ = rows(
        event(10, CREATED, 0xA, 0xC, ALL_REDUCE, 41),
        event(20, CREATED, 0xB, 0xC, ALL_REDUCE, 42),
        event(30, BEGUN, 0xB),
        event(40, REDUCE, 16, 7, 0x9, tid=3),
    )
    assert [(call["seq"], call["start_ns"], call["end_ns"], call["open"]) for call in calls] == [
        (41, 0, 1000, True),
        (42, 30, 1000, True),
        (-1, 40, 1000, True),
    ]


def test_a_lost_end_is_counted_when_the_object_is_used_again() -> None:
    calls, found = rows(
        event(10, CREATED, 0xA, 0xC, ALL_REDUCE, 1),
        event(20, CREATED, 0xA, 0xC, ALL_REDUCE, 2),
        event(30, BEGUN, 0xA),
        event(40, ENDED, 0xA),
    )
    assert ([call["seq"] for call in calls], found.broken) == ([2], 1)


def test_functions_in_c_have_sizes_by_their_types_and_outermost_calls_count() -> None:
    calls, found = rows(
        event(10, REDUCE, 16, 7, 0xFFFF_8000_0000_0000),  # a float32 is number 7
        event(20, REDUCE, ret=True),
        event(30, SEND, 8, 3, 0x5, 2),  # fp16 is number 3
        event(35, SEND, ret=True),
        event(40, MPI, 5, 0x4C000101, 0x44000000),
        event(41, MPI, 5, 0x4C000101, 0x44000000),  # MPI calls itself
        event(42, MPI, ret=True),
        event(50, MPI, ret=True),
    )
    assert [(c["op"], c["count"], c["bytes"], c["peer"]) for c in calls] == [
        ("all_reduce", 16, 64, -1),
        ("send", 8, 16, 2),
        ("broadcast", 5, -1, -1),
    ]
    assert [(c["start_ns"], c["end_ns"]) for c in calls] == [(10, 20), (30, 35), (40, 50)]
    assert calls[0]["group"] == 0xFFFF_8000_0000_0000 - (1 << 64)
    assert found.before == 0


def test_values_without_sense_are_unknown() -> None:
    calls, _ = rows(
        event(10, CREATED, 0xA, 0xC, 255, 1 << 63),
        event(20, BEGUN, 0xA),
        event(30, ENDED, 0xA),
        event(40, REDUCE, 1 << 62, 99, 1),
        event(50, REDUCE, ret=True),
    )
    assert [(c["op"], c["count"], c["bytes"]) for c in calls] == [("all_reduce", -1, -1)]
