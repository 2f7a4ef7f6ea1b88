"""Programs that suffer from the page cache, diagnosed while they do; their own log is the truth.

A job whose own stream pushes its data out, its cure by hybrid I/O and a second look are in test_cache_demo.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from cache_job import STREAMER
from dirty_disk import dirty_disk
from running import Running
from slow_disk import SlowDisk

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.knowledge_base.models import Culprit, Diagnosis, Verdict
from whystall.tools.contract.findings import Polarity

WINDOW_S = 4.0
POLLUTION = "cache_pollution"
# A stream that a job of this size is beside: not so fast that a small machine has no CPU left for anything else.
STREAM = ("--stream-pause-ms", 4)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """One whystall with a state directory of its own: its catalog is read once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))
        with App().closing() as made:
            yield made


@pytest.fixture
def shards() -> Iterator[Path]:
    """Where the stream's files are: on a disk, and sparse."""
    path = Path(tempfile.mkdtemp(prefix="whystall-test-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def disk() -> Iterator[SlowDisk]:
    """Where the hot file is: what is not cached comes at 60 MiB/s."""
    with SlowDisk(write_mib_s=None, read_mib_s=60, size_mib=256) as made:
        yield made


def diagnose(app: App, program: Running, **options: Any) -> Diagnosis:
    params = DiagnoseParams(**{"pid": program.start["pid"], "duration": WINDOW_S, **options})
    return anyio.run(lambda: app.diagnose(params))


def job(disk: SlowDisk, shards: Path, *options: object) -> Running:
    """The job on the slow disk. It goes before other load, which is not the matter here."""
    before = ["nice", "-n", "-15"]
    places = ("--directory", disk.path, "--stream-directory", shards, "--fixed-names")
    return Running("cache_job.py", *places, *options, wrap=lambda argv: disk.command([*before, *argv]))


def accused(found: Diagnosis, cause: str, *missing: str) -> Culprit:
    """The culprit of a diagnosis that names `cause`; a machine that is busy with other things may take its share of
    the time, and of the events. `missing`: what else a higher verdict may lack here.
    """
    assert found.cause == cause, found.model_dump_json(indent=1)
    assert found.verdict in (Verdict.CONFIRMED, Verdict.LIKELY)
    assert set(found.missing) <= {"events_lost", "low_explained_share", *missing}, found.missing
    assert found.culprit is not None
    return found.culprit


def test_a_neighbour_that_streams_is_named_with_its_files(app: App, disk: SlowDisk, shards: Path) -> None:
    with job(disk, shards, "--streamer", "other", *STREAM) as program:
        program.until("step", 3)
        found = diagnose(app, program)
        hot, streamer = program.start["hot"], program.start["streamer_pid"]
    culprit = accused(found, POLLUTION)
    assert culprit.path == hot
    (actor,) = culprit.actors
    assert (actor.pid, actor.comm) == (streamer, STREAMER)
    assert actor.path == f"{program.start['shards_in']}/shard_*.bin"


def test_a_stream_beside_free_memory_is_no_fault(app: App, disk: SlowDisk, shards: Path) -> None:
    with job(disk, shards, "--limit-mib", 0, "--shards", 4, "--stream-mib", 64) as program:
        program.until("step", 3)
        found = diagnose(app, program)
    supported = {a.cause for a in found.assessments if a.state.value == "supported"}
    assert not supported & {POLLUTION, "streaming_reclaim", "page_cache_thrash", "memory_reclaim", "cgroup_limit_small"}
    bad = {f.kind for f in found.findings if f.polarity is Polarity.ABNORMAL}
    assert not bad & {"cache.streaming", "cache.thrash", "memory.reclaim_stall", "cache.limit_small"}


def test_what_does_not_fit_by_itself_is_no_streams_fault(app: App, disk: SlowDisk, shards: Path) -> None:
    with job(disk, shards, "--streamer", "none", "--hot-mib", 48, "--limit-mib", 32) as program:
        program.until("step")
        found = diagnose(app, program)
        hot = program.start["hot"]
    assert accused(found, "page_cache_thrash").path == hot


def test_a_throttled_writer_is_told_from_one_that_waits_for_its_disk(app: App) -> None:
    with dirty_disk(write_mib_s=40, dirty_mib=16) as disk:
        place = disk.path
        with Running("checkpoint_writer.py", "--directory", disk.path) as program:
            program.until("checkpoint")
            throttled = diagnose(app, program)
        with Running("checkpoint_writer.py", "--directory", disk.path, "--direct") as program:
            program.until("checkpoint")
            direct = diagnose(app, program)
    assert Path(str(accused(throttled, "dirty_throttling").path)).parent == place
    assert accused(direct, "sync_checkpoint_write").series == f"{place}/ckpt_*.bin"


def test_writers_of_one_file_wait_for_its_lock(app: App) -> None:
    with (
        SlowDisk(write_mib_s=None, size_mib=256) as disk,
        Running("shared_file_writers.py", "--directory", disk.path) as program,
    ):
        program.until("write", 8)
        found = diagnose(app, program)
    (path,) = program.start["paths"]
    # on an idle machine its own copying takes more than half as much as the waiting: kernel CPU time stays a rival
    assert accused(found, "file_lock_contention", "rivals_open").path == path
