"""Which faults share a ticket."""

from __future__ import annotations

from making import checkpoint, finding

from whystall.knowledge_base.faults import dedup_key
from whystall.knowledge_base.models import Diagnosis


def unknown(kind: str, path: str) -> Diagnosis:
    """A stall without a known cause, with one abnormal finding."""
    bad = finding(kind, id="F1", subject={"comm": "train", "path": path}, window_pct=30, max_ms=9)
    return checkpoint(cause=None, culprit=None, findings=[bad])


def test_stalls_without_a_known_cause_are_the_same_only_if_they_look_the_same() -> None:
    again = unknown("file.slow_read", "/data/part_2.bin")
    assert dedup_key(unknown("file.slow_read", "/data/part_1.bin")) == dedup_key(again)
    assert dedup_key(unknown("file.slow_sync", "/data/part_1.bin")) != dedup_key(again)
    assert dedup_key(unknown("file.slow_read", "/other/x")) != dedup_key(again)


def test_a_numbered_checkpoint_is_the_same_fault_and_another_program_is_not() -> None:
    assert dedup_key(checkpoint("/ckpt/chk_5.bin")) == dedup_key(checkpoint("/ckpt/chk_10.bin"))
    assert dedup_key(checkpoint("/ckpt/chk_5.bin", comm="other")) != dedup_key(checkpoint("/ckpt/chk_5.bin"))
