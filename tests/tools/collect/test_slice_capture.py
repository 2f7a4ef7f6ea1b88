"""Windows cut out of slices of a continuous recording, made of records as the kernel side writes them."""

from __future__ import annotations

from typing import Any

from slice_records import MS, PID, TID, code, sample, stack, total, wait

from whystall.bpf import layout as lay
from whystall.bpf.collectors.switches import SwitchRows
from whystall.bpf.continuous import Cut
from whystall.bpf.samples import Samples
from whystall.tools.collect.slice_capture import Cutting, cut_window
from whystall.tools.collect.slice_log import Entry
from whystall.tools.collect.slice_parts import RECORDS, SLICE, slice_end, slices_of
from whystall.tools.collect.slice_scan import Scan, Waits, framed


def entries_of(start: int, end: int, records: list[bytes], *totals: tuple[bytes, bytes], **head: Any) -> list[Entry]:
    """A slice of the log, times in ms."""
    keys, values = b"".join(k for k, _ in totals), b"".join(v for _, v in totals)
    cut = Cut(start * MS, end * MS, (keys, values), (b"", b""), {"self_switches": 3})
    known = {"pids": {PID: lay.TRACED_TARGET}, "min_ns": MS, "sample_ns": 50 * MS} | head
    return [
        Entry(RECORDS, start * MS, end * MS, framed(records)),
        Entry(SLICE, start * MS, end * MS, slice_end(cut, known)),
    ]


def window(entries: list[Entry], start: int, end: int) -> Cutting:
    found = cut_window(slices_of(entries), [], start * MS, end * MS)
    assert found is not None
    return found


def spans(cutting: Cutting) -> list[tuple[int, int, int]]:
    rows = cutting.capture.of(SwitchRows).segments
    return [(one.start // MS, one.end // MS, one.flags) for one in rows]


def test_a_wait_across_slices_is_one_wait() -> None:
    opened = wait(4000, 5000, flags=lay.RECORD_OPEN)
    later = wait(4000, 10_000, flags=lay.RECORD_OPEN)
    entries = [
        *entries_of(0, 5000, [wait(1000, 1010), opened]),
        *entries_of(5000, 10_000, [later]),
        *entries_of(10_000, 15_000, [wait(4000, 12_000)]),
    ]
    assert spans(window(entries, 0, 15_000)) == [(1000, 1010, 0), (4000, 12_000, 0)]


def test_waits_are_cut_to_the_window() -> None:
    entries = [*entries_of(0, 5000, []), *entries_of(5000, 10_000, [wait(4000, 8000, run_ns=500)])]
    (row,) = window(entries, 4500, 6000).capture.of(SwitchRows).segments
    assert (row.start, row.end) == (4500 * MS, 6000 * MS)
    assert row.flags == lay.RECORD_SEEDED | lay.RECORD_OPEN
    assert row.runnable_ns == 0  # it was runnable after the window
    (row,) = window(entries, 7900, 9000).capture.of(SwitchRows).segments
    assert row.runnable_ns == 100 * MS


def test_who_ends_a_wait_after_the_window_is_not_told() -> None:
    ended = wait(1000, 3000, wake=2900 * MS, waker_tgid=5, waker_tid=6, waker_comm=b"other")
    entries = entries_of(0, 5000, [ended])
    (row,) = window(entries, 0, 2000).capture.of(SwitchRows).segments
    assert (row.wake, row.waker_tid, row.waker_comm) == (0, 0, b"")
    (row,) = window(entries, 0, 4000).capture.of(SwitchRows).segments
    assert (row.wake, row.waker_tid, row.waker_comm) == (2900 * MS, 6, b"other")


def test_short_waits_count_in_proportion_and_long_ones_once() -> None:
    entries = entries_of(0, 10_000, [wait(1000, 3000)], total(101, 2000 + 400, 2000))
    (row,) = window(entries, 0, 5000).capture.of(SwitchRows).off_totals
    assert (row.count, row.total_ns) == (51, (2000 + 200) * MS)


def test_a_killed_recorder_leaves_its_last_records() -> None:
    entries = [*entries_of(0, 5000, []), Entry(RECORDS, 5000 * MS, 6000 * MS, framed([wait(5100, 5900)]))]
    found = window(entries, 0, 9000)
    assert spans(found) == [(5100, 5900, 0)]
    assert found.capture.window_end == 6000 * MS
    assert found.min_ns == MS


def test_what_a_killed_recorder_left_is_found_after_the_next_one_began() -> None:
    left = Entry(RECORDS, 5000 * MS, 6000 * MS, framed([wait(5100, 5900)]))
    entries = [*entries_of(0, 5000, []), left, *entries_of(8000, 8000, [])[1:], *entries_of(8000, 12_000, [])]
    assert spans(window(entries, 5000, 7000)) == [(5100, 5900, 0)]
    assert window(entries, 5500, 9000).missing_ns == 2000 * MS


def test_time_without_a_recorder_is_told() -> None:
    entries = [*entries_of(0, 1000, []), *entries_of(4000, 5000, [])]
    assert window(entries, 500, 4500).missing_ns == 3000 * MS
    assert cut_window(slices_of(entries), [], 9000 * MS, 9500 * MS) is None


def test_samples_of_different_rates_become_one_rate() -> None:
    at = range(0, 1000, 50)
    entries = [
        *entries_of(0, 1000, [sample(t) for t in at]),
        *entries_of(1000, 2000, [sample(1000 + t) for t in at[::4]], sample_ns=200 * MS),
    ]
    found = window(entries, 0, 2000)
    assert found.sample_ns == 200 * MS
    assert len(found.capture.of(Samples).at) == 10


def test_the_threshold_is_that_of_the_processes_that_are_asked_for() -> None:
    other = PID + 1
    kinds = {PID: lay.TRACED_TARGET, other: lay.TRACED_TARGET}
    slices = slices_of(entries_of(0, 5000, [], pids=kinds, lowered={other: 1000 * MS}))
    for own, expected in ((None, 1000 * MS), (frozenset({PID}), MS), (frozenset({other}), 1000 * MS)):
        found = cut_window(slices, [], 0, 5000 * MS, own)
        assert found is not None
        assert found.min_ns == expected


def test_stacks_of_waits_in_progress_are_carried_over() -> None:
    word = 9 << lay.FRAME_CODE_SHIFT
    scan, waits = Scan(), Waits()
    scan.read(framed([code(9, b"load"), stack(5, word), stack(6, word)]), waits)
    scan.read(framed([wait(1, 2, flags=lay.RECORD_OPEN, pystack=5)]), waits)
    carried = scan.carry()
    again = Scan()
    again.read(carried, waits)
    assert carried == framed([stack(5, word)])
    assert not len(waits)


def test_places_are_the_same_for_the_same_line_whatever_the_stack() -> None:
    scan, waits = Scan(), Waits()
    scan.read(framed([code(9, b"load"), code(10, b"load"), code(11, b"save")]), waits)
    stacks = [stack(n, n << lay.FRAME_CODE_SHIFT) for n in (9, 10, 11)]
    scan.read(framed(stacks + [wait(1, 2, pystack=n) for n in (9, 10, 11)] + [wait(3, 4, pystack=9, nr=0)]), waits)
    same, also, other, another_call = waits.place
    assert same == also
    assert len({same, other, another_call}) == 3
    assert (waits.tgid[0], waits.tid[0], waits.start_ns[0], waits.end_ns[0]) == (PID, TID, MS, 2 * MS)


def test_waits_of_followed_processes_are_not_reported() -> None:
    scan, waits = Scan(), Waits()
    followed = bytes(lay.FollowedRecord(type=lay.RECORD_FOLLOWED, tgid=99, comm=b"peer"))
    scan.read(framed([followed, wait(1, 2, tgid=99, tid=99), wait(1, 2, flags=lay.RECORD_KTHREAD)]), waits)
    assert not len(waits)
    assert [one.tgid for one in scan.followed] == [99]
