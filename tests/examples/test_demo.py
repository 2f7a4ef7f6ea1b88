"""The demo's judge accepts the right diagnosis and no other."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

import demo
import pytest

LOG = [
    {
        "event": "checkpoint",
        "path": f"/data/chk_{step}.bin",
        "total_s": 1.1,
        "start_mono_ns": step * 320_000_000,
        "end_mono_ns": step * 320_000_000 + 1_100_000_000,
    }
    for step in range(5, 40, 5)
]


def diagnosis(**changes: Any) -> dict[str, Any]:
    culprit = {"path": "/data/chk_10.bin", "latency_ms": 1090.0, "period_s": 1.61}
    culprit.update(changes.pop("culprit", {}))
    right = {"verdict": "confirmed", "cause": "sync_checkpoint_write", "ticket": "T-1", "coverage": []}
    return {**right, "culprit": culprit, **changes}


def blind(code: str) -> list[dict[str, Any]]:
    return [{"not_seen": [{"code": code, "detail": ""}]}]


def accepts(given: dict[str, Any]) -> bool:
    return demo.show(demo.judge_checkpoint(given, LOG))


def test_the_right_diagnosis_is_accepted() -> None:
    assert accepts(diagnosis())


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdict": "likely"},
        {"verdict": "healthy"},
        {"cause": "slow_device"},
        {"ticket": None},
        {"culprit": {"path": "/data/chk_11.bin"}},
        {"culprit": {"path": "/elsewhere/chk_10.bin"}},
        {"culprit": {"path": "chk_10.bin"}},
        {"culprit": {"path": "/data/chk_*.bin"}},
        {"culprit": {"path": None}},
        {"culprit": {"latency_ms": 950.0}},
        {"culprit": {"latency_ms": None}},
        {"culprit": {"period_s": 2.2}},
        {"culprit": {"period_s": None}},
    ],
)
def test_a_wrong_diagnosis_is_refused(wrong: dict[str, Any]) -> None:
    assert not accepts(diagnosis(**wrong))


def test_less_is_accepted_only_when_it_says_what_it_could_not_see() -> None:
    assert accepts(diagnosis(verdict="likely", coverage=blind("sampled"), culprit={"latency_ms": 800.0}))
    assert accepts(diagnosis(verdict="inconclusive", cause=None, coverage=blind("not_permitted")))
    nothing = {"path": None, "latency_ms": None, "period_s": None}
    assert accepts(diagnosis(verdict="inconclusive", cause=None, coverage=blind("sampled"), culprit=nothing))
    assert not accepts(diagnosis(verdict="likely", coverage=blind("sampled"), culprit={"path": "/data/x"}))
    assert not accepts(diagnosis(verdict="inconclusive", coverage=blind("mmap_faults")))
    ruled_out = [{"cause": "sync_checkpoint_write", "state": "ruled_out"}]
    assert not accepts(diagnosis(verdict="inconclusive", cause=None, coverage=blind("sampled"), assessments=ruled_out))
    assert not accepts(diagnosis(verdict="likely", cause="slow_device", coverage=blind("sampled")))
    assert not accepts(diagnosis(verdict="healthy", coverage=blind("sampled")))


def test_it_is_compared_with_what_was_logged_while_it_was_measured() -> None:
    ahead = time.time_ns() - time.monotonic_ns()
    now = time.monotonic_ns()

    def look(before_s: float) -> dict[str, Any]:
        start = datetime.fromtimestamp((now - before_s * 1e9 + ahead) / 1e9, timezone.utc)
        return {"start": start.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "window_s": 12.0}

    twice = {"coverage": [look(40), look(20), look(20)]}
    start, end = demo.measured_span(twice, now - int(60e9), now)
    assert [round((at - now) / 1e9, 1) for at in (start, end)] == [-20, -8]
    assert demo.measured_span({"coverage": []}, 5, 9) == (5, 9)


def test_background_is_right_only_when_healthy() -> None:
    log = [*LOG, {"event": "step", "stall_s": 0.0002}]
    assert demo.show(demo.judge_background({"verdict": "healthy", "coverage": []}, log))
    assert not demo.show(demo.judge_background(diagnosis(), log))


def test_random_bytes_are_kernel_cpu_time_never_the_disk() -> None:
    log = [*LOG, {"event": "step", "random_s": 0.11}]
    cpu = diagnosis(cause="kernel_cpu_in_syscall", culprit={"syscall": "getrandom"})
    assert demo.show(demo.judge_random(cpu, log))
    assert not demo.show(demo.judge_random({**cpu, "culprit": {"syscall": "fsync"}}, log))
    assert not demo.show(demo.judge_random(diagnosis(culprit={"syscall": "fsync"}), log))
