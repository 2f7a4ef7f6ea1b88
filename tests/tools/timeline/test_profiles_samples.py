"""Public profiles of real devices, where they are at hand: totals against what plain JSON, CSV and SQL say."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profiles import open_profile

SAMPLES = Path(__file__).parents[4] / "shared" / "data"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not here")


def counts(profile: Profile) -> dict[str, int]:
    return dict(profile.activities["kind"].value_counts().rows())


def total_us(profile: Profile, kind: str) -> float:
    frame = profile.activities.filter(kind=kind)
    return int((frame["end_ns"] - frame["start_ns"]).sum()) / 1000


@pytest.fixture(scope="module", params=["collective_args", "timesformer_h100"])
def kineto(request: pytest.FixtureRequest) -> tuple[list[dict[str, Any]], int, Profile]:
    path = SAMPLES / "kineto" / f"{request.param}.json.gz"
    with gzip.open(path) as file:
        content = json.load(file, parse_float=Decimal)  # a float times 1000 is off by one here and there
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    return events, content["baseTimeNanoseconds"], open_profile(path)


def test_kineto_loses_and_invents_nothing(kineto: tuple[list[dict[str, Any]], int, Profile]) -> None:
    events, _, profile = kineto
    there, found = Counter(event["cat"] for event in events), counts(profile)
    assert profile.activities.height == len(events) - there["Trace"]
    assert found["kernel"] + found.get("collective", 0) == there["kernel"]
    assert found.get("collective", 0) == sum("Collective name" in event.get("args", {}) for event in events
                                             if event["cat"] == "kernel")  # fmt: skip
    assert (found["memcpy"], found["memset"]) == (there["gpu_memcpy"], there["gpu_memset"])
    assert found["operator"] == there["cpu_op"]
    assert found.get("python", 0) == there["python_function"]
    assert found["annotation"] == there["user_annotation"]
    calls = there["cuda_runtime"] + there["cuda_driver"]
    other = profile.activities.filter((pl.col("kind") == "other") & (pl.col("device") < 0)).height
    assert found["launch"] + found["sync"] + other == calls
    assert profile.notes == ()


def test_kineto_times_are_those_of_the_text(kineto: tuple[list[dict[str, Any]], int, Profile]) -> None:
    events, base, profile = kineto
    starts = sorted(base + int(event["ts"] * 1000) for event in events if event["cat"] != "Trace")
    assert profile.activities["start_ns"].to_list() == starts
    kernels = sum(int(event["dur"] * 1000) for event in events if event["cat"] == "kernel")
    assert total_us(profile, "kernel") + total_us(profile, "collective") == pytest.approx(kernels / 1000, abs=1e-6)


def test_kineto_launches_and_steps(kineto: tuple[list[dict[str, Any]], int, Profile]) -> None:
    events, _, profile = kineto
    calls = {event["args"]["correlation"]: event for event in events if event["cat"] in ("cuda_runtime", "cuda_driver")}
    steps = [event for event in events if event["cat"] == "user_annotation" and "ProfilerStep#" in event["name"]]
    work = profile.activities.filter(pl.col("kind").is_in(["kernel", "collective", "memcpy", "memset"]))
    for tid, correlation, step in work.select("tid", "correlation", "step").rows():
        call = calls[correlation]
        owner = [one for one in steps if one["ts"] <= call["ts"] < one["ts"] + one["dur"]]
        assert tid == call["tid"]
        assert step == (int(owner[0]["name"].partition("#")[2]) if owner else -1)


@pytest.mark.parametrize("rank", [0, 1])
def test_ascend_text_against_its_tables(rank: int) -> None:
    directory = SAMPLES / "ascend" / "text" / f"rank{rank}_ascend_pt"
    profile = open_profile(SAMPLES / "ascend" / "text", rank)
    with open(directory / OUTPUT / "kernel_details.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    kernels = [row for row in rows if row["Accelerator Core"] != "HCCL"]
    assert counts(profile)["kernel"] == len(kernels) == 187
    assert counts(profile)["collective"] == len(rows) - len(kernels) == 4
    assert total_us(profile, "kernel") == pytest.approx(sum(float(row["Duration(us)"]) for row in kernels), abs=0.2)
    assert set(profile.activities.filter(kind="kernel")["name"]) == {row["Name"] for row in kernels}
    with open(directory / OUTPUT / "step_trace_time.csv", newline="") as file:
        (step,) = csv.DictReader(file)
    assert total_us(profile, "kernel") == pytest.approx(float(step["Computing"]), rel=1e-4)
    assert total_us(profile, "collective") == pytest.approx(float(step["Communication"]), rel=1e-6)
    assert profile.steps["step"].to_list() == [int(step["Step"])]
    assert set(profile.activities.filter(kind="kernel")["step"]) == {int(step["Step"])}
    assert (profile.rank, profile.clock, profile.notes) == (rank, "real", ())


@pytest.mark.parametrize("rank", [0, 1])
def test_ascend_database_against_its_tables(rank: int) -> None:
    profile = open_profile(SAMPLES / "ascend" / "db", rank)
    path = SAMPLES / "ascend" / "db" / f"rank{rank}_ascend_pt" / OUTPUT / f"ascend_pytorch_profiler_{rank}.db"
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as db:
        ((kernels, took),) = db.execute(
            "SELECT count(*), sum(endNs - startNs) FROM TASK JOIN COMPUTE_TASK_INFO USING (globalTaskId)"
        )
        ((collectives, waited),) = db.execute("SELECT count(*), sum(endNs - startNs) FROM COMMUNICATION_OP")
        ((steps,),) = db.execute("SELECT group_concat(id) FROM STEP_TIME")
    assert (counts(profile)["kernel"], total_us(profile, "kernel")) == (kernels, took / 1000)
    assert (counts(profile)["collective"], total_us(profile, "collective")) == (collectives, waited / 1000)
    assert profile.steps["step"].to_list() == [int(step) for step in steps.split(",")]
    assert (profile.rank, profile.clock, profile.notes) == (rank, "real", ())


@pytest.mark.parametrize("rank", [0, 1])
def test_text_and_database_of_the_same_program_count_the_same(rank: int) -> None:
    """Two runs of one program, one exported as text and one as database."""
    text = open_profile(SAMPLES / "ascend" / "text", rank)
    database = open_profile(SAMPLES / "ascend" / "db", rank)
    kinds = ("annotation", "collective", "kernel", "launch", "memcpy", "operator", "python", "sync")
    assert [counts(text)[kind] for kind in kinds] == [counts(database)[kind] for kind in kinds]
    names = [
        Counter(profile.activities.filter(pl.col("kind").is_in(["launch", "sync", "operator"]))["name"].to_list())
        for profile in (text, database)
    ]
    assert names[0] == names[1]
