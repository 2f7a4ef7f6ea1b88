"""Any profile from any path: the format is seen, the rank chosen, an ambiguous directory refused with what it holds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shutil
import tarfile
from pathlib import Path

import pytest
from ascend_job import database, prof_directory, text_directory, timeline

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.profiles import candidates, open_profile


def kineto(path: Path, rank: int | None = None, *, padding: int = 0) -> Path:
    """A small trace of Kineto."""
    event = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 5.5, "dur": 1}
    top: dict[str, object] = {} if rank is None else {"distributedInfo": {"rank": rank}}
    text = json.dumps({"schemaVersion": 1, **top, "pad": "x" * padding, "traceEvents": [event]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace", "x.pt.trace.json.gz"])
def test_a_file_of_kineto_whatever_its_name(tmp_path: Path, name: str) -> None:
    assert open_profile(kineto(tmp_path / name)).source == "kineto"


def test_a_long_head_hides_nothing(tmp_path: Path) -> None:
    assert open_profile(str(kineto(tmp_path / "trace.json", padding=3 << 20))).source == "kineto"


def test_directories_and_files_of_ascend(tmp_path: Path) -> None:
    directory = text_directory(tmp_path)
    output = directory / "ASCEND_PROFILER_OUTPUT"
    for path in (directory, output, output / "trace_view.json", tmp_path):
        profile = open_profile(path)
        assert (profile.source, profile.rank, profile.bridges[0].host_clock) == ("ascend_text", 3, "mono_raw")
    database(output / "ascend_pytorch_profiler_3.db")
    for path in (directory, output, output / "ascend_pytorch_profiler_3.db", tmp_path):
        profile = open_profile(path)
        assert (profile.source, profile.rank, profile.bridges[0].host_clock) == ("ascend_db", 3, "mono_raw")


def test_directories_and_files_of_msprof(tmp_path: Path) -> None:
    directory = prof_directory(tmp_path)
    output = directory / "mindstudio_profiler_output"
    output.mkdir()
    (output / "msprof_20250109.json").write_text(json.dumps(timeline(python=False)))
    for path in (directory, output / "msprof_20250109.json", tmp_path):
        profile = open_profile(path)
        assert (profile.source, len(profile.bridges)) == ("msprof", 1)


def test_a_rank_is_chosen_by_the_rank_in_the_file(tmp_path: Path) -> None:
    for rank in (0, 1, 10):
        kineto(tmp_path / "run" / f"worker{99 - rank}.json.gz", rank)
    assert [one.rank for one in candidates(tmp_path)] == [0, 1, 10]
    assert open_profile(tmp_path, rank=10).rank == 10


@pytest.mark.parametrize("name", ["rank{}.json", "trace_rank_{}.json.gz", "RANK-{}.pt.trace.json"])
def test_else_by_the_name_of_the_file(tmp_path: Path, name: str) -> None:
    for rank in (0, 12):
        kineto(tmp_path / name.format(rank))
    assert open_profile(tmp_path, 12).rank == 12


def test_several_ranks_and_none_chosen(tmp_path: Path) -> None:
    for rank in range(12):
        kineto(tmp_path / f"{rank}.json", rank)
    with pytest.raises(ToolError) as caught:
        open_profile(tmp_path)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert "12 profiles" in caught.value.message
    assert caught.value.remedy == "choose one by rank: 0, 1, 2, 3, 4, 5, 6, 7, ... 11"


def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    for rank in (0, 1):
        text_directory(tmp_path, f"h_{rank}_ascend_pt", rank=rank)
    with pytest.raises(ToolError, match="no profile of rank 5") as caught:
        open_profile(tmp_path, 5)
    assert (caught.value.code, caught.value.remedy) == (ErrorCode.BAD_ARGUMENT, "there are: 0, 1")


def test_profiles_that_the_rank_does_not_tell_apart(tmp_path: Path) -> None:
    for step in ("a", "b"):
        kineto(tmp_path / step / "trace.json", 0)
    for rank in (None, 0):
        with pytest.raises(ToolError) as caught:
            open_profile(tmp_path, rank)
        assert caught.value.remedy == "give one of them: a/trace.json, b/trace.json"


def test_a_wrong_rank_of_a_single_file_is_reported(tmp_path: Path) -> None:
    path = kineto(tmp_path / "trace.json", 2)
    assert open_profile(path, 2).rank == 2
    with pytest.raises(ToolError, match="no profile of rank 0"):
        open_profile(path, 0)


def test_one_profile_that_has_no_rank_is_any(tmp_path: Path) -> None:
    assert open_profile(kineto(tmp_path / "trace.json"), 5).rank == -1


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    kineto(tmp_path / "deep" / "er" / "trace.json", 4)
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8bno")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "itself.json").symlink_to(tmp_path / "itself.json")
    assert open_profile(tmp_path).rank == 4


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 100, b"id,name\n1,2\n", b"SQLite format 3\0", b'{"a": 1}', b"[]", b"["]
)
def test_a_file_that_is_no_profile(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ToolError) as caught:
        open_profile(tmp_path / "file")
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_a_directory_without_profiles_and_a_path_without_file(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no profile in") as caught:
        open_profile(tmp_path)
    assert caught.value.code is ErrorCode.BAD_TRACE
    with pytest.raises(ToolError, match="No such file") as caught:
        open_profile(tmp_path / "missing")
    assert caught.value.code is ErrorCode.IO_ERROR
    with pytest.raises(ToolError) as caught:
        open_profile("a\0b")
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_nothing_is_read_twice_or_written(tmp_path: Path) -> None:
    directory = text_directory(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    open_profile(directory)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    shutil.rmtree(directory)


def packed_in_tar(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("rank0.json")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "what", "remedy"),
    [
        ("traces.tar.gz", packed_in_tar(b"{}"), "a tar archive", "tar xf traces.tar.gz"),
        ("traces.zip", b"PK\x03\x04" + b"x" * 50, "a zip archive", "unzip traces.zip"),
        ("rank0.json.xz", lzma.compress(b"{}"), "packed with xz", "xz -dk rank0.json.xz"),
        ("rank0.json.bz2", bz2.compress(b"{}"), "packed with bzip2", "bzip2 -dk rank0.json.bz2"),
        ("rank0.json", b"\n<!doctype HTML><p>", "a web page", "download the trace again"),
        ("a.nsys-rep", b"x", "a report of Nsight Systems", "nsys export --type sqlite a.nsys-rep"),
        ("a.qdrep", b"x", "a report of Nsight Systems", "nsys export --type sqlite a.qdrep"),
        ("a.ncu-rep", b"x", "a report of Nsight Compute", "nsys profile"),
        ("host.xplane.pb", b"x", "a profile of XLA", "export_chrome_trace"),
        ("perf.data", b"PERFILE2" + b"x" * 50, "a recording of perf", "perf script -i perf.data"),
    ],
)
def test_other_files_are_refused_with_the_way_to_a_trace(
    tmp_path: Path, name: str, content: bytes, what: str, remedy: str
) -> None:
    """Given alone, or in a directory without traces."""
    (tmp_path / name).write_bytes(content)
    for place in (tmp_path / name, tmp_path):
        with pytest.raises(ToolError) as caught:
            open_profile(place)
        assert caught.value.code is ErrorCode.BAD_TRACE
        assert name in caught.value.message
        assert what in caught.value.message
        assert remedy in caught.value.remedy
