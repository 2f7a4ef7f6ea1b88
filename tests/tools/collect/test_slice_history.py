"""The coarse history: rows by minute and place, from totals as the kernel side counts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from slice_records import MS, PID, TID, code, stack, total

from whystall.bpf import layout as lay
from whystall.bpf.continuous import Cut
from whystall.tools.collect import slice_history
from whystall.tools.collect.history_summary import summarise
from whystall.tools.collect.slice_history import History, HistoryRow, history_rows
from whystall.tools.collect.slice_scan import Scan, Waits, framed

MINUTE = 60_000_000_000


def cut_of(*totals: tuple[bytes, bytes]) -> Cut:
    name = bytes(lay.ThreadInfoValue(tgid=PID, comm=b"train\x1b"))
    keys, values = b"".join(k for k, _ in totals), b"".join(v for _, v in totals)
    return Cut(0, 1, (keys, values), (TID.to_bytes(4, "little"), name), {})


def scan_of() -> Scan:
    scan = Scan()
    words = [9 << lay.FRAME_CODE_SHIFT]
    scan.read(framed([code(9, b"load"), stack(5, *words)]), Waits())
    return scan


def test_waits_are_summed_by_minute_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7 * MINUTE]
    monkeypatch.setattr(slice_history.time, "time_ns", lambda: now[0])
    history = History(tmp_path)
    scan = scan_of()
    history.add(cut_of(total(3, 40, 20, pystack=5), total(1, 5, 5, tgid=99)), {PID}, scan)
    history.add(cut_of(total(1, 60, 60, pystack=5)), {PID}, scan)
    now[0] += MINUTE
    history.add(cut_of(total(1, 2, 2)), {PID}, scan)
    history.close()
    first, second = history_rows(tmp_path, 0, 100 * MINUTE)
    assert first == HistoryRow(7 * MINUTE, PID, first.comm, "S", "futex", "load (train.py:7)", 100 * MS, 4, 60 * MS)
    assert "\x1b" not in first.comm
    assert (second.minute_ns, second.line, second.waited_ns) == (8 * MINUTE, "", 2 * MS)
    assert history_rows(tmp_path, 8 * MINUTE, 9 * MINUTE) == [second]


def test_a_summary_has_the_longest_rows_over_time_and_before() -> None:
    def row(minute: int, line: str, ms: int) -> HistoryRow:
        return HistoryRow(minute * MINUTE, PID, "train", "S", "futex", line, ms * MS, 2, ms * MS)

    rows = [row(12, "a", 1000), row(13, "b", 500), row(23, "b", 4000), row(14, "c", 1)]
    before = [row(2, "b", 250)]
    summary = summarise(rows, before, (12 * MINUTE, 24 * MINUTE), ("from", "to"), 2)
    assert [(one.line, one.waited_s, one.before_s) for one in summary.rows] == [("b", 4.5, 0.25), ("a", 1.0, 0.0)]
    assert summary.rows[0].parts_s == [0, 0.5, *[0] * 9, 4]
    assert summary.rows[0].bars == "_▁_________█"
    assert (summary.minutes, summary.minutes_before, summary.left_out) == (4, 1, 1)
    assert summary.waited_s == pytest.approx(5.501)
    alone = summarise(rows, [], (12 * MINUTE, 24 * MINUTE), ("from", "to"), 2)
    assert alone.rows[0].before_s is None
