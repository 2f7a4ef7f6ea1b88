"""Traces behind fsspec, here on its file systems ``local`` and ``memory``; and on a cluster of real processes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from ascend_job import text_directory
from dask_workers import cluster as cluster_of
from rank_files import write_job, write_rank

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.ranks.traces import dask_cluster as cluster
from whystall.tools.ranks.traces import remote
from whystall.tools.ranks.traces.dask_cluster import on_cluster
from whystall.tools.ranks.traces.gather import gather
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough


def same(one: Recording, other: Recording) -> None:
    assert one.manifest == other.manifest
    for name, frame in other.tables().items():
        assert one.table(name).equals(frame), name


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a scheduler with two workers, each a process of its own."""
    with cluster_of(tmp_path_factory.mktemp("cluster")) as address:
        yield address


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[str]:
    """URL of a job in fsspec's file system of this process."""
    memory = fsspec.filesystem("memory")
    for path in write_job(tmp_path / "elsewhere").iterdir():
        memory.pipe(f"/run/{path.name}", path.read_bytes())
    yield "memory://run"
    memory.rm("/run", recursive=True)


def test_a_cluster_gives_the_same_answer(tmp_path: Path, scheduler: str) -> None:
    place = write_job(tmp_path / "run", 5)
    same(gather(place, scheduler=scheduler), gather(place))


def test_a_cluster_reads_what_is_behind_a_url(tmp_path: Path, scheduler: str) -> None:
    place = write_job(tmp_path / "run", 3)
    same(gather(f"local://{place}", scheduler=scheduler), gather(place))


def test_on_a_cluster_too_a_rank_that_cannot_be_read_is_reported(tmp_path: Path, scheduler: str) -> None:
    place = write_job(tmp_path / "run", 3)
    (place / "rank1.json").write_bytes(b"")
    same(gather(place, scheduler=scheduler), gather(place))


def test_no_scheduler_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE", "1s")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ToolError, match="no dask scheduler answers at") as raised:
        on_cluster(os.path.basename, ["a"], f"tcp://127.0.0.1:{port}", lambda task, why: why)
    assert raised.value.code is ErrorCode.IO_ERROR


@pytest.mark.parametrize(("module", "place"), [("distributed", "."), ("fsspec.core", "memory://x")])
def test_without_the_extra_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, place: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolError, match=r"whystall\[ranks\]") as raised:
        gather(place, scheduler="tcp://127.0.0.1:1")
    assert raised.value.code is ErrorCode.BAD_ARGUMENT


def test_a_store_whose_package_is_missing_reports_it() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ToolError, match="s3fs") as raised:
        gather("s3://bucket/run")
    assert raised.value.code is ErrorCode.BAD_ARGUMENT


def test_behind_a_url_are_the_same_ranks_as_on_disk(tmp_path: Path) -> None:
    place = write_job(tmp_path / "run", 2)
    (place / "deeper").mkdir()
    write_rank(place / "deeper" / "rank2.json.gz", 2)  # of another size of job: must be refused alike
    (place / "config.json").write_text("{}")
    (place / "weights.bin").write_bytes(b"\0" * 1000)
    with pytest.raises(ToolError, match="does not belong to a job of 2 ranks"):
        gather(f"local://{place}")
    (place / "deeper" / "rank2.json.gz").unlink()
    same(gather(f"local://{place}"), gather(place))
    same(gather(f"file://{place}"), gather(place))


def test_directories_that_are_one_trace_come_as_a_whole(tmp_path: Path) -> None:
    for rank in range(2):
        text_directory(tmp_path / "run", f"host_{rank}_ascend_pt", rank=rank)
    same(gather(f"local://{tmp_path}/run"), gather(tmp_path / "run"))


def test_a_single_file(tmp_path: Path) -> None:
    write_job(tmp_path, 1)
    same(gather(f"local://{tmp_path}/rank0.json"), gather(tmp_path / "rank0.json"))


def test_a_file_system_of_this_process_is_read_in_it(in_memory: str, tmp_path: Path) -> None:
    same(gather(in_memory), gather(write_job(tmp_path / "run")))


def test_nothing_behind_a_url(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ToolError, match="no profile in") as raised:
        gather(f"local://{tmp_path}")
    assert raised.value.code is ErrorCode.BAD_TRACE


def test_a_url_that_cannot_be_listed() -> None:
    with pytest.raises(ToolError) as raised:
        gather("nosuch://place")
    assert raised.value.code is ErrorCode.IO_ERROR


def test_what_has_no_room_here_is_not_fetched(in_memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_KEPT_FREE", 1 << 62)
    with pytest.raises(ToolError, match="MiB free") as raised:
        gather(in_memory)
    assert raised.value.code is ErrorCode.BAD_TRACE


def test_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    gather(f"local://{write_job(tmp_path / 'run')}")
    assert list((tmp_path / "tmp").iterdir()) == []
