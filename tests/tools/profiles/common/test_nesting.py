"""Spans become stacks by lying within each other; what does not fit is told and loses no time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from whystall.tools.profiles.common.nesting import Calls, Nested, Stacks, nested
from whystall.tools.stacks.model import NO_STACK

Span = tuple[int, int, str]
_US = 1_000


def made(
    *spans: Span, threads: tuple[int, ...] = (), leaves: str = "", ranges: str = ""
) -> tuple[Nested, Stacks, list[str]]:
    """Spans (start, end, name) of one thread, or of `threads`; names that begin with one of `leaves` are leaves."""
    names = sorted({name for _, _, name in spans})
    stacks = Stacks()
    calls = Calls(
        thread=np.array(threads or [0] * len(spans), np.int64),
        start=np.array([start for start, _, _ in spans], np.int64),
        end=np.array([end for _, end, _ in spans], np.int64),
        frame=np.array([names.index(name) for _, _, name in spans], np.int64),
        leaf=np.array([name[0] in leaves for _, _, name in spans], bool),
        loose=np.array([name[0] in ranges for _, _, name in spans], bool),
        outer=np.array([names.index(name) for _, _, name in spans], np.int64),
    )
    return nested(calls, stacks), stacks, names


def path(stacks: Stacks, names: list[str], node: int) -> str:
    found = []
    while node != NO_STACK:
        found.append(names[stacks.frame[node]])
        node = stacks.parent[node]
    return ";".join(reversed(found))


def paths(*spans: Span, leaves: str = "") -> list[str]:
    """The stack of each span."""
    found, stacks, names = made(*spans, leaves=leaves)
    return [path(stacks, names, int(node)) for node in found.node]


def times(*spans: Span, leaves: str = "") -> list[tuple[int, int, str]]:
    """What was innermost when."""
    found, stacks, names = made(*spans, leaves=leaves)
    _, start, end, node = (column.tolist() for column in found.spans)
    return [(a, b, path(stacks, names, n)) for a, b, n in zip(start, end, node, strict=True)]


def test_a_span_within_another_was_called_by_it() -> None:
    spans: list[Span] = [(0, 100, "a"), (10, 40, "b"), (20, 30, "c"), (40, 60, "b"), (100, 110, "d")]
    assert paths(*spans) == ["a", "a;b", "a;b;c", "a;b", "d"]
    assert times(*spans) == [
        (0, 10, "a"),
        (10, 20, "a;b"),
        (20, 30, "a;b;c"),
        (30, 40, "a;b"),
        (40, 60, "a;b"),
        (60, 100, "a"),
        (100, 110, "d"),
    ]


def test_the_order_of_the_rows_says_nothing() -> None:
    spans: list[Span] = [(20, 30, "c"), (0, 100, "a"), (10, 40, "b")]
    assert paths(*spans) == ["a;b;c", "a", "a;b"]


def test_of_equal_spans_the_one_that_is_said_to_be_outer_calls() -> None:
    assert paths((0, 10, "b"), (0, 10, "a"), (0, 10, "c")) == ["a;b", "a", "a;b;c"]


def test_threads_do_not_call_each_other() -> None:
    found, stacks, names = made((0, 100, "a"), (10, 40, "b"), (20, 30, "c"), threads=(1, 2, 1))
    assert [path(stacks, names, int(node)) for node in found.node] == ["a", "b", "a;c"]
    assert found.spans[0].tolist() == [1, 1, 1, 2]
    assert found.odd == 0


def test_a_span_without_length_is_a_stack_without_time() -> None:
    spans: list[Span] = [(0, 10, "a"), (5, 5, "b"), (5, 5, "c")]
    assert paths(*spans)[1] == "a;b"
    assert times(*spans) == [(0, 5, "a"), (5, 10, "a")]


def test_ends_that_differ_by_rounding_are_no_overlap() -> None:
    found, stacks, names = made((0, 10 * _US, "a"), (5 * _US, 11 * _US, "b"))
    assert [path(stacks, names, int(node)) for node in found.node] == ["a", "a;b"]
    assert found.odd == 0
    assert found.spans[2].tolist() == [5 * _US, 10 * _US]


def test_a_range_that_outlives_what_it_began_in_goes_on_without_it() -> None:
    spans: list[Span] = [(0, 100 * _US, "a"), (50 * _US, 150 * _US, "b"), (120 * _US, 130 * _US, "c")]
    found, stacks, names = made(*spans)
    assert found.odd == 1
    assert [path(stacks, names, int(node)) for node in found.node] == ["a", "a;b", "b;c"]
    assert times(*spans) == [
        (0, 50 * _US, "a"),
        (50 * _US, 100 * _US, "a;b"),
        (100 * _US, 120 * _US, "b"),
        (120 * _US, 130 * _US, "b;c"),
        (130 * _US, 150 * _US, "b"),
    ]


def test_a_range_begun_in_one_function_and_ended_in_another_is_nothing_odd() -> None:
    """As the profiler of PyTorch sees ``with record_function(...)`` beside Python's own frames."""
    found, stacks, names = made(
        *[(0, 1000 * _US, "step"), (100 * _US, 150 * _US, "enter"), (120 * _US, 900 * _US, "range")],
        *[(200 * _US, 700 * _US, "work"), (850 * _US, 950 * _US, "leave")],
        ranges="r",
    )
    assert found.odd == 0
    assert [path(stacks, names, int(node)) for node in found.node] == [
        *["step", "step;enter", "step;enter;range", "step;range;work", "step;range;leave"],
    ]
    lengths = (found.spans[2] - found.spans[1]).tolist()
    total = sum(
        length
        for length, node in zip(lengths, found.spans[3].tolist(), strict=True)
        if "range" in path(stacks, names, node)
    )
    assert total == 780 * _US


def test_a_call_into_the_runtime_calls_no_operator() -> None:
    """By its clock the launch began before the operator that it is not part of, and ends within it."""
    spans: list[Span] = [(0, 200 * _US, "a"), (90 * _US, 101 * _US, "l"), (100 * _US, 150 * _US, "b")]
    assert paths(*spans, leaves="l") == ["a", "a;l", "a;b"]
    assert (100 * _US, 150 * _US, "a;b") in times(*spans, leaves="l")


def test_a_call_of_the_runtime_may_call_another() -> None:
    assert paths((0, 100, "l"), (10, 90, "m"), leaves="lm") == ["l", "l;m"]


def _grown(rng: random.Random, start: int, end: int, depth: int, above: str, out: list[tuple[Span, str]]) -> None:
    at = start
    while depth and end - at > 8 and rng.random() < 0.8:
        first = rng.randrange(at, end - 4)
        last = rng.randrange(first + 2, end)
        name = rng.choice("abcdef")
        here = f"{above};{name}" if above else name
        out.append(((first, last, name), here))
        _grown(rng, first + 1, last - 1, depth - 1, here, out)
        at = last


@pytest.mark.parametrize("seed", range(12))
def test_any_tree_of_calls_is_found_again(seed: int) -> None:
    """A program that is known, as spans in any order: every stack and every time must come back."""
    rng = random.Random(seed)
    truth: list[tuple[Span, str]] = []
    _grown(rng, 0, 20_000, 9, "", truth)
    rng.shuffle(truth)
    spans = [span for span, _ in truth]
    assert paths(*spans) == [stack for _, stack in truth]
    inner: dict[int, str] = {}
    for (start, end, _), stack in sorted(truth, key=lambda one: one[1].count(";")):
        inner |= dict.fromkeys(range(start, end), stack)
    found = {at: stack for start, end, stack in times(*spans) for at in range(start, end)}
    assert found == inner


@pytest.mark.parametrize("seed", range(12))
def test_spans_at_random_lose_no_time_and_count_none_twice(seed: int) -> None:
    rng = random.Random(seed)
    spans: list[Span] = []
    for _ in range(300):
        start = rng.randrange(10_000)
        spans.append((start * _US, (start + rng.choice((1, 20, 150))) * _US, rng.choice("abc")))
    found, _, _ = made(*spans, leaves="c")
    _, start, end, _ = found.spans
    assert found.odd > 0
    assert (start[1:] >= end[:-1]).all()
    assert (end > start).all()
    covered = {at for first, last, _ in spans for at in range(first // _US, last // _US)}
    pieces = zip(start.tolist(), end.tolist(), strict=True)
    told = {at for first, last in pieces for at in range(first // _US, last // _US)}
    assert told <= covered
    # cut off in the end: spans that outlive one caller after the other
    assert len(covered - told) < len(covered) / 20
    assert len(found.node) == len(spans)


def test_a_chain_of_overlaps_stays_linear() -> None:
    """Made to be split again and again: each span outlives all that began before it."""
    count = 3_000
    spans: list[Span] = [(at * 10 * _US, (at + count) * 10 * _US, "a") for at in range(count)]
    found, _, _ = made(*spans)
    assert len(found.spans[0]) < 8 * count


def test_a_stack_deeper_than_python_recurses() -> None:
    depth = 5_000
    found, stacks, _ = made(*[(at, 4 * depth - at, "a") for at in range(depth)])
    assert len(stacks.parent) == depth
    assert found.odd == 0


def test_nothing_is_nothing() -> None:
    found, stacks, _ = made()
    assert len(found.node) == 0
    assert stacks.parent == []
