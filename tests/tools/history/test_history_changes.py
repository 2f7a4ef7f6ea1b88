"""Changes of what was waited for: found where they were made, and not where nothing changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from whystall.tools.collect.slice_history import PART_NS, PARTS, HistoryRow, JobName, Minute, Place
from whystall.tools.history.blind_spots import blind_spots
from whystall.tools.history.change_tests import LEVEL, adjusted, compare, search
from whystall.tools.history.data import HistoryData
from whystall.tools.history.grid import Grid, grid_of
from whystall.tools.history.summary import Spans, findings_of, summarise

MINUTE = PART_NS * PARTS
S = 1_000_000_000


def place(line: str, name: str = "") -> Place:
    return Place("python", True, "S", "read", line, name)


def minutes_of(first: int, rates: dict[Place, list[float]], *, idle: bool = False, run: int = 1) -> list[Minute]:
    """Return minutes from number `first`; `rates`: seconds of waiting per second, a value per part."""
    count = len(next(iter(rates.values()))) // PARTS
    made = []
    for at in range(count):
        start = (first + at) * MINUTE
        rows = [
            HistoryRow(start, 7, one, tuple(int(v * PART_NS) for v in values[at * PARTS : (at + 1) * PARTS]),
                       0 if idle else 3, S, (("timer", S),))
            for one, values in rates.items()
        ]  # fmt: skip
        made.append(Minute(start, tuple(rows), (PART_NS,) * PARTS, run, jobs={7: JobName("slurm:1", "llama")}))
    return made


def noisy(level: float, parts: int, seed: int) -> list[float]:
    return list(np.random.default_rng(seed).gamma(9, level / 9, parts))


def grid(minutes: list[Minute], first: int, last: int) -> Grid:
    return grid_of(minutes, first * MINUTE, last * MINUTE, lambda minute, row: True)


def summary(minutes: list[Minute], first: int, last: int, baseline: tuple[int, int] | None = None) -> HistoryData:
    before = grid(minutes, *baseline) if baseline else None
    return summarise(Spans(grid(minutes, first, last), before), 10)


def test_a_phase_of_a_span_is_found_where_it_was() -> None:
    phase = [*noisy(0.002, 60, 1), *noisy(0.5, 24, 2), *noisy(0.002, 60, 3)]
    found = summary(minutes_of(0, {place("load"): noisy(0.6, 144, 4), place("save", "/ckpt/*"): phase}), 0, 24)
    (change,) = found.changes
    assert (change.line, change.object, change.direction, change.job) == ("save", "/ckpt/*", "appeared", "llama")
    assert (change.since, change.until) == ("1970-01-01T00:10:00Z", "1970-01-01T00:14:00Z")
    assert change.low < 0.498 < change.high
    assert change.q_value <= LEVEL
    assert (found.tested, found.minutes, found.jobs) == (2, 24.0, ["llama"])
    (finding,) = findings_of(found)
    assert finding.kind == "wait.change"
    assert finding.interval.start_ns == 600 * S


def test_two_spans_are_compared() -> None:
    before = {place("load"): noisy(0.3, 120, 1), place("save"): noisy(0.2, 120, 2), place("old"): noisy(0.1, 120, 3)}
    after = {place("load"): noisy(0.3, 60, 4), place("save"): noisy(0.4, 60, 5)}
    minutes = [*minutes_of(0, before), *minutes_of(30, after, run=2)]
    found = summary(minutes, 30, 40, (0, 20))
    assert {one.line: one.direction for one in found.changes} == {"save": "grew", "old": "vanished"}
    save = found.changes[0]
    assert save.low < 0.2 < save.high
    assert (found.minutes, found.minutes_before) == (10, 20)
    (load,) = [row for row in found.rows if row.line == "load"]
    assert load.before_s == pytest.approx(0.3 * 600, rel=0.1)
    assert load.ended_by == "timer"


@pytest.mark.thorough
def test_of_rows_that_do_not_change_few_are_reported() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(20):
        # phases of a minute, so that neighbouring parts depend on each other
        rates = np.repeat(rng.gamma(4, 0.1, (20, 40)), 6, axis=1)
        known = np.ones(120)
        result = compare(rates[:, :120], rates[:, 120:], (known, known))
        assert result is not None
        wrong += bool((result.q <= LEVEL).any())
        stretches = search(rates, np.ones(240))
        assert stretches is not None
        wrong += bool((stretches.compared.q <= LEVEL).any())
    assert wrong <= 5  # of 40; 2 are expected


def test_with_little_recorded_nothing_is_tested() -> None:
    minutes = minutes_of(0, {place("load"): [*[0.1] * 3, *[0.9] * 3]})
    assert summary(minutes, 0, 1).tested is None
    assert summary([*minutes, *minutes_of(9, {place("load"): [0.1] * 60})], 9, 19, (0, 1)).tested is None
    assert list(adjusted(np.array([0.01, 0.04, 0.03]))) == [0.03, 0.04, 0.04]


def test_idle_threads_are_listed_last() -> None:
    minutes = [*minutes_of(0, {place("pool"): [8.0] * 6}, idle=True), *minutes_of(0, {place("load"): [0.1] * 6})]
    found = summary(minutes, 0, 1)
    assert [(row.line, row.idle) for row in found.rows] == [("load", False), ("pool", True)]
    assert (found.waited_s, found.idle_s) == (6, 480)


def test_what_the_history_lacks_is_reported() -> None:
    minutes = [*minutes_of(10, {place("load"): [0.1] * 12}), *minutes_of(15, {place("load"): [0.1] * 12}, run=2)]
    spots = blind_spots(grid(minutes, 5, 17), minutes, minutes[0].first_ns, 17 * MINUTE, wanted)
    assert {spot.code: spot.detail for spot in spots} == {
        "history_begins": "1970-01-01T00:10:00Z",
        "history_gap": "180 s; 1970-01-01T00:12:00Z - 1970-01-01T00:15:00Z",
        "history_restart": "1970-01-01T00:00:00Z",
    }
    assert not blind_spots(grid(minutes, 10, 12), minutes[:2], minutes[0].first_ns, 12 * MINUTE, wanted)


def test_detail_that_was_lowered_is_reported_for_the_processes_that_are_asked_for() -> None:
    minutes = minutes_of(10, {place("load"): [0.1] * 12})
    (pid,) = {row.pid for minute in minutes for row in minute.rows}
    minutes[0] = replace(minutes[0], lowered={pid: 5_000_000, 99: 1_000_000_000})
    args = grid(minutes, 10, 12), minutes[:2], minutes[0].first_ns, 12 * MINUTE
    assert [spot.detail for spot in blind_spots(*args, wanted)] == ["5 ms, 1/2 min"]
    assert [spot.detail for spot in blind_spots(*args, lambda minute, row: False)] == ["1000 ms, 1/2 min"]
    minutes[0] = replace(minutes[0], lowered={99: 1_000_000_000})
    assert not blind_spots(grid(minutes, 10, 12), minutes[:2], minutes[0].first_ns, 12 * MINUTE, wanted)


def wanted(minute: Minute, row: HistoryRow) -> bool:
    return True
