"""Findings: the vocabulary is closed, a fingerprint is what stays the same."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from whystall.tools.contract.findings import Finding, Interval, Severity
from whystall.tools.contract.kinds import KINDS

GOOD: dict[str, Any] = {
    "kind": "file.slow_sync",
    "subject": {"type": "file", "pid": 10, "tid": 11, "comm": "train", "path": "/d/run/chk_1.bin"},
    "interval": {"start_ns": 5, "end_ns": 9},
    "metrics": {"count": 3, "window_pct": 12.5},
    "attributes": {"operations": "fsync"},
    "polarity": "abnormal",
}


def make(**changes: Any) -> Finding:
    values = {**GOOD, **changes}
    return Finding.model_validate(values)


def subject(**changes: Any) -> dict[str, Any]:
    return {**GOOD["subject"], **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": subject(pid=99, tid=98)},
        {"subject": subject(path="/d/run/chk_000999.bin")},
        {"interval": {"start_ns": 0, "end_ns": 1}},
        {"metrics": {"count": 99}},
        {"severity": "critical", "polarity": "normal", "id": "F7"},
    ],
)
def test_a_fingerprint_survives_another_run(changes: dict[str, Any]) -> None:
    assert make(**changes).fingerprint == make().fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": subject(path="/d/run/log.bin")},
        {"subject": subject(path="/e/run/chk_1.bin")},
        {"subject": subject(comm="eval")},
        {"subject": subject(device="sda")},
        {"subject": subject(cgroup="/a")},
        {"kind": "file.slow_write"},
        {"kind": "offcpu.blocked", "attributes": {"syscall": "fsync"}},
    ],
)
def test_a_fingerprint_tells_another_problem(changes: dict[str, Any]) -> None:
    assert make(**changes).fingerprint != make().fingerprint


def test_system_calls_are_told_apart() -> None:
    one, two = (make(kind="offcpu.blocked", attributes={"syscall": call}) for call in ("fsync", "unlink"))
    assert one.fingerprint != two.fingerprint


def test_rows_of_a_critical_path_are_identified_by_wait_and_function_not_by_line() -> None:
    def row(wait: str, function: str) -> str:
        return make(kind="path.wait", metrics={}, attributes={"wait": wait, "function": function}).fingerprint

    assert row("lock", "save (train.py:212)") == row("lock", "save (train.py:9)")
    assert len({row("lock", "save (train.py:1)"), row("file", "save (train.py:1)"), row("lock", "load (io.py:1)")}) == 3


def test_a_finding_survives_json() -> None:
    finding = make()
    assert Finding.model_validate_json(finding.model_dump_json()) == finding
    assert len(finding.fingerprint) == 16


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "kind"),
        ({**GOOD, "subject": "train"}, "subject"),
        ({**GOOD, "kind": "file.slow_think"}, "unknown finding kind"),
        ({**GOOD, "metrics": {"furlongs": 1}}, "furlongs"),
        ({**GOOD, "attributes": {"mood": "sad"}}, "mood"),
        ({**GOOD, "metrics": {"count": float("nan")}}, "metrics.count"),
        ({**GOOD, "metrics": {"count": float("inf")}}, "metrics.count"),
        ({**GOOD, "interval": {"start_ns": 9, "end_ns": 5}}, "ends before it starts"),
        ({**GOOD, "interval": {"start_ns": -1, "end_ns": 5}}, "interval.start_ns"),
        ({**GOOD, "polarity": "odd"}, "polarity"),
        ({**GOOD, "prose": "It is slow."}, "prose"),
    ],
)
def test_what_is_not_declared_is_refused(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault.replace(".", r"\.")):
        Finding.model_validate(values)


def test_the_share_of_the_window_is_the_declared_one() -> None:
    assert make().window_pct == 12.5
    assert make(kind="disk.saturated", attributes={}, metrics={"util_pct": 99}).window_pct == 0.0
    for kind, spec in KINDS.items():
        assert spec.share is None or spec.metrics[spec.share] == "pct", kind
        assert set(spec.metrics.values()) <= {
            "ms",
            "us",
            "s",
            "pct",
            "count",
            "bytes",
            "bytes/s",
            "1/s",
            "ratio",
            "cpus",
        }


@pytest.mark.parametrize(
    ("a", "b", "overlap"),
    [((0, 5), (5, 9), True), ((0, 5), (6, 9), False), ((0, 9), (3, 4), True), ((3, 3), (3, 3), True)],
)
def test_intervals_overlap(a: tuple[int, int], b: tuple[int, int], overlap: bool) -> None:
    one, two = (Interval(start_ns=s, end_ns=e) for s, e in (a, b))
    assert one.overlaps(two) is two.overlaps(one) is overlap


def test_severities_are_ordered() -> None:
    assert sorted(Severity, key=lambda s: s.rank) == [
        Severity.INFO,
        Severity.MINOR,
        Severity.MAJOR,
        Severity.CRITICAL,
    ]
