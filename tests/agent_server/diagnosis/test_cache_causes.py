"""Causes of the page cache on recordings made by hand: who is accused of what, and who is left in peace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_cache_scenes import DATA, HOT, OTHER, OTHER_COMM, Cache, rereading, streaming
from recordings import PID, Scene
from solving import solve

from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict

pytestmark = pytest.mark.thorough

COLD = "/data/cold.bin"
READ = ("__schedule", "io_schedule", "folio_wait_bit_common", "filemap_get_pages", "filemap_read", "vfs_read")
CHECKPOINT = "/data/run7/chk_000005.bin"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def investigate(cache: Cache, **build: Any) -> Diagnosis:
    return solve(RecordedObserver(cache.build(**build)), "slow")


def state(found: Diagnosis, cause: str) -> CauseState:
    return next(a.state for a in found.assessments if a.cause == cause)


def supported(found: Diagnosis) -> set[str]:
    return {a.cause for a in found.assessments if a.state is CauseState.SUPPORTED}


def at_its_limit(cache: Cache, *, usage: float = 999, hits: int = 5000) -> Cache:
    """The job's memory cgroup is full, and both counters of it say so."""
    cache.scene.cgroup(full=True, hits=hits)
    return cache.memory(limit=1000, usage=usage, hits=hits)


def slow_reads(path: str, *, ms: float = 400, every_s: float = 1.0) -> Cache:
    """The job waits for its disk in reads of a file."""
    scene = Scene(window_s=10.0).thread(user=50, system=5, blocked=40)
    for number in range(int(10 / every_s)):
        scene.call(number * every_s + 0.1, ms, "pread64", path, size=24 << 20, stack=READ)
    return Cache(scene=scene)


def test_whoever_streams_is_named_to_the_job_whose_file_is_pushed_out() -> None:
    cache = at_its_limit(slow_reads(HOT))
    cache.places[OTHER] = "/job"
    found = investigate(rereading(streaming(cache, pid=OTHER), pid=PID, back=2000))
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "cache_pollution"), found.missing
    culprit = found.culprit
    assert culprit is not None
    assert (culprit.path, culprit.pid, culprit.syscall) == (HOT, PID, "pread64")
    assert [(a.pid, a.comm, a.path) for a in culprit.actors] == [(OTHER, OTHER_COMM, DATA)]


def test_a_job_may_push_out_its_own_file() -> None:
    found = investigate(rereading(streaming(at_its_limit(slow_reads(HOT))), pid=PID, back=2000))
    assert found.cause == "cache_pollution"
    assert found.culprit is not None
    assert [(a.pid, a.path) for a in found.culprit.actors] == [(PID, DATA)]


def test_a_cold_file_beside_a_stream_is_slow_by_itself() -> None:
    """Another file of the job is pushed out; it is not that one it waits for."""
    cache = rereading(streaming(at_its_limit(slow_reads(COLD))), pid=PID, back=2000)
    found = investigate(cache.use(COLD, accessed=240, added=240).gone(COLD, once=240, tracked=240))
    assert found.cause == "slow_file_read"
    assert "cache_pollution" not in supported(found)


def test_a_file_that_does_not_fit_is_no_streams_fault_however_much_others_read() -> None:
    """The host's counters are of all its readers, and hide what comes back; those of the file do not."""
    cache = at_its_limit(slow_reads(HOT)).use(HOT, accessed=6000, added=6000, refaulted=5500)
    cache.gone(HOT, reclaimed=6000, one_pass=6000, tracked=6000)
    cache.use("/else/huge.bin", pid=OTHER, accessed=90_000, added=90_000)
    found = investigate(cache.gone("/else/huge.bin", once=90_000, tracked=90_000))
    assert found.cause == "page_cache_thrash"
    assert "cache_pollution" not in supported(found)


def test_a_stream_beside_free_memory_is_nobodys_fault() -> None:
    cache = slow_reads(COLD).use(accessed=4000, added=4000).gone(once=4000, tracked=4000)
    found = investigate(rereading(cache, pid=PID))
    assert found.cause == "slow_file_read"
    assert not supported(found) & {"cache_pollution", "streaming_reclaim", "page_cache_thrash", "memory_reclaim"}


def test_a_stream_that_reclaims_for_itself_pays_for_the_way_through_the_cache() -> None:
    scene = Scene(window_s=10.0).thread(user=5, system=60)
    for number in range(100):
        scene.call(number / 10, 65, "readv", DATA, size=4 << 20, waits=0)
    cache = at_its_limit(streaming(Cache(scene=scene))).stall("cgroup_reclaim", 900, count=4000)
    found = investigate(cache)
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "streaming_reclaim"), found.missing
    assert found.culprit is not None
    assert [a.path for a in found.culprit.actors] == [DATA]


def test_time_in_the_kernel_is_not_called_reclaim_where_reclaim_was_timed() -> None:
    scene = Scene(window_s=10.0).thread(user=5, system=60)
    for number in range(100):
        scene.call(number / 10, 65, "getdents64", "/data", waits=0)
    found = investigate(at_its_limit(Cache(scene=scene)).stall("cgroup_reclaim", 60))
    assert found.cause == "kernel_cpu_in_syscall"
    assert "memory_reclaim" not in supported(found)


def test_a_limit_below_what_runs_is_told_from_a_host_without_memory() -> None:
    stack = ("__schedule", "shrink_folio_list", "try_to_free_mem_cgroup_pages", "try_charge_memcg", "exc_page_fault")

    def stalled() -> Cache:
        scene = Scene(window_s=10.0).thread(user=50, system=10, blocked=35)
        for second in range(10):
            scene.wait(second, 350, "", state="D", stack=stack)
        return Cache(scene=scene)

    found = investigate(at_its_limit(stalled()).stall("cgroup_reclaim", 3600, count=100))
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "cgroup_limit_small"), found.missing
    cache = stalled().stall("direct_reclaim", 3600, count=100).short(2000, kswapd=30)
    cache.counters["mem_available_bytes"] = (0.2 * (1 << 30), 0.2 * (1 << 30))
    cache.counters["psi_memory_some_us"] = (0.0, 4e6)
    cache.counters["vm_pgscan_direct"] = (0.0, 1e6)
    assert investigate(cache).cause == "memory_reclaim"


def throttled() -> Scene:
    """A checkpoint each three seconds, whose write sleeps in the kernel."""
    stack = ("__schedule", "io_schedule_timeout", "balance_dirty_pages", "balance_dirty_pages_ratelimited_flags")
    scene = Scene(window_s=10.0).thread(user=65, system=3, blocked=30)
    for number in range(3):
        scene.call(1 + 3 * number, 1000, "write", CHECKPOINT, size=48 << 20, stack=stack)
    return scene


def test_a_throttled_writer_is_no_slow_disk_unless_the_disk_was_seen_to_be_slow() -> None:
    cache = Cache(scene=throttled()).use(CHECKPOINT, dirtied=144).stall("dirty_throttle", 2800, CHECKPOINT)
    found = investigate(cache)
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "dirty_throttling"), found.missing
    assert found.culprit is not None
    assert found.culprit.path == CHECKPOINT
    slow = throttled().disk("sda", busy=100, await_ms=300).process(PID, "train", cpu=68, io=30)
    cache = Cache(scene=slow).use(CHECKPOINT, dirtied=144).stall("dirty_throttle", 2800, CHECKPOINT)
    found = investigate(cache)
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "dirty_throttling")
    assert "rivals_open" in found.missing
    assert state(found, "slow_device") is CauseState.SUPPORTED


def test_a_checkpoint_that_is_written_without_being_throttled_is_one_as_before() -> None:
    found = investigate(Cache(scene=throttled()).use(CHECKPOINT, dirtied=144))
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "sync_checkpoint_write"), found.missing
    assert state(found, "dirty_throttling") is CauseState.RULED_OUT


def test_a_writer_that_must_reclaim_first_is_no_checkpoint_that_waits_for_storage() -> None:
    """It syncs nothing: its writes sleep since its cgroup is full, and its pages have to go first."""
    stack = ("__schedule", "reclaim_throttle", "shrink_lruvec", "try_to_free_mem_cgroup_pages", "try_charge_memcg")
    scene = Scene(window_s=10.0).thread(user=20, system=10, blocked=65)
    for number in range(100):
        scene.call(number / 10, 62, "write", CHECKPOINT, size=4 << 20, stack=stack)
    cache = at_its_limit(Cache(scene=scene)).use(CHECKPOINT, added=4000, dirtied=4000)
    found = investigate(cache.stall("cgroup_reclaim", 5900, count=1000))
    assert found.cause == "cgroup_limit_small", found.verdict
    assert "sync_checkpoint_write" not in supported(found)


FILE_LOCK = ("__schedule", "rwsem_down_write_slowpath", "down_write", "ext4_buffered_write_iter", "vfs_write")
BUFFER_PAGED_IN = (
    "__schedule",
    "rwsem_down_read_slowpath",
    "down_read",
    "do_user_addr_fault",
    "ext4_buffered_write_iter",
)


def test_writers_of_one_file_wait_for_each_other_and_not_for_a_disk() -> None:
    scene = Scene(window_s=10.0).thread(user=35, system=15, blocked=45)
    for number in range(50):
        scene.call(number / 5, 100, "pwrite64", CHECKPOINT, size=16 << 20, stack=FILE_LOCK)
    cache = Cache(scene=scene).use(CHECKPOINT, dirtied=800).stall("file_lock", 4700, CHECKPOINT, count=50)
    found = investigate(cache.stall("file_lock", 5200, CHECKPOINT, tid=PID + 1, count=50))
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "file_lock_contention"), found.missing
    assert found.culprit is not None
    assert found.culprit.path == CHECKPOINT


def test_without_a_sign_in_the_first_look_the_page_cache_is_not_watched() -> None:
    quiet = Cache(scene=Scene(window_s=10.0).thread(user=95))
    assert not any("page_cache" in step.tools for step in investigate(quiet).steps)
    waiting = investigate(slow_reads(COLD))
    assert any("page_cache" in step.tools for step in waiting.steps)
    pressed = investigate(at_its_limit(Cache(scene=Scene(window_s=10.0).thread(user=95))))
    assert any("page_cache" in step.tools for step in pressed.steps)


@pytest.mark.parametrize(
    ("stack", "answer"),
    [(FILE_LOCK, (Verdict.CONFIRMED, "file_lock_contention")), (BUFFER_PAGED_IN, (Verdict.INCONCLUSIVE, None))],
)
def test_a_write_that_waits_for_a_lock_is_no_checkpoint_where_the_page_cache_was_not_observed(
    stack: tuple[str, ...], answer: tuple[Verdict, str | None]
) -> None:
    scene = Scene(window_s=10.0).thread(user=35, system=15, blocked=45)
    for number in range(50):
        scene.call(number / 5, 100, "pwrite64", CHECKPOINT, size=16 << 20, stack=stack)
    found = solve(RecordedObserver(scene.build()), "slow")
    assert (found.verdict, found.cause) == answer, found.missing
    assert "sync_checkpoint_write" not in supported(found)
