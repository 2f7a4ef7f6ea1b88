"""Comparison before and after a fix: solved only on evidence."""

from __future__ import annotations

from typing import Any

import pytest
from making import PATH, TID, checkpoint, coverage, finding

from whystall.knowledge_base.models import Diagnosis
from whystall.knowledge_base.verify import compare
from whystall.tools.contract.findings import Finding

MEASURED = [
    finding("file.slow_sync", polarity="normal", subject={"path": None}, count=40, max_ms=4, window_pct=1),
    finding("offcpu.blocked", polarity="normal", window_pct=2, total_ms=200),
]


def after(found: list[Finding], **changes: Any) -> Diagnosis:
    healthy: dict[str, Any] = {"verdict": "healthy", "cause": None, "chain": [], "culprit": None, "assessments": []}
    return checkpoint(findings=found, id="d2", created="2025-01-02T00:00:00Z", **(healthy | changes))


def still(share: float) -> list[Finding]:
    path = PATH.replace("120", "300")  # the next run writes other numbers
    sync = finding("file.slow_sync", subject={"path": path}, window_pct=share, episode_ms=100)
    return [sync, MEASURED[1]]


def test_gone_is_solved() -> None:
    result = compare(checkpoint(), after(MEASURED))
    assert result.solved is True
    assert result.missing == []
    assert result.at == "2025-01-02T00:00:00Z"
    sync = result.checks[0]
    assert (sync.kind, sync.subject, sync.metric, sync.unit) == ("file.slow_sync", PATH, "window_pct", "pct")
    assert (sync.before, sync.after, sync.improved) == (36.9, None, True)


@pytest.mark.parametrize(("share", "solved"), [(36.9, False), (20.0, False), (18.4, True), (0.5, True)])
def test_half_is_the_line(share: float, solved: bool) -> None:
    result = compare(checkpoint(), after(still(share)))
    assert result.solved is solved
    assert result.checks[0].after == share


def test_a_slow_write_in_the_background_of_a_healthy_job_is_solved() -> None:
    """The file is as slow as before; who works does not wait for it any more."""
    aside = finding("file.slow_sync", subject={"tid": TID + 1}, window_pct=78, episode_ms=100)
    result = compare(checkpoint(), after([aside, *MEASURED]))
    assert result.solved is True
    assert result.checks[0].after is None
    unsure = compare(checkpoint(), after([aside, *MEASURED], verdict="inconclusive"))
    assert (unsure.solved, unsure.checks[0].after) == (False, 78)


def test_silence_proves_nothing() -> None:
    result = compare(checkpoint(), after([]))
    assert result.solved is None
    assert "not_measured" in result.missing


@pytest.mark.parametrize(
    "code",
    [
        *("events_lost", "cut_short", "target_exited", "target_oom_killed", "not_proven", "sampled", "not_permitted"),
        "no_engine",
    ],
)
def test_a_look_that_could_not_see_proves_nothing(code: str) -> None:
    result = compare(checkpoint(), after(MEASURED, coverage=[coverage((code, ""))]))
    assert (result.solved, result.missing) == (None, [code])


def test_what_is_still_there_is_believed_even_then() -> None:
    result = compare(checkpoint(), after(still(36), coverage=[coverage(("events_lost", "7"))]))
    assert result.solved is False


def test_a_job_that_does_not_run_is_not_solved() -> None:
    assert compare(checkpoint(), after(MEASURED, victim=None)).missing == ["no_victim"]


def test_an_idle_job_verifies_nothing() -> None:
    assert compare(checkpoint(), after(MEASURED, verdict="idle")).missing == ["no_load"]


def test_a_look_shorter_than_two_periods_is_too_short() -> None:
    brief = coverage().model_copy(update={"window_s": 6.0})  # the period is 3.2 s
    assert compare(checkpoint(), after(MEASURED, coverage=[brief])).missing == ["too_short"]


def test_without_evidence_verification_is_inconclusive() -> None:
    empty = checkpoint(findings=[], chain=[])
    result = compare(empty, after(MEASURED))
    assert (result.checks, result.solved, result.missing) == ([], None, ["no_evidence"])


def test_normal_measurements_are_no_evidence() -> None:
    assert {c.kind for c in compare(checkpoint(), after(MEASURED)).checks} == {"file.slow_sync", "offcpu.blocked"}


def test_a_kind_without_a_share_is_compared_by_latency() -> None:
    slow = finding("block.slow_io", id="b", words={"operation": "write"}, count=5, p50_ms=400, max_ms=900)
    before = checkpoint(findings=[slow], chain=["b"])
    now = finding("block.slow_io", words={"operation": "write"}, polarity="normal", count=5, p50_ms=2, max_ms=3)
    check = compare(before, after([now])).checks[0]
    assert (check.metric, check.before, check.after, check.improved) == ("p50_ms", 400, 2, True)


def test_waiting_for_io_that_is_gone_is_measured_by_the_account_of_the_thread() -> None:
    waited = finding("process.io_wait", id="w", block_io_s=5, window_pct=60)
    before = checkpoint(findings=[waited], chain=["w"])
    computes = finding("path.running", window_pct=100, total_ms=8000)
    assert compare(before, after([computes])).solved is True
    assert compare(before, after([finding("disk.saturated", polarity="normal", util_pct=1)])).solved is None


def test_a_stream_that_is_gone_counts_only_where_the_page_cache_was_watched() -> None:
    stream = finding("cache.streaming", subject={"tid": None}, rate=3e8, one_pass_pct=100)
    before = checkpoint(cause="cache_pollution", findings=[stream], chain=[stream.id])
    result = compare(before, after(MEASURED))
    assert (result.solved, result.missing) == (None, ["not_measured"])
    watched = finding("memory.reclaim_stall", polarity="normal", window_pct=0, count=0)
    result = compare(before, after([*MEASURED, watched]))
    (check,) = result.checks
    assert (result.solved, check.kind, check.metric, check.before, check.after) == (
        True,
        "cache.streaming",
        "rate",
        3e8,
        None,
    )
