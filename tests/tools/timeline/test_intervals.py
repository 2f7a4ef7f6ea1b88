from __future__ import annotations

import random

import polars as pl
import pytest

from whystall.tools.timeline.intervals import Cover

_SCHEMA = {"start_ns": pl.Int64, "end_ns": pl.Int64}


def cover(*intervals: tuple[int, int]) -> Cover:
    return Cover.of(pl.DataFrame(list(intervals), schema=_SCHEMA, orient="row"))


def test_what_overlaps_or_touches_is_one_piece() -> None:
    pieces = cover((5, 8), (0, 3), (2, 4), (4, 5), (9, 9)).pieces
    assert pieces.rows() == [(0, 8, 0)]


def test_pieces_know_what_is_before_them() -> None:
    assert cover((0, 3), (10, 12), (20, 21)).pieces.rows() == [(0, 3, 0), (10, 12, 3), (20, 21, 5)]


def test_nothing_covers_nothing() -> None:
    assert cover().within(pl.Series([0, 5]), pl.Series([9, 9])).to_list() == [0, 0]


def test_a_span_that_ends_before_it_begins_holds_nothing() -> None:
    assert cover((0, 10)).within(pl.Series([8]), pl.Series([2])).to_list() == [0]


def test_the_union_of_two() -> None:
    assert (cover((0, 3), (8, 9)) | cover((2, 5))).pieces.rows() == [(0, 5, 0), (8, 9, 5)]


@pytest.mark.parametrize("seed", range(20))
def test_counting_instants_one_by_one_gives_the_same(seed: int) -> None:
    source = random.Random(seed)
    intervals = [(a, a + source.randint(0, 9)) for a in (source.randint(0, 60) for _ in range(source.randint(0, 9)))]
    spans = [(source.randint(0, 70), source.randint(0, 70)) for _ in range(9)]
    found = cover(*intervals).within(pl.Series([a for a, _ in spans]), pl.Series([b for _, b in spans]))
    assert found.to_list() == [sum(any(s <= t < e for s, e in intervals) for t in range(a, b)) for a, b in spans]
