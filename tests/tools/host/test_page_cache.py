"""page_cache over recordings whose truth is known: what it finds, and of whom it says nothing."""

from __future__ import annotations

import random

import polars as pl
import pytest
from page_cache_scenes import DATA, HOT, OTHER, Cache, rereading, streaming
from recordings import PID

from whystall.prompts.render import voice
from whystall.tools.collect.tables import PAGE_CACHE, PROC, RESIDENCY
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.registry import Judgement
from whystall.tools.contract.result import Status
from whystall.tools.host.page_cache import tool as page_cache
from whystall.tools.host.page_cache.data import Data
from whystall.tools.recording.judging import judge as envelope
from whystall.tools.recording.target import Target

EVERYBODY = Target(everything=True)


def abnormal(judged: Judgement[Data]) -> dict[str, Finding]:
    """What is wrong, by kind; of several of one kind, the first."""
    found: dict[str, Finding] = {}
    for finding in judged.findings:
        if finding.polarity is Polarity.ABNORMAL:
            found.setdefault(finding.kind, finding)
    return found


def normal(judged: Judgement[Data]) -> dict[str, Finding]:
    return {f.kind: f for f in reversed(judged.findings) if f.polarity is Polarity.NORMAL}


def test_a_stream_that_pushes_out_a_neighbour_is_named_with_its_file() -> None:
    cache = rereading(streaming().short(3200), back=100)
    judged = cache.judged()
    assert judged.data.verdicts == ["streaming"]
    found = abnormal(judged)["cache.streaming"]
    assert (found.subject.path, found.subject.pid, found.subject.tid) == (DATA, PID, None)
    assert found.attributes["reason"] == "others_refault"
    assert found.metrics["one_pass_pct"] == pytest.approx(98, abs=0.1)
    assert found.metrics["of_added_pct"] == pytest.approx(100 * 4000 / 4100)
    assert found.metrics["added_bytes"] == 4000 << 20
    assert found.metrics["hit_pct"] == 0
    victim = abnormal(judged)["cache.thrash"]  # the neighbour's set would fit, were it not for the stream
    assert (victim.subject.path, victim.subject.pid, victim.attributes["reason"]) == (HOT, OTHER, "pushed_out")
    assert victim.metrics["refault_pct"] == 100


def test_the_neighbour_that_streams_is_named_to_the_one_who_suffers() -> None:
    cache = rereading(streaming(pid=OTHER).short(3200), pid=PID, back=100)
    judged = cache.judged()
    found = abnormal(judged)
    assert found["cache.streaming"].subject.pid == OTHER
    assert found["cache.thrash"].attributes["reason"] == "pushed_out"
    assert found["cache.use"].subject.pid == PID


def test_a_stream_with_free_memory_harms_nobody() -> None:
    cache = Cache().use(accessed=4000, added=4000).gone(once=4000, tracked=4000)
    judged = rereading(cache).judged()
    assert judged.data.verdicts == ["healthy"]
    found = normal(judged)["cache.streaming"]
    assert (found.attributes["reason"], found.subject.pid) == ("free_memory", PID)
    assert not abnormal(judged)


def test_reclaim_that_takes_only_what_the_stream_has_used_is_no_harm() -> None:
    judged = rereading(streaming().short(3200)).judged()
    assert not abnormal(judged)
    assert normal(judged)["cache.streaming"].attributes["reason"] == "no_harm"


def test_a_stream_that_makes_threads_reclaim_is_told_by_their_waits() -> None:
    judged = streaming().short(3200).stall("direct_reclaim", 500).judged()
    assert judged.data.verdicts == ["streaming", "reclaim_stalls"]
    assert abnormal(judged)["cache.streaming"].attributes["reason"] == "own_stalls"
    assert abnormal(judged)["memory.reclaim_stall"].metrics["window_pct"] == pytest.approx(5)


def test_a_stream_that_makes_others_wait_is_told_to_them_and_to_nobody_else() -> None:
    cache = streaming(pid=OTHER).short(3200).stall("direct_reclaim", 500)
    found = abnormal(cache.judged())["cache.streaming"]
    assert (found.subject.pid, found.attributes["reason"]) == (OTHER, "stalls")
    cache = streaming(pid=OTHER).short(3200).stall("direct_reclaim", 500, pid=OTHER)
    assert rereading(cache, pid=PID).judged().data.verdicts == ["healthy"]


def test_a_stream_that_keeps_kswapd_busy_costs_a_cpu() -> None:
    judged = streaming().short(3200, kswapd=25).judged()
    assert abnormal(judged)["cache.streaming"].attributes["reason"] == "kswapd"
    assert abnormal(judged)["memory.kswapd"].metrics["cpu_pct"] == pytest.approx(25)


def test_a_stream_that_gives_back_what_it_used_is_not_accused() -> None:
    cache = Cache().use(accessed=4000, added=4000).gone(dropped=3900, reclaimed=100, one_pass=4000, tracked=4000)
    judged = rereading(cache, back=100).short(200).stall("direct_reclaim", 500).judged()
    assert "cache.streaming" not in abnormal(judged)


def test_a_stream_in_one_cgroup_is_not_accused_of_what_happens_in_another() -> None:
    """Its own cgroup's limit evicts its own pages; the neighbour's limit evicts the neighbour's."""
    cache = streaming().memory("/job", limit=1000, usage=999, hits=500).memory("/other", limit=200, usage=199, hits=500)
    rereading(cache, size=400, back=300).stall("cgroup_reclaim", 900, pid=OTHER)
    judged = cache.judged(target=EVERYBODY)
    assert "cache.streaming" not in abnormal(judged)
    assert abnormal(judged)["cache.thrash"].subject.pid == OTHER


def test_how_much_others_read_in_cgroups_of_their_own_excuses_nobody() -> None:
    cache = streaming().memory("/job", limit=1000, usage=999, hits=500).stall("cgroup_reclaim", 900)
    cache.use("/elsewhere/huge.bin", pid=OTHER, accessed=90_000, added=90_000)
    cache.gone("/elsewhere/huge.bin", reclaimed=90_000, one_pass=90_000, tracked=90_000)
    found = abnormal(cache.judged())["cache.streaming"]
    assert (found.subject.pid, found.attributes["reason"]) == (PID, "own_stalls")


def test_a_small_part_of_what_drives_reclaim_is_not_accused() -> None:
    """Somebody's own memory grows: that much more is evicted than the stream ever brought in."""
    cache = streaming(mib=100).short(9000)
    cache.gone("/data/old.bin", reclaimed=9000)
    judged = rereading(cache, back=100).judged()
    assert "cache.streaming" not in abnormal(judged)


def test_many_shards_are_one_series_and_many_workers_one_stream() -> None:
    cache = Cache().short(3200)
    for worker in range(8):
        for shard in range(10):
            path = f"/data/shard-{worker}{shard}.tar"
            cache.use(path, pid=PID + worker, comm="loader", accessed=50, added=50)
            cache.gone(path, reclaimed=40, one_pass=40, once=10, tracked=50)
    judged = rereading(cache, back=100).judged(target=EVERYBODY)
    streams = [f for f in judged.findings if f.kind == "cache.streaming"]
    assert len(streams) == 8
    assert all(f.polarity is Polarity.ABNORMAL for f in streams)
    assert {f.subject.path for f in streams} == {"/data/shard-*.tar"}
    assert {f.attributes["files"] for f in streams} == {"10"}


@pytest.mark.parametrize(("evicted", "named"), [(300, False), (3000, True)])
def test_what_is_mapped_may_be_used_without_a_sign_until_reclaim_takes_it(evicted: float, named: bool) -> None:
    cache = Cache().use(mapped=4000, added=4000).short(3200)
    cache.gone(reclaimed=evicted, one_pass=evicted, once=4000 - evicted, tracked=4000)
    judged = rereading(cache, back=100).judged()
    assert ("cache.streaming" in {f.kind for f in judged.findings}) is named


def test_a_written_stream_is_one_too() -> None:
    cache = Cache().use("/out/chk_1.bin", added=3000, dirtied=3000).short(2500)
    cache.gone("/out/chk_1.bin", reclaimed=2000, one_pass=2000, once=1000, tracked=3000, written=2500)
    judged = rereading(cache, back=100).judged()
    assert [row.written_back_bytes for row in judged.data.files] == [2500 << 20, None]
    found = abnormal(judged)["cache.streaming"]
    assert found.attributes["operations"] == "write"
    assert "hit_pct" not in found.metrics


@pytest.mark.parametrize(("limit", "reason"), [(1000, "too_large_cgroup"), (-1, "too_large")])
def test_a_set_larger_than_its_memory_thrashes(limit: float, reason: str) -> None:
    cache = Cache().memory("/job", limit=limit, usage=990, hits=900)
    size = 1500 if limit > 0 else 15000
    rereading(cache, pid=PID, path=DATA, size=size, back=0.9 * size, times=2)
    judged = cache.judged()
    found = abnormal(judged)["cache.thrash"]
    assert (found.subject.path, found.subject.pid, found.attributes["reason"]) == (DATA, PID, reason)
    assert "thrash" in judged.data.verdicts
    assert "cache.streaming" not in abnormal(judged)


def test_memory_that_comes_and_goes_took_the_room_while_it_was_there() -> None:
    """The window ends where it was just freed, as it is between two steps."""
    cache = Cache().use(accessed=2000, added=1800, again=1600, refaulted=1800)
    cache.gone(reclaimed=1800, one_pass=1800, tracked=1800).memory("/job", limit=1100, usage=1090, hits=700)
    rows = cache.scene.tables["proc.memory"]
    rows[len(rows) // 2]["anon_bytes"] = 800 << 20
    assert abnormal(cache.judged())["cache.thrash"].attributes["reason"] == "too_large_cgroup"


def test_a_loop_longer_than_the_window_is_known_by_what_the_kernel_remembers() -> None:
    """Within the window every page is read once; that all of it had been evicted lately is known from its start."""
    cache = Cache().use(accessed=1000, added=1000).gone(reclaimed=800, one_pass=800, once=200, tracked=1000)
    cache.memory("/job", limit=700, usage=690, hits=700).resident(DATA, size=1000, cached=0, recent=1000)
    found = abnormal(cache.judged())
    assert found["cache.thrash"].attributes["reason"] == "too_large_cgroup"
    assert found["cache.thrash"].metrics["refault_pct"] == 100
    assert "cache.streaming" not in found


def test_what_was_evicted_by_the_end_says_nothing_of_the_start() -> None:
    cache = Cache().use(accessed=1000, added=1000).gone(once=1000, tracked=1000)
    cache.resident(DATA, size=1000, cached=1000, recent=0, opened=True)
    judged = cache.judged()
    assert not abnormal(judged)
    assert judged.data.files[0].cached_bytes == 1000 << 20


@pytest.mark.parametrize("how", ["grown", "written", "given_back"])
def test_what_came_in_for_other_reasons_had_not_been_evicted(how: str) -> None:
    """A file that was in the cache whole, and of which more comes in than it had lacked."""
    written, dropped = (500 if how == "written" else 0), (500 if how == "given_back" else 0)
    cache = Cache().use(accessed=500 - written, added=500, dirtied=written)
    cache.gone(dropped=dropped, one_pass=dropped, once=500 - dropped, tracked=500)
    cache.resident(DATA, size=100, cached=100, recent=0, grows=500 if how == "grown" else 0)
    assert not abnormal(cache.judged())


def test_a_first_read_of_a_file_that_was_never_cached_is_no_thrash() -> None:
    cache = streaming(mib=1000).memory("/job", limit=700, usage=690, hits=700)
    cache.resident(DATA, size=1000, cached=0, recent=0)
    assert "cache.thrash" not in abnormal(cache.judged())


def test_a_limit_is_too_small_where_the_host_has_memory() -> None:
    cache = Cache().memory("/job", limit=1000, usage=990, anon=200, hits=900, refaults=2000, reclaimed=3000)
    rereading(cache, pid=PID, path=DATA, size=1500, back=1400, times=2)
    judged = cache.judged()
    assert judged.data.verdicts == ["thrash", "limit_small"]
    found = abnormal(judged)["cache.limit_small"]
    assert found.subject.cgroup == "/job"
    assert found.metrics["limit_bytes"] == 1000 << 20
    assert found.metrics["refault_pct"] == pytest.approx(100)
    assert found.metrics["refault_rate"] == pytest.approx(2000 * 256 / 10)


def test_a_limit_is_not_to_blame_where_the_host_is_short_itself() -> None:
    cache = Cache().memory("/job", limit=1000, usage=990, hits=900).short(3000)
    cache.counters["mem_available_bytes"] = (2.0**30, 2.0**30)
    rereading(cache, pid=PID, path=DATA, size=1500, back=1400, times=2)
    assert "cache.limit_small" not in abnormal(cache.judged())


def test_a_limit_is_not_to_blame_for_a_stream() -> None:
    cache = streaming().memory("/job", limit=1000, usage=990, hits=900, psi_pct=30).stall("cgroup_reclaim", 900)
    judged = cache.judged()
    assert abnormal(judged)["cache.streaming"].attributes["reason"] == "own_stalls"
    assert not [f for f in judged.findings if f.kind == "cache.limit_small"]


def test_a_limit_with_room_is_said_to_be_no_problem() -> None:
    cache = rereading(Cache().memory("/job", limit=1000, usage=400), pid=PID, path=DATA)
    found = normal(cache.judged())["cache.limit_small"]
    assert (found.subject.cgroup, found.metrics["usage_bytes"]) == ("/job", 400 << 20)


def test_throttled_writers_are_named_with_what_they_wrote() -> None:
    cache = Cache().use("/out/chk_1.bin", added=2000, dirtied=2000).gone("/out/chk_1.bin", once=2000, tracked=2000)
    cache.stall("dirty_throttle", 2500, "/out/chk_1.bin", count=20, pages=300_000)
    cache.stall("dirty_throttle", 100, "/out/log", count=2, pages=10)
    judged = cache.judged()
    assert judged.data.verdicts == ["dirty_throttling"]
    found = abnormal(judged)["writeback.throttled"]
    assert (found.subject.tid, found.attributes["example"]) == (PID, "/out/chk_1.bin")
    assert found.metrics["window_pct"] == pytest.approx(26)
    assert found.metrics["dirty_bytes"] == 1 << 30
    assert found.metrics["dirty_limit_bytes"] == 500_000 * 4096
    assert found.severity.value == "major"


def test_writers_of_one_file_wait_for_its_lock() -> None:
    cache = Cache().use("/out/log", added=10, dirtied=10).gone("/out/log", once=10, tracked=10)
    for thread, ms in enumerate((3000, 2000, 1500)):
        cache.stall("file_lock", ms, "/out/log", tid=PID + thread, count=1000)
    judged = cache.judged()
    assert judged.data.verdicts == ["lock_contention"]
    found = abnormal(judged)["file.lock_contention"]
    assert (found.subject.path, found.subject.tid) == ("/out/log", None)
    assert found.metrics["window_pct"] == pytest.approx(30)  # of the one that waits most, not of all together
    assert found.metrics["threads"] == 3
    assert found.metrics["total_ms"] == pytest.approx(6500)
    assert found.attributes["operations"] == "write"


def test_time_throttled_within_reclaim_is_told_once() -> None:
    cache = Cache().stall("cgroup_reclaim", 900).stall("throttled_reclaim", 600)
    judged = cache.stall("throttled_reclaim", 500, tid=PID + 1).judged()
    found = [(f.subject.tid, f.attributes["what"]) for f in judged.findings if f.kind == "memory.reclaim_stall"]
    assert found == [(PID, "cgroup_reclaim"), (PID + 1, "throttled_reclaim")]
    assert judged.data.processes[0].reclaim_ms == 900


def test_one_wait_that_is_still_on_counts() -> None:
    judged = Cache().stall("dirty_throttle", 1500, "/out/x", count=1, still=True).judged()
    found = abnormal(judged)["writeback.throttled"]
    assert found.attributes["in_flight"] == "yes"
    assert found.interval.start_ns == 1_000_000_000


def test_a_warm_set_is_healthy_and_rules_out() -> None:
    judged = rereading(Cache(), pid=PID, path=HOT).judged()
    assert judged.data.verdicts == ["healthy"]
    found = normal(judged)
    assert found["cache.use"].metrics["hit_pct"] == 100
    for kind in ("memory.reclaim_stall", "writeback.throttled"):
        assert (found[kind].subject.tid, found[kind].metrics["window_pct"]) == (PID, 0)
    assert found["file.lock_contention"].subject.tid is None


def test_an_idle_host_has_no_data() -> None:
    recording = Cache().build()
    assert page_cache.judge(recording, page_cache.Params(pid=PID)).data.verdicts == ["idle"]
    assert envelope(page_cache.TOOL, recording, page_cache.Params(pid=PID)).status is Status.NO_DATA


def test_a_target_that_does_not_use_the_cache_is_idle_whatever_others_do() -> None:
    judged = rereading(Cache()).judged()
    assert judged.data.verdicts == ["idle"]
    assert judged.seen > 0


def test_lost_events_make_nobody_a_stream() -> None:
    """A touch that was lost makes a page look used once."""
    recording = rereading(streaming().short(3200), back=100).build(lost={"page_cache": 500})
    result = envelope(page_cache.TOOL, recording, page_cache.Params(pid=PID))
    assert result.status is Status.PARTIAL
    assert result.data.verdicts == ["cannot_tell"]
    assert not [f for f in result.findings if f.kind.startswith("cache.")]
    assert result.data.files[0].added_bytes == 4000 << 20


def test_a_collector_that_was_not_proven_says_nothing_normal() -> None:
    judged = rereading(Cache(), pid=PID).judged(unproven=["page_cache"])
    assert judged.data.verdicts == ["cannot_tell"]
    assert not [f for f in judged.findings if f.spec.mechanism.value == "pages"]


def test_a_kernel_that_does_not_tell_how_often_pages_are_used_accuses_nobody() -> None:
    """Before 6.12: what is asked for is known by calls, what mappings touch is not, and nor is who streams."""
    cache = Cache().use(accessed=4000, added=4000, known=False).gone(reclaimed=3200, tracked=4000, known=False)
    judged = rereading(cache.short(3200), back=100).judged()
    assert judged.data.verdicts == ["cannot_tell"]
    row = judged.data.files[0]
    assert (row.hit_pct, row.one_pass_pct, row.judged_pct, row.refault_pct) == (0, None, None, 0)
    assert not {"cache.streaming", "cache.thrash"} & {f.kind for f in judged.findings}


def test_a_hit_ratio_is_not_told_where_faults_that_are_not_seen_may_have_read() -> None:
    cache = Cache().use(accessed=100, added=100, known=False)
    for at_ns, faults in ((0, 5), (10**10, 9)):
        cache.scene._add(
            "proc.processes",
            **{"at_ns": at_ns, "pid": PID, "ppid": 1, "comm": "train", "start_ticks": 7, "major_faults": faults},
            **dict.fromkeys(("user_ns", "system_ns", "block_io_ns", "minor_faults", "rss_bytes"), 0),
            **{"read_bytes": 0, "write_bytes": 0, "threads": 1, "cgroup": "/job"},
        )
    assert cache.judged().data.files[0].hit_pct is None


def test_what_was_followed_in_part_is_told_of_that_part_only() -> None:
    cache = Cache().use(accessed=4000, added=4000).short(3200)
    cache.gone(reclaimed=3200, one_pass=1000, tracked=1000, untracked=3000)
    judged = rereading(cache, back=100).judged()
    assert "cache.streaming" not in abnormal(judged)
    assert ("cache_untracked", f"{3000 * 256} of {4100 * 256} pages") in judged.not_seen


def test_a_recording_made_before_memory_was_read_is_judged_without_it() -> None:
    recording = rereading(streaming().short(3200), back=100).build(without=["residency", "samples"])
    tables = recording.tables()
    del tables["proc.memory"]
    older = type(recording)(recording.manifest, tables)
    judged = page_cache.judge(older, page_cache.Params(pid=PID))
    assert judged.data.verdicts == ["streaming"]
    assert judged.data.cgroups == []
    assert ("less_told", "residency") in judged.not_seen


def test_without_counters_the_pages_still_tell() -> None:
    recording = rereading(streaming(), back=100).build(without=["proc", "residency", "samples"])
    judged = page_cache.judge(recording, page_cache.Params(pid=PID))
    assert judged.data.host.kswapd_cpu_pct is None
    assert ("less_told", "proc") in judged.not_seen


def test_the_whole_host_names_everybody() -> None:
    cache = rereading(streaming(pid=OTHER).short(3200), pid=PID, back=100)
    recording = cache.build(target=EVERYBODY)
    judged = page_cache.judge(recording, page_cache.Params())
    named = {(f.subject.pid, f.kind) for f in judged.findings if f.subject.pid}
    assert named == {(PID, "cache.thrash"), (PID, "cache.use"), (OTHER, "cache.streaming")}
    assert all(row.in_target for row in judged.data.processes)


def test_direct_io_passes_the_cache_by() -> None:
    judged = Cache().use(direct=3000).judged()
    assert judged.data.files[0].operations == "direct"
    assert not abnormal(judged)


def sampled(cache: Cache, stacks: dict[tuple[str, ...], int], period_ns: int = 10_000_000) -> None:
    """Samples of the target in kernel stacks, outermost first."""
    scene, number = cache.scene, 0
    scene._add("samples.threads", thread=0, pid=PID, tid=PID, comm="train")
    scene._add("samples.events", event=0, name="cpu-clock", unit="ns", period=float(period_ns))
    for frames, count in stacks.items():
        parent = -1
        for name in frames:
            scene._add("samples.frames", frame=number, name=name, file="", line=0, kind="kernel")
            scene._add("samples.stacks", stack=number, parent=parent, frame=number)
            parent, number = number, number + 1
        for at in range(count):
            sample = {"at_ns": at * period_ns, "span_ns": 0, "thread": 0, "stack": parent, "event": 0}
            scene._add("samples.samples", **sample, weight=float(period_ns))


def test_cpu_time_in_the_cache_is_told_by_what_it_was_for() -> None:
    cache = rereading(Cache(), pid=PID)
    read = ("vfs_read", "filemap_read")
    sampled(
        cache,
        {
            (*read, "_copy_to_iter", "rep_movs_alternative"): 200,
            (*read, "page_cache_ra_order", "try_to_free_mem_cgroup_pages", "shrink_folio_list.constprop.0"): 300,
            ("sock_recvmsg", "_copy_to_iter"): 400,
        },
    )
    judged = cache.judged()
    (row,) = judged.data.cpu
    assert (row.samples, row.cpu_pct, row.reclaim_pct, row.copy_pct) == (500, 50, 30, 20)
    assert row.low_pct < 50 < row.high_pct
    found = abnormal(judged)["cache.cpu"]
    assert found.severity.value == "major"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_is_found_can_be_said(lang: str) -> None:
    cache = rereading(streaming().short(3200, kswapd=25), back=100)
    cache.memory("/job", limit=1000, usage=990, hits=900).stall("direct_reclaim", 500)
    cache.stall("dirty_throttle", 900, "/out/x").stall("file_lock", 900, "/out/x")
    for finding in cache.judged().findings:
        said = voice("txt", lang).finding(finding)
        assert "{" not in said
        assert "None" not in said


@pytest.mark.thorough
def test_whatever_a_strangers_recording_holds_is_judged_or_left_alone() -> None:
    """Numbers that contradict each other, of processes and files that are nowhere else: no claim, but no crash."""
    values = random.Random(7)
    numbers = (-1, 0, 1, 3, 4096, 10**6, 2**40, 2**62)
    tables = ("use", "evictions", "stalls", "sizes", "files")
    for _ in range(150):
        cache = Cache()
        for name in tables:
            for _ in range(values.randrange(4)):
                made = {column: _any(dtype, values, numbers) for column, dtype in PAGE_CACHE[name].items()}
                cache.scene._add(f"page_cache.{name}", **made)
        for table, schema in (("proc.memory", PROC["memory"]), ("residency.open_files", RESIDENCY["open_files"])):
            for _ in range(values.randrange(3)):
                cache.scene._add(table, **{c: _any(dtype, values, numbers) for c, dtype in schema.items()})
        sampled(cache, {("filemap_read", "shrink_node"): 1})
        cache.scene._add("samples.samples", at_ns=1, span_ns=0, thread=0, stack=99, event=0, weight=1e9)
        cache.scene._add("samples.stacks", stack=2, parent=77, frame=55)
        target = values.choice((EVERYBODY, None))
        judged = cache.judged(target=target) if target else cache.judged()
        for finding in judged.findings:
            assert voice("txt", "en").finding(finding)


def _any(dtype: pl.DataType, values: random.Random, numbers: tuple[int, ...]) -> object:
    if dtype == pl.String:
        return values.choice(("", "/job", "/data/a1.bin", "file_lock", "cgroup_reclaim", "dirty_throttle"))
    return values.random() < 0.5 if dtype == pl.Boolean else values.choice(numbers)
