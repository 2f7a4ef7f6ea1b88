"""Intervals laid over intervals, against counting every instant."""

from __future__ import annotations

import random

import polars as pl
import pytest

from whystall.tools.host.host_bound.intervals import overlay


def frame(rows: list[tuple[int, int, int, str]], name: str) -> pl.DataFrame:
    schema = {"key": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, name: pl.String}
    return pl.DataFrame(rows, schema, orient="row")


def disjoint(chance: random.Random, keys: int) -> list[tuple[int, int, int, str]]:
    rows = []
    for key in range(keys):
        at = 0
        for number in range(chance.randrange(12)):
            at += chance.randrange(4)
            end = at + chance.randrange(4)
            rows.append((key, at, end, f"{key}.{number}"))
            at = end
    chance.shuffle(rows)
    return rows


def instants(rows: list[tuple[int, int, int, str]]) -> dict[tuple[int, int], str]:
    return {(key, at): name for key, start, end, name in rows for at in range(start, end)}


@pytest.mark.parametrize("seed", range(60))
def test_every_instant_is_told_once_and_with_its_mark(seed: int) -> None:
    chance = random.Random(seed)
    base, marks = disjoint(chance, 3), disjoint(chance, 4)
    found = overlay(frame(base, "one"), frame(marks, "two"), "key")
    assert found.columns == ["key", "start_ns", "end_ns", "one", "two"]
    assert found["start_ns"].is_sorted()
    told: dict[tuple[int, int], tuple[str, str | None]] = {}
    for key, start, end, one, two in found.iter_rows():
        assert start < end
        for at in range(start, end):
            assert (key, at) not in told
            told[key, at] = (one, two)
    marked = instants(marks)
    assert told == {(key, at): (one, marked.get((key, at))) for (key, at), one in instants(base).items()}


def test_nothing_laid_over_something_leaves_it_whole() -> None:
    base = frame([(1, 5, 9, "a")], "one")
    assert overlay(base, frame([], "two"), "key").rows() == [(1, 5, 9, "a", None)]
    assert overlay(frame([], "two"), base, "key").is_empty()
