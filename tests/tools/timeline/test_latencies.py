"""How long single calls take, by name and shape, from a trace as torch writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whystall.tools.timeline.kineto import trace as kineto
from whystall.tools.timeline.rank_data.latencies import BLOCKS, joined_latencies, latencies
from whystall.tools.timeline.rank_data.tables import LATENCIES

Event = dict[str, Any]
AT = 1_000_000.0


def event(name: str, ts: float, dur: float, category: str = "cpu_op", **args: Any) -> Event:
    lane = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 9, "tid": 9}
    return {"ph": "X", "cat": category, "name": name, "ts": AT + ts, "dur": dur, "args": args, **lane}


def shaped(name: str, ts: float, dur: float, dims: Any, types: Any) -> Event:
    return event(name, ts, dur, **{"Input Dims": dims, "Input type": types})


def steps(count: int) -> list[Event]:
    return [event(f"ProfilerStep#{n}", 1000.0 * n, 1000.0, "user_annotation") for n in range(count)]


def of(place: Path, events: list[Event], **top: Any) -> pl.DataFrame:
    path = place / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}))
    return latencies(kineto.read(path))


def rows(frame: pl.DataFrame, *columns: str) -> set[tuple[Any, ...]]:
    return set(frame.select("name", *columns).rows())


def test_an_operator_is_charged_without_those_that_it_calls(tmp_path: Path) -> None:
    events = [
        event("aten::linear", 0, 100),
        event("aten::addmm", 10, 60),
        event("aten::copy_", 20, 15),
        event("aten::relu", 70, 20),
        event("aten::empty", 100, 5),
    ]
    found = of(tmp_path, events)
    expected = {("aten::linear", 20), ("aten::addmm", 45), ("aten::copy_", 15), ("aten::relu", 20), ("aten::empty", 5)}
    assert rows(found.with_columns(us=pl.col("p50_ns") // 1000), "us") == expected


def test_an_operator_that_redirects_to_its_own_overload_is_one_call(tmp_path: Path) -> None:
    events = [event("aten::sort", 0, 100), event("aten::sort", 10, 80), event("aten::copy_", 20, 30)]
    found = of(tmp_path, events).with_columns(us=pl.col("p50_ns") // 1000)
    assert rows(found, "us", "count") == {("aten::sort", 70, 1), ("aten::copy_", 30, 1)}


def test_shapes_part_the_calls_of_a_name(tmp_path: Path) -> None:
    small, large = [[8, 8], [8, 8], []], [[512, 8], [8, 8], []]
    types = ["float", "c10::Half", "Scalar"]
    events = [shaped("aten::mm", 0, 10, small, types), shaped("aten::mm", 20, 90, large, types)]
    found = of(tmp_path, [*events, shaped("aten::zeros", 200, 1, [[], []], ["ScalarList", ""])])
    assert rows(found, "shape") == {
        ("aten::mm", "float[8,8] c10::Half[8,8]"),
        ("aten::mm", "float[512,8] c10::Half[8,8]"),
        ("aten::zeros", "-"),
    }


def test_a_kernel_has_its_grid_and_block(tmp_path: Path) -> None:
    known = {"device": 0, "stream": 7, "correlation": 1}
    kernels = [
        event("gemm", 0, 5, "kernel", grid=[64, 1, 1], block=[128, 1, 1], **known),
        event("ncclDevKernel_AllReduce", 10, 500, "kernel", grid=[2, 1, 1], block=[512, 1, 1], **known),
    ]
    found = of(tmp_path, kernels)
    assert found.select("kind", "name", "shape").rows() == [("kernel", "gemm", "grid [64,1,1] block [128,1,1]")]


@pytest.mark.parametrize("dims", ["x", 7, {"a": 1}, [[["deep"]]], [None, 3], [[10**30]], [["\u001b[31m", "\n"]]])
def test_strange_shapes_are_read_as_text_or_as_unknown(tmp_path: Path, dims: Any) -> None:
    found = of(tmp_path, [shaped("aten::mm", 0, 10, dims, [1, None])])
    (shape,) = found["shape"]
    assert "\n" not in shape
    assert "\x1b" not in shape


def test_long_shapes_differ_though_their_beginning_is_the_same(tmp_path: Path) -> None:
    events = [shaped("aten::cat", 50 * n, 10, [[1000]] * 90 + [[n]], ["float"] * 91) for n in (1, 2)]
    shapes = set(of(tmp_path, events)["shape"])
    assert len(shapes) == 2
    assert all(len(shape) <= 240 for shape in shapes)


def test_the_first_step_and_calls_outside_of_steps_are_left_out(tmp_path: Path) -> None:
    calls = [event("aten::mm", 1000.0 * n + 5, 900.0 if n == 0 else 10.0) for n in range(5)]
    found = of(tmp_path, [*steps(4), *calls])
    assert found.select("count", "per_step", "p99_ns").rows() == [(3, 1.0, 10_000)]
    assert found["block_steps"].to_list() == [[1, 2, 3]]


def test_without_steps_the_first_calls_are_left_out(tmp_path: Path) -> None:
    calls = [event("aten::mm", 100.0 * n, 90.0 if n < 2 else 10.0) for n in range(20)]
    found = of(tmp_path, calls)
    assert found.select("count", "per_step", "p99_ns").rows() == [(18, -1.0, 10_000)]


def test_blocks_are_medians_in_the_order_of_time(tmp_path: Path) -> None:
    calls = [event("aten::mm", 10.0 * n, 1.0 + (n >= 100)) for n in range(200)]
    (blocks,) = of(tmp_path, calls)["blocks"].to_list()
    assert len(blocks) == BLOCKS
    assert (blocks[0], blocks[-1]) == (1000, 2000)
    assert blocks == sorted(blocks)


def test_files_of_one_rank_are_joined(tmp_path: Path) -> None:
    parts = [of(tmp_path, [event("aten::mm", 10.0 * n, us) for n in range(50)]) for us in (1.0, 2.0, 3.0, 4.0)]
    frame = pl.concat(parts).with_columns(rank=pl.lit(0, pl.Int32)).select(LATENCIES.names())
    whole = joined_latencies(frame)
    assert whole.schema == LATENCIES
    assert whole["count"].to_list() == [180]
    (blocks,) = whole["blocks"].to_list()
    assert len(blocks) <= 3 * BLOCKS
    assert set(blocks) == {1000, 2000, 3000, 4000}


def test_devices_and_versions_are_read_from_the_head(tmp_path: Path) -> None:
    top = {
        "deviceProperties": [{"name": "NVIDIA H200"}, {"id": 1}, "x"],
        "cuda_runtime_version": 12080,
        "n_version": [],
    }
    of(tmp_path, [event("aten::mm", 0, 1)], **top)
    profile = kineto.read(tmp_path / "rank0.json")
    assert profile.run.environment == (("device", "NVIDIA H200"), ("cuda_runtime_version", "12080"))
