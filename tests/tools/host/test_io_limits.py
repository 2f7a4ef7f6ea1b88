"""Limits of block I/O: which are reached, and when that is unknown."""

from __future__ import annotations

import pytest
from recordings import PID, Scene

from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.host.host_snapshot.io_limits import findings

MIB = 1 << 20
LIMIT = 10 * MIB


def judge(
    moved: list[float], *, busy: float = 10, whole: bool = True, others: bool = False, iops: bool = False
) -> list[Finding]:
    """`moved`: MiB, or operations, in each tenth of a second of a limit of 10 per second."""
    scene = Scene(window_s=len(moved) / 10).disk("loop0", busy=busy)
    limits = (-1, -1, -1, 10) if iops else (-1, LIMIT, -1, -1)
    names = ("read_rate", "write_rate", "read_iops", "write_iops")
    row = {"at_ns": 0, "pid": PID, "cgroup": "/job", "version": 1}
    rows = [{**row, "dev": "8:0", **dict(zip(names, limits, strict=True))}]
    none = {**dict.fromkeys(names, -1), "dev": ""}
    rows += [{**row, **none}] if whole else []
    rows += [{**row, **none, "pid": PID + 1, "cgroup": "/free"}] if others else []
    scene.tables["proc.io_limits"] = rows
    total, use = 0.0, []
    for index, amount in enumerate([0.0, *moved]):
        total += amount
        use.append({"at_ns": index * 100_000_000, "cgroup": "/job", "dev": "8:0", "read_bytes": 0, "reads": 0})
        use[-1] |= {"write_bytes": int(total * MIB), "writes": int(total)}
    scene.tables["proc.io_use"] = use
    return findings(scene.build(), {"loop0"} if busy > 90 else set())


def test_a_limit_that_is_used_up_is_reached() -> None:
    (found,) = judge([1.0] * 50)
    assert found.polarity is Polarity.ABNORMAL
    assert (found.subject.cgroup, found.subject.device, found.subject.pid) == ("/job", "loop0", None)
    assert found.attributes["limit_file"] == "blkio.throttle.write_bps_device"
    assert found.metrics["rate"] == pytest.approx(LIMIT)
    assert found.metrics["window_pct"] == pytest.approx(100)


def test_a_burst_reaches_it_and_accounts_for_its_own_time() -> None:
    (found,) = judge([1.0] * 5 + [0.0] * 15 + [1.0] * 5 + [0.0] * 15)
    assert found.polarity is Polarity.ABNORMAL
    assert found.metrics["window_pct"] == pytest.approx(25, abs=3)


def test_operations_are_limited_too() -> None:
    (found,) = judge([1.0] * 50, iops=True)
    assert found.metrics["limit_iops"] == 10
    assert found.metrics["iops"] == pytest.approx(10)


def test_a_limit_that_is_not_reached_holds_nobody_back() -> None:
    (found,) = judge([0.3] * 50)
    assert found.polarity is Polarity.NORMAL
    assert found.metrics["used_pct"] == pytest.approx(30, abs=1)


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param({"moved": [0.85] * 50}, id="nearly"),
        pytest.param({"moved": [1.0] * 50, "busy": 99}, id="the disk is busy"),
        pytest.param({"moved": [0.3] * 50, "whole": False}, id="limits above are not seen"),
        pytest.param({"moved": [1.0, 1.0]}, id="too short"),
        pytest.param({"moved": [1.0] * 20 + [-5.0] + [1.0] * 20}, id="reset"),
    ],
)
def test_nothing_is_said_of_what_is_unknown(unknown: dict[str, object]) -> None:
    assert judge(**unknown) == []  # type: ignore[arg-type]


def test_a_finding_names_the_process_unless_all_are_meant() -> None:
    reached, free = judge([1.0] * 50, others=True)
    assert (reached.subject.pid, free.subject.pid) == (PID, PID + 1)
    assert (free.polarity, free.subject.cgroup) == (Polarity.NORMAL, "/free")


def test_readings_outside_of_the_window_are_left_out() -> None:
    scene_moved = [0.3] * 48 + [20.0]  # the last one is of a time after the window
    (found,) = judge(scene_moved)
    assert found.polarity is Polarity.NORMAL


def test_older_recordings_say_nothing() -> None:
    assert findings(Scene().build(), set()) == []
