"""Ascend profiles: the same job as text and as database gives the same activities."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ascend_job import (
    BEGIN,
    DEVICE,
    MAIN,
    PID,
    QUEUE,
    database,
    profiler_info,
    text_directory,
    timeline,
)

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.ascend import db as ascend_db
from whystall.tools.timeline.ascend import directory as ascend
from whystall.tools.timeline.ascend import text as ascend_text
from whystall.tools.timeline.ascend.info import Info
from whystall.tools.timeline.profile import Profile

Row = tuple[Any, ...]


@pytest.fixture
def text(tmp_path: Path) -> Profile:
    return ascend.read(text_directory(tmp_path))


@pytest.fixture
def db(tmp_path: Path) -> Profile:
    output = tmp_path / "h_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    database(output / "ascend_pytorch_profiler_3.db")
    (output.parent / "profiler_info_3.json").write_text(json.dumps(profiler_info()))
    return ascend.read(output.parent)


def rows(profile: Profile, *kinds: str) -> list[Row]:
    frame = profile.activities.filter(pl.col("kind").is_in(kinds))
    return frame.select("name", pl.col("start_ns") - BEGIN, pl.col("end_ns") - BEGIN, "tid", "step").rows()


def test_text_and_database_agree(text: Profile, db: Profile) -> None:
    columns = ["start_ns", "end_ns", "kind", "name", "pid", "tid", "device", "stream", "correlation", "step"]
    recorded = pl.col("kind") != "other"
    ours = text.activities.filter(recorded).sort(columns)
    expected_side = db.activities.filter(recorded).sort(columns)
    # the database gives framework operators no correlation either
    assert ours.rows() == expected_side.rows()
    assert (text.source, db.source) == ("ascend_text", "ascend_db")
    assert text.steps.rows() == db.steps.rows()


@pytest.mark.parametrize("form", ["text", "db"])
def test_what_the_job_did(form: str, request: pytest.FixtureRequest) -> None:
    profile: Profile = request.getfixturevalue(form)
    assert rows(profile, "annotation") == [("ProfilerStep#50", 0, 900_000, MAIN, 50)]
    assert rows(profile, "operator") == [
        ("aten::mm", 10_130, 50_130, MAIN, 50),
        ("aclnnMm", 15_000, 45_000, MAIN, 50),
        ("HcclAllreduce", 60_000, 90_000, MAIN, 50),
    ]
    assert rows(profile, "python") == [("train.py(3): main", 1_000, 899_000, MAIN, 50)]
    assert rows(profile, "launch") == [
        ("Node@launch", 100_000, 180_000, QUEUE, 50),
        ("AscendCL@aclrtMemcpyAsync", 200_000, 204_000, QUEUE, 50),
        ("AscendCL@aclopCompileAndExecute", 220_000, 230_000, QUEUE, 50),  # it enqueued a copy
        ("Node@launch", 905_000, 931_460, QUEUE, -1),
    ]
    assert rows(profile, "sync") == [
        ("AscendCL@aclrtSynchronizeStreamWithTimeout", 300_000, 890_000, MAIN, 50),
        ("AscendCL@aclrtMemcpy", 891_000, 895_000, MAIN, 50),
    ]
    assert rows(profile, "collective") == [("hcom_allReduce__586_0_1", 244_000, 801_000, QUEUE, 50)]
    assert rows(profile, "memcpy") == [
        ("MEMCPY_ASYNC", 240_000, 840_077, QUEUE, 50),
        ("MEMCPY_ASYNC", 850_000, 851_000, QUEUE, 50),
    ]


@pytest.mark.parametrize("form", ["text", "db"])
def test_a_kernel_belongs_to_the_step_of_its_operator_though_a_queue_launched_it_later(
    form: str, request: pytest.FixtureRequest
) -> None:
    profile: Profile = request.getfixturevalue(form)
    assert rows(profile, "kernel") == [
        ("aclnnMul_Mul", 860_000, 861_000, -1, -1),
        ("aclnnMm_MatMulCommon_MatMulV2", 940_000, 993_741, QUEUE, 50),
    ]
    assert profile.notes == (("launch_unknown", "1 of 5"),)


@pytest.mark.parametrize("form", ["text", "db"])
def test_devices_streams_and_processes(form: str, request: pytest.FixtureRequest) -> None:
    profile: Profile = request.getfixturevalue(form)
    work = profile.activities.filter(pl.col("kind").is_in(["kernel", "memcpy", "collective"]))
    assert set(work["device"]) == {DEVICE}
    # a collective is listed without a stream: its tasks have it
    assert dict(work.select("name", "stream").rows())["hcom_allReduce__586_0_1"] == 4
    host = profile.activities.filter(pl.col("kind").is_in(["operator", "launch", "sync"]))
    assert set(host["pid"]) == {PID}
    assert set(host["device"]) == {-1}
    assert (profile.rank, profile.clock) == (3, "real")


def test_derived_lanes_and_parts_of_a_collective_are_not_counted_twice(text: Profile) -> None:
    names = text.activities["name"].to_list()
    assert "Computing" not in names
    assert "Notify_Wait" not in names
    assert set(text.activities.filter(pl.col("name").is_in(["Notify Wait", "SDMA"]))["kind"]) == {"other"}


def test_later_versions_call_the_section_communication(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(timeline(communication="Communication")))
    assert rows(ascend_text.read([path], Info(), "ascend_text"), "collective")[0][0] == "hcom_allReduce__586_0_1"


def test_a_timeline_without_calls_takes_threads_and_steps_from_the_operators(tmp_path: Path) -> None:
    """Level 0 leaves CANN out."""
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([event for event in timeline() if "@" not in event["name"] or "cat" in event]))
    profile = ascend_text.read([path], Info(), "ascend_text")
    assert rows(profile, "launch") == []
    assert rows(profile, "kernel")[-1] == ("aclnnMm_MatMulCommon_MatMulV2", 940_000, 993_741, MAIN, 50)
    assert rows(profile, "collective") == [("hcom_allReduce__586_0_1", 244_000, 801_000, MAIN, 50)]


def test_a_process_number_of_another_make_is_not_taken_apart(tmp_path: Path) -> None:
    events = [{**event, "pid": 5} if event["pid"] == PID << 10 | 13 << 5 | DEVICE else event for event in timeline()]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    kernels = ascend_text.read([path], Info(), "ascend_text").activities.filter(kind="kernel")
    assert set(kernels["device"]) == {0}


def test_tasks_without_any_details_are_reported_by_their_type(tmp_path: Path) -> None:
    path = tmp_path / "ascend_pytorch_profiler.db"
    database(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE COMPUTE_TASK_INFO")
    kernels = rows(ascend_db.read(path, Info(), "ascend_db"), "kernel")
    assert [row[0] for row in kernels] == ["MIX_AIV", "KERNEL_AICORE"]


def test_the_rank_of_a_database_alone(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database(path)
    assert ascend_db.read(path, Info(), "ascend_db").rank == 3


def test_hostile_texts_of_a_database_are_inert(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE STRING_IDS SET value = CAST(x'1b5b33316dff' AS TEXT) WHERE value = 'aten::mm'")
    names = [row[0] for row in rows(ascend_db.read(path, Info(), "ascend_db"), "operator")]
    assert "\\x1b[31m\\xff" in names


def test_values_of_another_type_cost_their_row(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE TASK SET startNs = 'soon' WHERE streamId = 4")
    assert ("odd_events", "2") in ascend_db.read(path, Info(), "ascend_db").notes


def test_a_view_of_a_stranger_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database(path)
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(TASK)")]
        connection.execute("DROP TABLE TASK")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000)"
        connection.execute(f"CREATE VIEW TASK AS {endless} SELECT {', '.join(f'i AS {c}' for c in columns)} FROM n")
    work = ascend_db.read(path, Info(), "ascend_db").activities.filter(pl.col("device") >= 0)
    assert work["kind"].to_list() == ["collective"]


@pytest.mark.parametrize("apart", [True, False])
def test_a_kernel_that_is_a_collective_counts_once(tmp_path: Path, apart: bool) -> None:
    """Small ones run as one kernel on the vector cores."""
    task = next(event for event in timeline() if event["name"] == "aclnnMul_Mul") | {"name": "hcom_broadcast_AivKernel"}
    others = [event for event in timeline() if apart or not event["name"].startswith("hcom_")]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([*others, task]))
    names = [row[0] for row in rows(ascend_text.read([path], Info(), "ascend_text"), "collective")]
    assert names == (["hcom_allReduce__586_0_1"] if apart else ["hcom_broadcast_AivKernel"])


def test_nothing_is_written_beside_a_database(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    before = sorted(tmp_path.iterdir())
    ascend_db.read(path, Info(), "ascend_db")
    assert sorted(tmp_path.iterdir()) == before


def _damaged(path: Path) -> None:
    database(path)
    path.write_bytes(path.read_bytes()[:8192] + b"\xff" * 20_000)


def _of_something_else(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a)")


def _empty(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE TASK (startNs, endNs)")


@pytest.mark.parametrize("make", [_damaged, _of_something_else, _empty])
def test_a_database_that_is_no_profile_is_reported(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "some.db"
    make(path)
    with pytest.raises(ToolError) as caught:
        ascend_db.read(path, Info(), "ascend_db")
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_raw_data_that_was_not_analysed_is_reported_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "x_ascend_pt" / "FRAMEWORK").mkdir(parents=True)
    with pytest.raises(ToolError, match="analyse") as caught:
        ascend.read(tmp_path / "x_ascend_pt")
    assert caught.value.code is ErrorCode.BAD_TRACE
