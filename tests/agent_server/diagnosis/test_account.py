"""The account of the victim's time."""

from __future__ import annotations

import pytest
from making import TID, checkpoint, finding, victim

from whystall.agent_server.diagnosis.account import MAX_ROWS, account
from whystall.knowledge_base.models import Diagnosis


def test_the_rows_are_the_findings_largest_first_and_sum_to_the_window() -> None:
    sleep = {"wait": "sleep", "code": "process_batch (train.py:21)"}
    rows = account(
        [
            finding("path.running", id="F1", words={"mode": "user"}, window_pct=20, total_ms=2000),
            finding("path.wait", id="F2", words=sleep, window_pct=75, total_ms=7500, count=15, max_ms=500),
            finding("path.wait", id="F3", words={"wait": "lock"}, subject={"tid": TID + 1}, window_pct=90),
            finding("path.pause", id="F4", window_pct=5),
        ],
        victim(),
    )
    assert [(row.finding, row.what, row.window_pct) for row in rows] == [
        ("F2", "sleep", 75),
        ("F1", "running", 20),
        ("", "rest", pytest.approx(5)),
    ]
    assert (rows[0].count, rows[0].max_ms, rows[0].total_s) == (15, 500, 7.5)
    assert rows[0].code == "process_batch (train.py:21)"
    assert sum(row.total_s for row in rows) == pytest.approx(10)


def test_small_rows_are_added_up_in_the_rest() -> None:
    rows = account(
        [finding("path.wait", words={"wait": "lock"}, window_pct=5, total_ms=500) for _ in range(20)], victim()
    )
    assert len(rows) == MAX_ROWS + 1
    assert rows[-1].what == "rest"
    assert sum(row.window_pct for row in rows) == pytest.approx(100)


def test_without_a_path_there_is_no_account() -> None:
    assert account([finding("offcpu.blocked", window_pct=50)], victim()) == []
    assert account([finding("path.running", window_pct=50)], None) == []


def test_a_diagnosis_stored_without_an_account_is_read() -> None:
    stored = checkpoint().model_dump(mode="json", exclude={"account"})
    assert Diagnosis.model_validate(stored).account == []
