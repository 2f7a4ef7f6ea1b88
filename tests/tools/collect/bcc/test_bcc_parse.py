"""Parsers of the output of stock BCC tools, on output recorded on the kernels in the files' names."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.tools.collect.bcc import parse

RECORDED = Path(__file__).with_name("recorded")
fuzzed = settings(max_examples=150, deadline=None, derandomize=True)


def recorded(name: str) -> list[str]:
    return (RECORDED / f"{name}.txt").read_text().splitlines()


def after(name: str, word: str) -> list[str]:
    lines = recorded(name)
    return lines[next(n for n, line in enumerate(lines) if word in line) + 1 :]


def blocks_of(lines: list[str], take: Callable[[list[str]], int]) -> tuple[int, int]:
    """Return how many blocks `take` got, and how many lines were not parsed."""
    blocks = []
    seconds = parse.PerSecond(lambda block: blocks.append(block) or take(block))
    for line in lines:
        seconds.feed(line)
    seconds.end()
    return len(blocks), seconds.unparsed


def test_slow_calls_are_read_column_by_column() -> None:
    calls = [parse.slow_call(line) for line in after("fileslower-6.1", "FILENAME")]
    assert None not in calls
    first = calls[0]
    assert first == parse.SlowCall(0.122, "python3", 286, "read", 8388608, 58_480_000, "checkpoint_of_a_job_2.bin")
    assert {call.operation for call in calls if call} == {"read", "write"}
    assert all(call.tid == 286 and call.latency_ns >= 1_000_000 for call in calls if call)


@pytest.mark.parametrize("comm", ["a 7 R 4 9.99 /etc", "  x", "R", "日本語", "x W 1    1.00"])
def test_a_thread_may_be_called_anything(comm: str) -> None:
    line = f"{3.5:<8.3f} {comm[:14]:<14.14s} {77:<6} W {4096:<7} {12.5:7.2f} name with  spaces"
    call = parse.slow_call(line)
    assert call is not None
    assert (call.tid, call.operation, call.asked, call.latency_ns) == (77, "write", 4096, 12_500_000)
    assert call.name == "name with  spaces"


def test_columns_that_grew_are_read_too() -> None:
    line = f"{123456.789:<8.3f} {'python3':<14.14s} {1234567:<6} R {12345678901:<7} {123456789.12:7.2f} x"
    call = parse.slow_call(line)
    assert call is not None
    assert (call.end_s, call.tid, call.asked) == (123456.789, 1234567, 12345678901)


@pytest.mark.parametrize(
    ("name", "preempted"), [("offcputime-6.1", "preempt_schedule_common"), ("offcputime-5.10", "_cond_resched")]
)
def test_waits_are_parsed_by_stack_and_none_is_missing(name: str, preempted: str) -> None:
    waits = parse.Waits()
    for line in after(name, "Ctrl-C"):
        waits.feed(line)
    numbers = [int(line) for line in recorded(name) if line.strip().isdecimal()]
    assert sum(wait.total_ns for wait in waits.found) == 1000 * sum(numbers)
    assert len(waits.found) == len(numbers)
    assert waits.unparsed == waits.missed == 0
    calls = Counter[str]()
    for wait in waits.found:
        calls[parse.system_call(wait.kernel)] += wait.total_ns
    # what the workload did: it slept, wrote, had it written and read it again
    assert set(calls) >= {"fsync", "read"}
    assert {"clock_nanosleep", "select"} & set(calls)  # which of them CPython sleeps in
    assert max(waits.found, key=lambda wait: wait.total_ns).kernel[-1] == "entry_SYSCALL_64_after_hwframe"
    states = {parse.system_call(wait.kernel): parse.state(wait.kernel) for wait in waits.found}
    assert {states.get("clock_nanosleep", ""), states.get("select", "")} == {""}  # asleep: a stack does not show it
    disk = [wait for wait in waits.found if "io_schedule" in wait.kernel]
    assert disk
    assert {parse.state(wait.kernel) for wait in disk} == {"D"}
    preempted_waits = [wait for wait in waits.found if preempted in wait.kernel]
    assert preempted_waits
    assert {parse.state(wait.kernel) for wait in preempted_waits} == {"R"}


def test_a_missed_stack_is_counted_and_is_no_frame() -> None:
    waits = parse.Waits()
    for line in ("    [Missed Kernel Stack]", "    --", "    read", "    -                dd (7)", "        25", ""):
        waits.feed(line)
    assert waits.found == [parse.Wait((), ("read",), "dd", 7, 25_000)]
    assert waits.missed == 1


def test_a_stack_without_a_delimiter_is_the_kernels_only_with_a_kernel_frame() -> None:
    for frames, kernel in ((("finish_task_switch", "schedule"), True), (("main", "work"), False)):
        waits = parse.Waits()
        for line in (*(f"    {frame}" for frame in frames), "    -                dd (7)", "        25"):
            waits.feed(line)
        assert (waits.found[0].kernel if kernel else waits.found[0].user) == frames


def test_time_in_handlers_is_summed_over_the_seconds() -> None:
    soft, hard = parse.Totals(), parse.Totals()
    assert blocks_of(after("softirqs-6.18", "Ctrl-C"), partial(parse.totals, into=soft)) == (4, 0)
    assert set(soft.total_ns) == {"timer", "sched", "rcu", "block"}
    assert soft.total_ns["timer"] > 326_854 + 467_787
    assert blocks_of(after("hardirqs-6.18", "Ctrl-C"), partial(parse.totals, into=hard)) == (4, 0)
    assert hard.total_ns["virtio1-req.0"] > 585_134 + 1_285_987
    assert not soft.full
    assert not hard.full


def test_seconds_without_a_row_are_empty_blocks() -> None:
    found = parse.Histograms()
    assert blocks_of(after("runqlat-wrong-headers", "Ctrl-C"), partial(parse.histograms, into=found))[0] == 3
    assert found.counts == {}


def test_cache_counts_of_a_kernel_with_folios_are_all_misses_of_nothing() -> None:
    rows = [parse.cache_counts(line) for line in after("cachestat-6.1", "HITS")]
    assert rows.pop() is None  # Detaching...
    assert {(row.hits, row.misses) for row in rows if row} == {(0, 0)}


def test_cache_counts_of_a_kernel_without_folios_are_counts() -> None:
    rows = [parse.cache_counts(line) for line in after("cachestat-5.10", "HITS")]
    assert rows.pop() is None  # Detaching...
    assert rows == [(183351, 61787), (1229, 0), (1108, 837)]


HISTOGRAM = [
    "     usecs               : count     distribution",
    "         0 -> 1          : 5        |****************************************|",
    "         2 -> 3          : 0        |                                        |",
    "         4 -> 7          : 2        |****************                        |",
]


def test_a_section_has_its_own_slots() -> None:
    found = parse.Histograms()
    assert parse.histograms(["disk = sda", *HISTOGRAM, "disk = b'sdb'", *HISTOGRAM], found, "disk") == 0
    assert set(found.counts) == {"sda", "sdb"}
    assert found.counts["sda"] == {parse.Slot(0, 2_000): 5, parse.Slot(4_000, 8_000): 2}
    assert not found.full


def test_a_histogram_with_keys_may_be_full_and_one_without_is_not() -> None:
    block = [line for n in range(40) for line in (f"disk = d{n}", *HISTOGRAM)]
    found = parse.Histograms()
    parse.histograms(block, found, "disk")
    assert found.full
    alone = parse.Histograms()
    parse.histograms(HISTOGRAM * 40, alone)
    assert not alone.full


def test_restart_drops_earlier_output_and_the_second_that_began_before() -> None:
    found = parse.Histograms()
    clock = itertools.count(50)
    seconds = parse.PerSecond(partial(parse.histograms, into=found), lambda: float(next(clock)))
    for line in ("10:00:00", *HISTOGRAM, "10:00:01", *HISTOGRAM):
        seconds.feed(line)
    seconds.restart(skip_next=True)
    found.counts.clear()
    for line in ("10:00:02", *HISTOGRAM, "10:00:03", *HISTOGRAM):
        seconds.feed(line)
    seconds.end()
    assert sum(found.counts[""].values()) == 7
    assert seconds.skipped_s == 1.0
    seconds.restart(skip_next=False)
    assert seconds.skipped_s == 0.0


TEXT = st.one_of(st.text(max_size=80), st.sampled_from([*HISTOGRAM, "disk = x", "10:00:00", "    --", "        7"]))


@fuzzed
@given(st.lists(TEXT, max_size=40))
def test_any_output_is_counted_or_unparsed_and_never_an_error(lines: list[str]) -> None:
    found, sums = parse.Histograms(), parse.Totals()
    assert 0 <= parse.histograms(lines, found, "disk") <= len(lines)
    assert all(count > 0 and slot.low_ns < slot.high_ns for c in found.counts.values() for slot, count in c.items())
    assert 0 <= parse.totals(lines, sums) <= len(lines)
    assert all(value >= 0 for value in sums.total_ns.values())
    waits = parse.Waits()
    seconds = parse.PerSecond(len)
    for line in lines:
        waits.feed(line)
        seconds.feed(line)
        call = parse.slow_call(line)
        assert call is None or (call.latency_ns >= 0 and call.operation in ("read", "write"))
        counts = parse.cache_counts(line)
        assert counts is None or counts.hits >= 0
    seconds.end()
    assert all(wait.total_ns >= 0 and wait.tid >= 0 for wait in waits.found)


@fuzzed
@given(st.data())
def test_damaged_output_raises_nothing(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(path.stem for path in RECORDED.glob("*.txt"))))
    text = (RECORDED / f"{name}.txt").read_text()
    at = data.draw(st.integers(0, len(text)))
    junk = data.draw(st.text(max_size=8))
    waits = parse.Waits()
    for line in (text[:at] + junk + text[at + 3 :]).splitlines():
        parse.slow_call(line)
        parse.cache_counts(line)
        waits.feed(line)
    assert waits.unparsed >= 0
