"""Causes: complete, bilingual, valid kinds and metrics, and distinguishable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from making import finding, victim

from whystall.knowledge_base.causes import considered_for, load_causes, matches, ranked_remedies, read_causes
from whystall.knowledge_base.data import catalog
from whystall.knowledge_base.models import Cause, Pattern, Words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding, Polarity

MIB = 1024 * 1024
EXPECTED = {
    "sync_checkpoint_write",
    "fsync_storm",
    "slow_device",
    "slow_file_read",
    "metadata_stall",
    "kernel_cpu_in_syscall",
    "cpu_contention",
    "cgroup_cpu_throttling",
    "memory_reclaim",
    "lock_wait",
    "page_cache_thrash",
    "stuck_file_operation",
    "core_neighbour",
    "forced_migrations",
    "softirq_steal",
    "host_bound_dispatch",
    "late_wakeups",
    "slow_rank",
    "slow_rank_compute",
    "slow_rank_host",
    "slow_rank_loader",
    "rank_intermittent",
    "slow_rank_communication",
    "slow_link",
    "slow_replica",
    "pipeline_stage_imbalance",
    "rank_moving_jitter",
    "collective_hang",
    "cache_pollution",
    "streaming_reclaim",
    "cgroup_limit_small",
    "dirty_throttling",
    "file_lock_contention",
}
PATH = {
    "interpreter_lock_contention",
    "lock_held_computing",
    "lock_held_blocked",
    "deadlock",
    "data_loader_slow",
    "data_loader_waiting",
    "data_loader_stuck",
    "slow_peer",
    "slow_transfer",
    "silent_peer",
    "packet_loss",
    "bandwidth_limit",
    "dns_timeout",
    "connect_timeout",
    "blocked_log_pipe",
    "sleep_in_code",
    "polling_loop",
    "child_process_per_step",
    "own_hot_code",
    "garbage_collection",
    "event_loop_blocked",
    "thread_oversubscription",
    "wrong_affinity",
    "real_time_hog",
    "stopped_process",
    "frozen_cgroup",
    "frozen_file_system",
    "checked_file_access",
    "whole_file_system_sync",
    "out_of_memory_hold",
    "traced_process",
    "mapped_file_faults",
    "remote_file_system",
    "io_limit",
    "file_lock_held",
    "device_wait",
    "slow_rank_on_path",
    "absent_rank",
    "collective_wait",
    "recurring_pause",
    "waiting_for_person",
    "compiling",
}
HOST_BOUND = {"core_neighbour", "forced_migrations", "host_bound_dispatch", "late_wakeups"}
CJK = re.compile(r"[\u4e00-\u9fff]")


def candidates(*found: Finding) -> set[str]:
    """The causes that these findings support: a primary, what is required, and nothing against."""
    who = victim()

    def hit(patterns: list[Pattern]) -> bool:
        return any(matches(p, f, who) for p in patterns for f in found)

    return {
        cause.id
        for cause in load_causes().values()
        if hit(cause.primary) and (not cause.required or hit(cause.required)) and not hit(cause.against)
    }


def file_finding(kind: str, **metrics: float) -> Finding:
    base = {"window_pct": 30, "runnable_pct": 0, "blocked_pct": 95, "oncpu_pct": 5, "count": 3, "episodes": 3}
    return finding(kind, **(base | metrics))


def test_all_causes_are_there_in_both_languages() -> None:
    causes = load_causes()
    assert set(causes) >= EXPECTED | PATH
    for cause in causes.values():
        words = [cause.title, cause.summary, cause.verify, *(remedy.text for remedy in cause.remedies)]
        for text in words:
            assert CJK.search(text.zh), (cause.id, text)
            assert not CJK.search(text.en), (cause.id, text)
            assert text.en.strip() == text.en
        assert len(cause.remedies) >= 3, cause.id


@pytest.mark.parametrize(
    ("proof", "first", "last"),
    [
        ("cycle", "lock_order", {"reentrant_lock", "no_fork_with_threads"}),
        ("itself", "reentrant_lock", {"lock_order", "no_fork_with_threads"}),
        ("dead_owner", "no_fork_with_threads", {"reentrant_lock", "lock_order"}),
    ],
)
def test_a_remedy_that_suits_the_evidence_comes_first(proof: str, first: str, last: set[str]) -> None:
    evidence = [finding("lock.deadlock", words={"proof": proof})]
    ranked = [remedy.id for remedy in ranked_remedies(load_causes()["deadlock"], evidence)]
    assert ranked[0] == first
    assert set(ranked[-2:]) == last


@pytest.mark.parametrize("cause", sorted(EXPECTED))
def test_every_cause_can_be_ruled_out_by_a_normal_measurement(cause: str) -> None:
    refuted = load_causes()[cause].refuted
    assert any(pattern.polarity is Polarity.NORMAL for pattern in refuted)


def test_remedies_are_ranked_by_gain_then_effort() -> None:
    first = ranked_remedies(load_causes()["sync_checkpoint_write"])
    assert first[0].id == "async_checkpoint"
    keys = [(-r.gain, r.effort) for r in first]
    assert keys == sorted(keys)
    assert len(set(keys)) > 2


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            [file_finding("file.slow_sync", episode_bytes=50 * MIB)],
            {"sync_checkpoint_write"},
            id="checkpoint",
        ),
        pytest.param(
            [file_finding("file.slow_write", episode_bytes=50 * MIB, count=3200)],
            {"sync_checkpoint_write"},
            id="throttled buffered checkpoint",
        ),
        pytest.param(
            [file_finding("file.slow_sync", episode_bytes=4096, count=200, episodes=200)],
            {"fsync_storm"},
            id="log",
        ),
        pytest.param(
            [file_finding("file.slow_sync", episode_bytes=8 * MIB, count=2000, episodes=1, bytes=8 * MIB)],
            {"fsync_storm"},
            id="storm without a pause: one long episode",
        ),
        pytest.param(
            [file_finding("file.slow_sync", episode_bytes=800 * MIB, count=200, episodes=1, bytes=800 * MIB)],
            {"sync_checkpoint_write"},
            id="checkpoints without a pause: one long episode",
        ),
        pytest.param(
            [file_finding("file.slow_metadata", max_ms=9000, words={"in_flight": "yes"})],
            {"metadata_stall", "stuck_file_operation"},
            id="a file server that does not answer",
        ),
        pytest.param(
            [file_finding("file.slow_read"), finding("memory.cgroup_limit", limit_hit_rate=900, refault_pct=97)],
            {"slow_file_read", "page_cache_thrash"},
            id="what is read was evicted before",
        ),
        pytest.param(
            [file_finding("file.slow_read"), finding("memory.cgroup_limit", limit_hit_rate=900, refault_pct=3)],
            {"slow_file_read"},
            id="a data set read once fills the cache and hits the limit too",
        ),
        pytest.param([file_finding("file.slow_sync", episode_bytes=4096, count=2, episodes=2)], set(), id="two syncs"),
        pytest.param(
            [file_finding("file.slow_sync", episode_bytes=50 * MIB, runnable_pct=90)],
            set(),
            id="it had no CPU",
        ),
        pytest.param([file_finding("file.slow_read")], {"slow_file_read"}, id="read"),
        pytest.param([file_finding("file.slow_metadata")], {"metadata_stall"}, id="metadata"),
        pytest.param(
            [finding("syscall.cpu_time", words={"syscall": "getrandom"}, window_pct=40)],
            {"kernel_cpu_in_syscall"},
            id="getrandom",
        ),
        pytest.param([finding("syscall.cpu_time", words={"syscall": "getrandom"}, window_pct=3)], set(), id="little"),
        pytest.param([finding("offcpu.lock_wait", window_pct=30)], {"lock_wait"}, id="lock"),
        pytest.param([finding("process.io_wait", window_pct=30)], set(), id="waits, but no device was seen slow"),
        pytest.param(
            [finding("process.io_wait", window_pct=30), finding("disk.saturated", util_pct=100)],
            {"slow_device"},
            id="waits for a saturated device",
        ),
        pytest.param(
            [finding("block.slow_io", max_ms=900), finding("disk.saturated", util_pct=100)],
            set(),
            id="slow device that nobody here waits for",
        ),
        pytest.param([finding("sched.runqueue_delay", window_pct=40)], {"cpu_contention"}, id="contention"),
        pytest.param(
            [finding("sched.runqueue_delay", window_pct=40), finding("cgroup.cpu_throttled", window_pct=80)],
            {"cgroup_cpu_throttling", "cpu_contention"},  # how much is left for the second, the investigation says
            id="throttled",
        ),
        pytest.param([finding("cgroup.cpu_throttled", window_pct=80)], set(), id="others of the group are throttled"),
        pytest.param(
            [
                finding("process.system_time", window_pct=40),
                finding("memory.cgroup_limit", limit_hit_rate=900),
            ],
            {"memory_reclaim"},
            id="reclaim in its own context",
        ),
        pytest.param(
            [
                finding("process.system_time", window_pct=40),
                finding("memory.reclaim", direct_scan_rate=900),
                finding("syscall.cpu_time", words={"syscall": "getrandom"}, window_pct=39),
            ],
            {"kernel_cpu_in_syscall"},
            id="reclaim beside a call that does not allocate",
        ),
        pytest.param(
            [finding("sched.preempted_by", window_pct=40), finding("sched.runqueue_delay", window_pct=41)],
            {"core_neighbour", "cpu_contention"},
            id="a neighbour that is known by name",
        ),
        pytest.param(
            [finding("accel.host_bound", words={"reason": "no_cpu"}, window_pct=40)],
            set(),
            id="a device that waits, but the scheduler shows no neighbour",
        ),
        pytest.param(
            [finding("sched.preempted_by", window_pct=20), finding("sched.throttled", window_pct=40)],
            {"core_neighbour"},
            id="a neighbour beside a quota, and no counter that says so",
        ),
        pytest.param(
            [finding("sched.throttled", window_pct=40), finding("cgroup.cpu_throttled", window_pct=40)],
            {"cgroup_cpu_throttling"},
            id="a quota, by the scheduler and by its counter",
        ),
        pytest.param([finding("irq.steal", window_pct=20)], {"softirq_steal"}, id="interrupts"),
        pytest.param(
            [finding("irq.steal", window_pct=9), finding("path.running", words={"mode": "interrupt"}, window_pct=60)],
            {"softirq_steal"},
            id="interrupts that are sampled, but only partly timed",
        ),
        pytest.param(
            [finding("path.running", words={"mode": "interrupt"}, window_pct=60)],
            set(),
            id="interrupts in samples only",
        ),
        pytest.param([finding("sched.migrations", window_pct=6)], {"forced_migrations"}, id="moved to and fro"),
        pytest.param(
            [finding("accel.host_bound", words={"reason": "running"}, window_pct=30)],
            {"host_bound_dispatch"},
            id="the device waits for Python",
        ),
        pytest.param(
            [finding("sched.wakeup_latency", words={"mostly": "idle_exit"}, window_pct=9)],
            {"late_wakeups"},
            id="deep idle",
        ),
        pytest.param(
            [finding("sched.wakeup_latency", words={"mostly": "no_cpu"}, window_pct=9)],
            set(),
            id="late, because of others",
        ),
    ],
)
def test_findings_lead_to_the_right_causes(found: list[Finding], expected: set[str]) -> None:
    assert candidates(*found) == expected


@pytest.mark.parametrize(
    ("symptom", "asked"),
    [
        ("NPU idle", True),
        ("NPU/GPU idle", True),
        ("the GPUs are idle half of the time", True),
        ("GPU utilisation low", True),
        ("is it host bound?", True),
        ("many bubbles on the timeline", True),
        ("加速卡空闲", True),
        ("昇腾利用率低", True),
        ("NPU 时间线上有很多空泡", True),
        ("", False),
        ("slow", False),
        ("the training hangs", False),
        ("workers idle", False),
        ("GPU out of memory", False),
        ("训练变慢", False),
    ],
)
def test_causes_with_expensive_tools_need_a_matching_symptom(symptom: str, asked: bool) -> None:
    chosen = considered_for(load_causes(), symptom).keys()
    others = {id for id, cause in load_causes().items() if not cause.symptoms and (symptom or not cause.ordinary)}
    assert chosen >= others
    assert (chosen & HOST_BOUND) == (HOST_BOUND if asked else set())


def test_another_thread_is_not_the_victim() -> None:
    other = finding("file.slow_sync", subject={"tid": 99}, episode_bytes=50 * MIB, episodes=3, count=3, runnable_pct=0)
    assert candidates(other) == set()


def test_a_bound_on_an_absent_metric_does_not_hold() -> None:
    slow = Pattern(kind="file.slow_sync", max={"runnable_pct": 50})
    assert not matches(slow, finding("file.slow_sync"), victim())
    assert not matches(
        Pattern(kind="file.slow_sync", min={"count/episodes": 1}),
        finding("file.slow_sync", count=3),
        victim(),
    )


def test_without_a_victim_nothing_is_about_it() -> None:
    assert not matches(Pattern(kind="disk.saturated"), finding("disk.saturated"), None)
    assert matches(Pattern(kind="disk.saturated", victim=False), finding("disk.saturated"), None)


def good() -> dict[str, Any]:
    return dict(yaml.safe_load((catalog("causes") / "lock_wait.yaml").read_text("utf-8")))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"primary": [{"kind": "file.slow_think"}]}, "primary.0.kind"),
        ({"primary": [{"kind": "offcpu.lock_wait", "min": {"furlongs": 1}}]}, "primary.0.min"),
        ({"primary": [{"kind": "offcpu.lock_wait", "max": {"count/furlongs": 1}}]}, "primary.0.max"),
        (
            {"refuted": [{"kind": "offcpu.lock_wait", "attributes": {"mood": ["sad"]}}]},
            "refuted.0.attributes",
        ),
        ({"primary": [{"kind": "disk.saturated"}]}, "primary"),
        ({"primary": []}, "primary"),
        ({"title": {"en": "Only English"}}, "title.zh"),
        ({"colour": "red"}, "colour"),
        ({"id": "lock_weight"}, "id"),
        ({"culprits": [{"kind": "cache.rustling"}]}, "culprits.0.kind"),
        ({"rivals": ["moonlight"]}, "rivals: unknown cause 'moonlight'"),
        ({"symptoms": [["gpu", "moonlight"]]}, "symptoms.0: the glossary has no concept 'moonlight'"),
        ({"primary": [{"kind": "offcpu.lock_wait", "symptoms": [["moonlight"]]}]}, "primary.0.symptoms.0"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    (tmp_path / "lock_wait.yaml").write_text(yaml.safe_dump(good() | change), "utf-8")
    with pytest.raises(ToolError) as caught:
        read_causes(tmp_path)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert caught.value.message.startswith(f"lock_wait.yaml: {fault}")


@pytest.mark.parametrize("text", ["id: [", "just words", "", "- 1"])
def test_a_file_that_is_no_cause_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "torn.yaml").write_text(text, "utf-8")
    with pytest.raises(ToolError, match=r"torn\.yaml"):
        read_causes(tmp_path)


def test_a_good_file_loads(tmp_path: Path) -> None:
    (tmp_path / "lock_wait.yaml").write_text(yaml.safe_dump(good()), "utf-8")
    assert isinstance(read_causes(tmp_path)["lock_wait"], Cause)
    assert Words(en="a", zh="b").get("zh") == "b"
