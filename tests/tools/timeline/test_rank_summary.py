from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from profiles import profile_of

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.collectives import COLLECTIVES
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.rank_data.summary import joined, summarise
from whystall.tools.timeline.rank_data.tables import TABLES
from whystall.tools.timeline.rank_data.work import NAMES_KEPT, OTHERS

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def op(start: int, end: int, name: str, tid: int = 1, step: int = 0) -> tuple[Any, ...]:
    return (start, end, "operator", name, 9, tid, -1, -1, -1, step)


def ranged(start: int, end: int, name: str, step: int = 0) -> tuple[Any, ...]:
    return (start, end, "annotation", name, 9, 1, -1, -1, -1, step)


def kernel(start: int, end: int, correlation: int, step: int, stream: int = 7, kind: str = "kernel") -> tuple[Any, ...]:
    return (start, end, kind, f"k{stream}", 9, 1, 0, stream, correlation, step)


def launch(start: int, correlation: int, step: int) -> tuple[Any, ...]:
    return (start, start + 1, "launch", "cudaLaunchKernel", 9, 1, -1, -1, correlation, step)


def talk(start: int, end: int, step: int = 0, name: str = "all_reduce") -> dict[str, Any]:
    return {
        **dict.fromkeys(COLLECTIVES, -1), "start_ns": start, "end_ns": end, "op": name, "group": "0|0,1", "dtype": "",
        "launch_ns": 0, "step": step, "device": 0, "state": "completed" if end else "started",
    }  # fmt: skip


def talking(profile: Profile, *rows: dict[str, Any]) -> Profile:
    return replace(profile, rank=3, collectives=pl.DataFrame(list(rows), schema=COLLECTIVES))


def steps_of(profile: Profile) -> list[dict[str, Any]]:
    return summarise(profile, "rank3.json").tables["steps"].to_dicts()


def test_work_of_a_host_is_the_union_of_its_outermost_operators() -> None:
    profile = profile_of(
        op(110, 150, "aten::linear"),
        op(120, 140, "aten::mm"),
        op(130, 170, "aten::add", tid=2),
        steps=((100, 200, 0, 9, 1),),
    )
    (step,) = steps_of(profile)
    assert (step["compute_ns"], step["gap_ns"], step["work_count"]) == (60, 40, 2)


def test_communication_and_loading_of_data_are_no_work() -> None:
    profile = profile_of(
        ranged(100, 120, LOADER),
        op(105, 115, "aten::stack"),
        op(120, 150, "autograd::AccumulateGrad"),
        op(130, 140, "c10d::allreduce_"),
        op(132, 138, "record_param_comms"),
        op(133, 134, "aten::inside"),
        op(160, 165, "_c10d_functional::wait_tensor"),
        steps=((100, 200, 0, 9, 1),),
    )
    (step,) = steps_of(talking(profile, talk(135, 180)))
    # 120 to 130 and 140 to 150 work; 135 to 180 communication
    assert step["compute_ns"] == 20
    assert (step["comm_ns"], step["exposed_comm_ns"]) == (45, 35)
    assert (step["loader_ns"], step["gap_ns"]) == (20, 45)
    assert step["compute_ns"] + step["exposed_comm_ns"] + step["gap_ns"] == 100


def test_operators_are_summed_by_name_without_what_is_no_work_in_them() -> None:
    profile = profile_of(
        op(110, 150, "autograd::AccumulateGrad"),
        op(120, 140, "c10d::allreduce_"),
        op(160, 170, "autograd::AccumulateGrad"),
        op(300, 400, "aten::outside", step=-1),
        ranged(100, 105, LOADER),
        steps=((100, 200, 0, 9, 1),),
    )
    found = (
        summarise(profile, "x").tables["operators"].select("kind", "name", "count", "total_ns", "median_ns", "max_ns")
    )
    assert found.rows() == [
        ("operator", "autograd::AccumulateGrad", 2, 30, 15, 20),
        ("loader", LOADER, 1, 5, 5, 5),
    ]


def test_no_name_beyond_those_with_most_time() -> None:
    rows = [op(10 * i, 10 * i + 1 + (i > 5), f"op{i}") for i in range(NAMES_KEPT + 6)]
    found = summarise(profile_of(*rows), "x").tables["operators"]
    assert found.height == NAMES_KEPT + 1
    assert found.row(-1, named=True) | {"rank": 0} == {
        "rank": 0, "kind": "operator", "name": OTHERS, "count": 6, "total_ns": 6, "median_ns": 1, "max_ns": 1,
    }  # fmt: skip
    assert found["total_ns"].sum() == 2 * (NAMES_KEPT + 6) - 6


def test_steps_of_a_device_follow_each_other_without_gaps() -> None:
    """It runs behind: the kernels of step 0 end when the host is far in step 1; a copy ahead moves nothing."""
    profile = profile_of(
        launch(110, 1, 0), kernel(120, 190, 1, 0), launch(130, 2, 0), kernel(190, 260, 2, 0),
        launch(205, 3, 1), kernel(210, 215, 3, 1, stream=9, kind="memcpy"),
        launch(220, 4, 1), kernel(280, 350, 4, 1),
        steps=((100, 200, 0, 9, 1), (200, 300, 1, 9, 1)),
    )  # fmt: skip
    first, second = steps_of(profile)
    assert (first["start_ns"], first["end_ns"]) == (110, 260)  # its first work waited 10 in the queue
    assert (second["start_ns"], second["end_ns"]) == (260, 350)
    assert (first["compute_ns"], first["gap_ns"]) == (140, 10)
    assert (second["compute_ns"], second["gap_ns"]) == (70, 20)
    assert (first["work_count"], second["work_count"]) == (2, 2)


def test_a_collective_behind_the_last_work_belongs_to_its_step() -> None:
    profile = profile_of(
        launch(110, 1, 0), kernel(120, 150, 1, 0), launch(111, 2, 0), kernel(150, 190, 2, 0, 20, "collective"),
        launch(210, 3, 1), kernel(220, 250, 3, 1),
        steps=((100, 200, 0, 9, 1), (200, 260, 1, 9, 1)),
    )  # fmt: skip
    first, second = steps_of(talking(profile, talk(150, 190)))
    assert (first["end_ns"], first["comm_ns"], first["exposed_comm_ns"]) == (190, 40, 40)
    assert (second["start_ns"], second["comm_ns"], second["gap_ns"]) == (190, 0, 30)


def test_launch_delay_is_of_work_that_found_the_device_idle() -> None:
    profile = profile_of(
        launch(110, 1, 0), kernel(118, 150, 1, 0), launch(120, 2, 0), kernel(150, 160, 2, 0),
        launch(170, 3, 0), kernel(180, 190, 3, 0),
        steps=((100, 200, 0, 9, 1),),
    )  # fmt: skip
    assert steps_of(profile)[0]["launch_delay_ns"] == 9  # of 8 and 10


def test_without_steps_there_is_one_for_the_whole_file() -> None:
    (step,) = steps_of(profile_of(op(10, 30, "aten::mm", step=-1), op(50, 60, "aten::mm", step=-1)))
    assert (step["step"], step["start_ns"], step["end_ns"]) == (-1, 10, 60)
    assert (step["compute_ns"], step["gap_ns"], step["work_count"], step["loader_ns"]) == (30, 20, 2, -1)


def test_what_came_before_a_collective() -> None:
    profile = profile_of(
        op(110, 130, "aten::mm"), op(160, 170, "aten::mm"), op(210, 215, "aten::mm", step=1),
        steps=((100, 200, 0, 9, 1), (200, 300, 1, 9, 1)),
    )  # fmt: skip
    profile = talking(
        profile, talk(140, 150), talk(155, 158, name="broadcast"), talk(180, 190), talk(185, 195), talk(220, 230, 1)
    )
    found = summarise(profile, "x").tables["collectives"].select("before_ns", "before_compute_ns", "before_gap_ns")
    # the first counts from the step's start; broadcast makes no rank wait; the fourth began before the third had ended
    assert found.rows() == [(40, 20, 20), (5, 0, 5), (30, 10, 17), (0, 0, 0), (25, 5, 20)]


def test_work_beside_a_collective_counts_once() -> None:
    profile = profile_of(op(110, 150, "aten::mm"), op(160, 170, "aten::mm"), steps=((100, 200, 0, 9, 1),))
    profile = talking(profile, talk(140, 155), talk(145, 180), talk(185, 195))
    found = summarise(profile, "x").tables["collectives"].sort("end_ns")
    # the second began before the first had ended
    assert found["beside_compute_ns"].to_list() == [10, 10, 0]


def test_a_source_without_work_does_not_claim_that_there_was_none() -> None:
    empty = profile_of()
    summary = summarise(talking(empty, talk(100, 200, -1), talk(300, 0, -1)), "dump_3")
    (step,) = summary.tables["steps"].to_dicts()
    assert (step["compute_ns"], step["gap_ns"], step["comm_ns"]) == (-1, -1, 100)
    assert not summary.has_work
    assert summary.span == (100, 300)
    assert summary.tables["collectives"].select("before_ns", "before_compute_ns").rows() == [(0, -1), (100, -1)]


def test_every_table_has_its_columns() -> None:
    summary = summarise(profile_of(op(1, 2, "aten::mm")), "x")
    assert {name: frame.schema for name, frame in summary.tables.items()} == dict(TABLES)


def cycle(start: int, step: int, path: str) -> Any:
    profile = profile_of(
        op(start + 1, start + 3 + step, "aten::mm", step=step), steps=((start, start + 90, step, 9, 1),)
    )
    return summarise(replace(profile, rank=3), path)


def test_cycles_of_one_rank_are_joined() -> None:
    whole = joined([cycle(200, 5, "b.json"), cycle(100, 4, "a.json")])
    assert whole.tables["steps"]["step"].to_list() == [4, 5]
    assert (whole.head["files"], whole.path, whole.span) == (2, "a.json", (100, 290))
    assert whole.tables["operators"].select("count", "total_ns", "max_ns").rows() == [(2, 13, 7)]


@pytest.mark.parametrize(("start", "step"), [(150, 5), (200, 4)], ids=["at one time", "the same step"])
def test_two_traces_of_a_rank_are_refused_by_name(start: int, step: int) -> None:
    with pytest.raises(ToolError, match=r"two traces of rank 3: a\.json and b\.json") as raised:
        joined([cycle(100, 4, "a.json"), cycle(start, step, "b.json")])
    assert raised.value.code is ErrorCode.BAD_ARGUMENT
