"""memory_growth and its collector on small tables, trees and records of the kernel's log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from recordings import PID, Scene

from whystall.tools.collect.kernel_log import KernelLog, oom_kills
from whystall.tools.collect.proc_cgroup import Place
from whystall.tools.collect.proc_memory_sizes import read_group
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.host.common import oom
from whystall.tools.host.memory_growth.tool import Params, judge
from whystall.tools.host.memory_growth.trend import trend
from whystall.tools.recording.oom_kills import Vanished, counted_kills

MIB = 1 << 20
LOG = [
    b"6,2029,25320993913,-;Tasks state (memory values in pages):\n",
    b"6,2032,25320993921,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    b"oom_memcg=/job,task_memcg=/job/a,task=python3,pid=19763,uid=0\n",
    b"3,2033,25320993947,-;Memory cgroup out of memory: Killed process 19763 (python3) total-vm:221368kB, "
    b"anon-rss:32512kB, file-rss:6632kB, shmem-rss:0kB, UID:0 pgtables:124kB oom_score_adj:0\n",
    # a message of user space, whose facility is not the kernel's
    b"12,2034,25320993948,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=forged,pid=1,uid=0\n",
    b"6,2035,25320993950,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    b"task_memcg=/b,task=a,pid=1,uid=0\n SUBSYSTEM=x\n",
]


def readings(*sizes: float) -> list[tuple[int, float]]:
    return [(i * 1_000_000_000, size * MIB) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "steady"),
    [
        ((1, 2, 3, 4, 5), True),
        ((10, 11, 11, 12, 13, 13, 14, 15, 15, 16), True),
        ((10, 10, 10, 50, 50, 50, 50, 50), False),  # one allocation
        ((1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5), False),  # has ended
        ((10, 14, 10, 14, 10, 14, 10, 14, 11), False),  # up and down
        ((9, 8, 7, 6, 5, 4), False),
    ],
)
def test_growth_is_steady_if_it_goes_on_in_small_steps(sizes: tuple[float, ...], steady: bool) -> None:
    found = trend(readings(*sizes))
    assert found is not None
    assert found.steady is steady


def test_the_rate_is_the_median_slope_and_four_readings_prove_nothing() -> None:
    found = trend(readings(0, 3, 6, 9, 12, 15))
    assert found is not None
    assert (found.rate, found.grown_bytes) == (pytest.approx(3 * MIB), 15 * MIB)
    assert found.p_value == pytest.approx(1 / 720)
    assert trend(readings(1, 2, 3, 4)) is None


def test_the_log_names_the_killed_process_and_both_cgroups(tmp_path: Path) -> None:
    first, second = oom_kills(LOG)
    assert first == (25320993921, 19763, "python3", "/job/a", "/job", 32512 * 1024)
    assert second[1:] == (1, "a", "/b", "", -1)
    absent = KernelLog(tmp_path / "none")
    assert (absent.denied, absent.read()) == (True, [])


def test_a_kill_whose_first_line_was_suppressed_has_no_cgroup() -> None:
    """The kernel logs the cgroups of ten kills in five seconds, and the name of every killed process."""
    second = b"3,9,%d,-;%s: Killed process %d (python3) total-vm:9kB, anon-rss:8kB, file-rss:0kB\n"
    of_group, of_host = (b"Memory cgroup out of memory", b"Out of memory")
    later = [second % (5, of_group, 20), second % (6, of_host, 21)]
    assert oom_kills(LOG[:4] + later)[1:] == [(5, 20, "python3", None, "", 8192), (6, 21, "python3", "", "", 8192)]


def test_counters_name_a_process_only_if_all_that_vanished_there_are_accounted_for() -> None:
    one, other = Vanished(7, "a", "/job", 5), Vanished(8, "b", "/job", 6)
    assert counted_kills([one], {}, {"/job": 1, "/x": 0}, []) == [(one, "/job")]
    assert counted_kills([one, other], {}, {"/job": 1}, []) == [(None, "/job")]
    assert counted_kills([one, other], {8: 15}, {"/job": 1}, []) == [(one, "/job")]  # the other got SIGTERM
    assert counted_kills([one], {}, {"/job": 2}, ["/job"]) == [(one, "/job")]  # one is named by the log


def test_version_2_counts_its_own_kills_and_what_can_be_reclaimed(tmp_path: Path) -> None:
    files = {
        "memory.stat": "anon 50\nfile 400\nshmem 100\nslab 70\nslab_reclaimable 30\nkernel_stack 5\n",
        "memory.current": "600\n",
        "memory.max": "max\n",
        "memory.high": "1000\n",
        "memory.events": "oom_kill 3\n",
        "memory.events.local": "oom_kill 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_group(Place(2, b"job", None, str(tmp_path).encode())) == (600, 1000, 50, 400, 100, 70, 5, -1, 330, 1)


def process(at_s: float, pid: int = PID, ppid: int = 1, **sizes: int) -> dict[str, Any]:
    unknown = dict.fromkeys(("pss_bytes", "private_dirty_bytes", "private_clean_bytes", "shared_bytes"), -1)
    known = {"rss_bytes": 0, "anon_bytes": 0, "file_bytes": 0, "shmem_bytes": 0, "swap_bytes": 0, "page_table_bytes": 0}
    who = {"at_ns": int(at_s * 1e9), "pid": pid, "ppid": ppid, "comm": "train", "start_ticks": 7, "cgroup": "/job/a"}
    return {**who, **known, **unknown, **sizes}


def group(at_s: float, cgroup: str, used: int, limit: int, *, cache: int = 0) -> dict[str, Any]:
    names = ("anon", "file", "shmem", "slab", "kernel_stack", "swap")
    rest = dict.fromkeys((f"{name}_bytes" for name in names), 0) | {"file_bytes": cache, "oom_kills": 0}
    sizes = {"used_bytes": used, "limit_bytes": limit, "reclaimable_bytes": cache}
    return {"at_ns": int(at_s * 1e9), "cgroup": cgroup, **rest, **sizes}


def growing(rate: int, limit: int, *, cached: bool = False) -> Scene:
    scene = Scene(window_s=10)
    for second in range(11):
        grown = rate * second
        scene.tables.setdefault("memory_use.processes", []).append(
            process(second, rss_bytes=grown, anon_bytes=0 if cached else grown, file_bytes=grown if cached else 0)
        )
        cache = grown if cached else 0
        scene.tables.setdefault("memory_use.groups", []).extend(
            [
                group(second, "/job", grown, limit, cache=cache),
                group(second, "", 10 * MIB + grown, 1 << 40, cache=cache),
            ]
        )
    return scene


def of(scene: Scene, kind: str, **manifest: Any) -> list[Finding]:
    return [f for f in judge(scene.build(**manifest), Params(pid=PID)).findings if f.kind == kind]


def test_a_process_that_grows_towards_the_limit_of_its_cgroup() -> None:
    scene = growing(2 * MIB, 140 * MIB)
    (finding,) = of(scene, "memory.growth")
    assert (finding.polarity, finding.severity) == (Polarity.ABNORMAL, Severity.CRITICAL)
    assert finding.metrics["rate"] == pytest.approx(2 * MIB)
    assert finding.metrics["until_limit_s"] == pytest.approx(60)
    assert finding.attributes["limit_of"] == "/job"
    polarity = {f.subject.cgroup: f.polarity for f in of(scene, "memory.group_growth")}
    assert polarity == {"/job": Polarity.ABNORMAL, None: Polarity.NORMAL}  # the host has room for weeks


def test_growth_of_the_page_cache_is_no_leak() -> None:
    found = [*of(growing(2 * MIB, 140 * MIB, cached=True), "memory.growth")]
    found += of(growing(2 * MIB, 140 * MIB, cached=True), "memory.group_growth")
    assert {f.polarity for f in found} == {Polarity.NORMAL}


@pytest.mark.parametrize("written", [True, False])
def test_memory_that_a_child_copies_shows_in_the_sum_of_proportional_sizes(written: bool) -> None:
    scene = Scene(window_s=10)
    half, whole = 50 * MIB, 100 * MIB
    for second, parts in ((0, half), (10, whole if written else half)):
        sizes = {"rss_bytes": whole, "anon_bytes": whole, "pss_bytes": parts}
        dirty = {"private_dirty_bytes": whole if parts == whole else 0, "private_clean_bytes": 0, "shared_bytes": 0}
        rows = [process(second, **sizes, **dirty), process(second, PID + 1, PID, **sizes, **dirty)]
        scene.tables.setdefault("memory_use.processes", []).extend(rows)
    found = of(scene, "memory.copies")
    assert [f.metrics["copied_bytes"] for f in found] == ([100 * MIB] if written else [])


def test_the_oom_kill_of_the_target_is_named_with_cgroup_and_limit() -> None:
    scene = growing(2 * MIB, 22 * MIB)
    kill = {"at_ns": 9_000_000_000, "pid": PID, "comm": "train", "cgroup": "/job/a", "limit_cgroup": "/job"}
    scene.tables["memory_use.oom_kills"] = [{**kill, "anon_bytes": 21 * MIB, "source": "log"}]
    (finding,) = of(scene, "memory.oom_kill", target_exited=True)
    assert (finding.subject.pid, finding.subject.cgroup, finding.attributes["limit_of"]) == (PID, "/job/a", "/job")
    assert (finding.metrics["limit_bytes"], finding.window_pct) == (22 * MIB, 100)


def test_of_many_alike_that_were_killed_two_are_listed() -> None:
    scene = growing(2 * MIB, 22 * MIB)
    for pid in (20, 21, 22, PID):
        kill = {"at_ns": 9_000_000_000, "pid": pid, "comm": "train", "cgroup": "/job/a", "limit_cgroup": "/job"}
        scene.tables.setdefault("memory_use.oom_kills", []).append({**kill, "anon_bytes": MIB, "source": "log"})
    found = of(scene, "memory.oom_kill", target_exited=True)
    assert [(f.subject.pid, "window_pct" in f.metrics) for f in found] == [(20, False), (21, False), (PID, True)]


def test_without_the_collector_a_kill_is_found_by_the_counters_of_the_cgroup() -> None:
    scene = Scene(window_s=10).process(PID, "train", cgroup="/job").process(1, "init", cgroup="/").cgroup(full=True)
    del scene.tables["proc.processes"][1 : scene.samples]  # the target is gone at the end
    unknown = dict.fromkeys(scene.build().table("proc.memory").columns, -1)
    for at_ns, kills in ((0, 4), (scene.window_ns, 5)):
        row = {**unknown, "at_ns": at_ns, "cgroup": "/job", "oom_kills": kills}
        scene.tables.setdefault("proc.memory", []).append(row)
    (kill,) = oom.kills(scene.build())
    assert (kill.pid, kill.cgroup, kill.limit_of, kill.limit_bytes) == (PID, "/job", "/job", 1 << 30)


def test_judging_thousands_of_processes_is_fast() -> None:
    scene = growing(2 * MIB, 140 * MIB)
    rows = scene.tables["memory_use.processes"]
    for pid in range(PID + 1, PID + 400):
        rows += [{**row, "pid": pid, "ppid": PID} for row in rows[:11]]
    recording = scene.build()
    began = time.process_time()
    judge(recording, Params(pid=PID))
    assert time.process_time() - began < 2
