"""With which weights processes share the CPUs."""

from __future__ import annotations

from pathlib import Path

from whystall.tools.collect.proc_cgroup import Hierarchies
from whystall.tools.collect.proc_parse import PidStat
from whystall.tools.collect.proc_weights import WeightReader, nice_weight
from whystall.tools.node.mounts import Mount

_IDLE_POLICY = 5


def stat(pid: int, used_ns: int, *, nice: int = 0, policy: int = 0) -> PidStat:
    return PidStat(pid, f"p{pid}", "R", 1, 0, 0, used_ns, 0, 1, 1, 0, 0, 0, policy, nice)


def reader(tmp_path: Path, *, v1: bool, autogroup: bool = False) -> WeightReader:
    for name, weight in (("pods", "512"), ("pods/a", "10")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("cpu.shares" if v1 else "cpu.weight")).write_text(f"{weight}\n")
        (tmp_path / name / "cpu.max").write_text("max 100000\n")
    (tmp_path / "idle").mkdir()
    (tmp_path / "idle" / "cpu.idle").write_text("1\n")
    (tmp_path / "idle" / "cpu.max").write_text("max 100000\n")
    options = frozenset({"cpu"} if v1 else {"rw"})
    mount = Mount(1, "0:1", b"/", str(tmp_path).encode(), "cgroup" if v1 else "cgroup2", options)
    files = {"sys/kernel/sched_autogroup_enabled": b"%d" % autogroup, "12/autogroup": b"/autogroup-42 nice 5\n"}
    times = iter([0, 10**9, *[10**9] * 100])

    def read(name: str) -> bytes:
        if name not in files:
            raise FileNotFoundError(name)
        return files[name]

    return WeightReader(Hierarchies([mount]), read, lambda: next(times))


def rows(found: WeightReader, *ends: PidStat, path: bytes, controller: str) -> list[tuple[object, ...]]:
    members = {one.pid: {controller: path} for one in ends}
    assert not found.look([one._replace(user_ns=0) for one in ends], members, {11}, {})
    return [row[1:] for row in found.look(ends, members, {11}, {111: (11, stat(111, 0, policy=_IDLE_POLICY))})]


def test_the_weights_of_cgroups_of_the_process_and_of_a_thread_with_a_policy_of_its_own(tmp_path: Path) -> None:
    found = rows(reader(tmp_path, v1=True), stat(11, 0, nice=10), path=b"/pods/a", controller="cpu")
    assert found == [
        (11, "p11", "/pods", 512, "cpu.shares", 512),
        (11, "p11", "/pods/a", 10, "cpu.shares", 10),
        (11, "p11", "", 110, "nice", 10),
        (111, "p111", "/pods", 512, "cpu.shares", 512),
        (111, "p111", "/pods/a", 10, "cpu.shares", 10),
        (111, "p111", "", 3, "SCHED_IDLE", 0),
    ]


def test_a_weight_of_version_2_is_on_the_scale_of_shares_and_idle_groups_have_next_to_none(tmp_path: Path) -> None:
    made = reader(tmp_path, v1=False)
    assert rows(made, stat(11, 0), path=b"/pods", controller="")[0][3:] == (5242, "cpu.weight", 512)
    other = Hierarchies([Mount(1, "0:1", b"/", str(tmp_path).encode(), "cgroup2", frozenset({"rw"}))])
    times = iter(range(0, 10**10, 10**9))
    idle = WeightReader(other, lambda name: b"0", lambda: next(times))
    assert rows(idle, stat(11, 0), path=b"/idle", controller="")[0][3:] == (3, "cpu.idle", 1)


def test_others_count_if_they_ran_and_sessions_share_like_cgroups(tmp_path: Path) -> None:
    made = reader(tmp_path, v1=True, autogroup=True)
    ends = (stat(12, 10**9, policy=_IDLE_POLICY), stat(13, 10**6))
    assert rows(made, *ends, path=b"/", controller="cpu") == [
        (12, "p12", "/autogroup-42", 336, "autogroup nice", 5),
        (12, "p12", "", 3, "SCHED_IDLE", 0),
    ]


def test_nice_19_weighs_a_seventieth_of_nice_0() -> None:
    assert [nice_weight(nice) for nice in (-20, 0, 5, 19)] == [88818, 1024, 336, 15]
