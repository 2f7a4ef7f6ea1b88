"""One way to open stack samples: by what is in a file, never by its name; what cannot be meant is refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import ascend_job, flight_dumps
from tests.profiles import profile_of
from tests.recordings import Scene
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.profiles.common.open_stacks import open_stacks
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import recording_of
from whystall.tools.timeline.recorded import with_profile


def event(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": 7, "ts": start, "dur": length, "args": args}


KINETO = [
    event("user_annotation", "ProfilerStep#4", 0, 100),
    event("cpu_op", "aten::mm", 10, 20),
    event("cuda_runtime", "cudaLaunchKernel", 15, 2, correlation=3),
    event("kernel", "gemm", 40, 30, correlation=3, device=0, stream=7),
]


def kineto(path: Path, rank: int | None = None, events: list[dict[str, Any]] = KINETO) -> Path:
    info = {} if rank is None else {"distributedInfo": {"rank": rank}}
    path.write_text(json.dumps({"schemaVersion": 1, **info, "traceEvents": events}))
    return path


def top(profile: StackProfile) -> str:
    """The innermost frame of the first sample."""
    frame = profile.stacks["frame"][profile.samples["stack"][0]]
    return str(profile.frames["name"][frame])


def refused(path: Path, **options: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        open_stacks(path, **options)
    return caught.value


@pytest.mark.parametrize("name", ["trace.json", "trace.folded", "pprof.gz", "noname"])
def test_kineto_by_its_content(tmp_path: Path, name: str) -> None:
    found = open_stacks(kineto(tmp_path / name))
    assert (found.source, top(found), found.samples["weight"].sum()) == ("kineto", "GPU:gemm", 30_000)
    assert open_stacks(tmp_path / name, event="host").events["name"].to_list() == ["host"]


def test_kineto_without_a_head_and_packed(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": KINETO}).encode()))
    assert top(open_stacks(path)) == "GPU:gemm"


@pytest.mark.parametrize("form", ["text", "db"])
def test_ascend(tmp_path: Path, form: str) -> None:
    if form == "text":
        path = ascend_job.text_directory(tmp_path, prof=False)
    else:
        path = tmp_path / "whatever.data"
        ascend_job.database(path)
    found = open_stacks(path, event="device")
    assert found.source == f"ascend_{form}"
    assert found.frames.filter(kind="device")["name"].str.starts_with("NPU:").all()
    owned = [name for name in found.frames["name"] if name == "aten::mm"]
    assert owned == ["aten::mm"]


def test_a_bare_timeline_of_ascend(tmp_path: Path) -> None:
    path = tmp_path / "noname"
    path.write_text(json.dumps(ascend_job.timeline()))
    assert open_stacks(path).source == "ascend_text"


def test_another_list_of_events_is_no_accelerators(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    spans = [event("kernel", "sys_read", 0, 10), event("", "inner", 2, 3)]
    path.write_text(json.dumps({"traceEvents": spans}))
    assert open_stacks(path).source == "chrome"
    path.write_text(json.dumps(spans))
    assert open_stacks(path).source == "chrome"


def test_folded(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("main;f 3\nmain;g 7\n")
    found = open_stacks(path)
    assert (found.source, found.samples["weight"].sum()) == ("folded", 10)


def test_ranks_below_a_directory(tmp_path: Path) -> None:
    for rank in (0, 3):
        kineto(tmp_path / f"rank{rank}.json", rank)
    assert top(open_stacks(tmp_path, rank=3)) == "GPU:gemm"
    several = refused(tmp_path)
    assert several.code is ErrorCode.BAD_ARGUMENT
    assert "choose one by rank: 0, 3" in several.remedy
    assert "there are: 0, 3" in refused(tmp_path, rank=1).remedy


def test_steps_and_gaps_act_where_the_trace_is_opened(tmp_path: Path) -> None:
    later = [event("cuda_runtime", "cudaLaunchKernel", 50, 2, correlation=4)]
    later += [event("kernel", "late", 90, 5, correlation=4, device=0, stream=7)]
    path = kineto(tmp_path / "trace", events=[*KINETO, *later])
    assert open_stacks(path, step=4, idle=True).samples["weight"].sum() == 55_000
    assert "there are: 4" in refused(path, step=5).remedy


@pytest.mark.parametrize("options", [{"rank": 0}, {"step": 1}, {"idle": True}])
def test_what_only_accelerators_have_is_refused_elsewhere(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "stacks"
    path.write_text("main;f 3\n")
    error = refused(path, **options)
    assert error.code is ErrorCode.BAD_ARGUMENT
    assert next(iter(options)) in error.message


def samples(*events: str) -> StackProfile:
    made = Builder()
    for name in events:
        made.sample(made.stack([made.frame("f")]), made.event(name, "samples"), 5.0, at_ns=10)
    return made.profile("ebpf")


def test_a_recording_by_its_samples(tmp_path: Path) -> None:
    recording_of(samples("cpu-clock")).save(tmp_path / "recording")
    assert top(open_stacks(tmp_path / "recording")) == "f"
    error = refused(tmp_path / "recording", event="off-cpu")
    assert error.code is ErrorCode.BAD_ARGUMENT
    assert "cpu-clock" in error.remedy
    assert refused(tmp_path / "recording", step=1).code is ErrorCode.BAD_ARGUMENT


def test_events_that_cannot_be_added_up_are_named(tmp_path: Path) -> None:
    recording_of(samples("instructions", "branches")).save(tmp_path / "recording")
    assert "instructions" in refused(tmp_path / "recording").remedy
    found = open_stacks(tmp_path / "recording", event="branches")
    assert found.events["name"].to_list() == ["branches"]
    assert found.samples["event"].to_list() == [0]


def test_a_recording_by_its_waits(tmp_path: Path) -> None:
    scene = Scene(window_s=2.0).wait(0.5, 100, "read", "/data/x").wait(1.0, 0.2, "read", "/data/x")
    scene.build().save(tmp_path / "recording")
    found = open_stacks(tmp_path / "recording", event="off-cpu")
    assert found.events["name"].to_list() == ["off-cpu"]
    assert found.samples["weight"].sum() == pytest.approx(100.2e6)


def test_a_recording_with_a_profile(tmp_path: Path) -> None:
    rows = [
        (0, 500, "operator", "aten::mm", 7, 7, -1, -1, -1, -1),
        (100, 200, "launch", "cudaLaunchKernel", 7, 7, -1, -1, 4, -1),
        (600, 900, "kernel", "gemm", 7, 7, 0, 7, 4, -1),
    ]
    with_profile(Scene(window_s=1.0).build(start_ns=0), profile_of(*rows)).save(tmp_path / "recording")
    assert top(open_stacks(tmp_path / "recording", event="device")) == "GPU:gemm"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").code is ErrorCode.BAD_TRACE
    assert refused(Path("/dev/zero")).code is ErrorCode.BAD_TRACE


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", ErrorCode.BAD_TRACE),
        (b"\x1f\x8b\x08\x00garbage", ErrorCode.BAD_TRACE),
        (b'{"schemaVersion": 1, "traceEvents": [', ErrorCode.BAD_TRACE),
        (b'{"schemaVersion": 1, "traceEvents": []}', ErrorCode.BAD_TRACE),
        (b"SQLite format 3\0nothing of the kind", ErrorCode.BAD_TRACE),
        (os.urandom(512), ErrorCode.BAD_TRACE),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, content: bytes, code: ErrorCode) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert refused(path).code is code


def test_what_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "no").code is ErrorCode.IO_ERROR
    assert refused(tmp_path / ("x" * 300)).code is ErrorCode.IO_ERROR
    assert refused(Path("a\0b")).code is ErrorCode.BAD_ARGUMENT
    assert refused(tmp_path).code is ErrorCode.BAD_TRACE


def test_dumps_that_tell_only_collectives(tmp_path: Path) -> None:
    flight_dumps.write(tmp_path, flight_dumps.Rank(0, {"0": ("default_pg", (0, 1))}).does("0"))
    error = refused(tmp_path, rank=0)
    assert error.code is ErrorCode.BAD_TRACE
    assert "communication of ranks" in error.message
