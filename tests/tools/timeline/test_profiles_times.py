"""Microseconds in decimals become exact nanoseconds, however large."""

from __future__ import annotations

import random

import polars as pl
import pytest

from whystall.tools.timeline.profile_reading.numbers import EXACT_FLOAT, from_texts, nanoseconds, small, whole

EPOCH_US = 1_736_000_000_000_000


def _decimals(below_us: int, count: int = 20_000) -> list[tuple[str, int]]:
    """Numbers as profilers print them, and what they are in ns."""
    chance = random.Random(below_us)
    numbers = [chance.randrange(below_us * 1000) for _ in range(count)]
    return [(f"{ns // 1000}.{ns % 1000:03d}", ns) for ns in numbers]


def test_texts_of_the_epoch_are_exact_to_the_nanosecond() -> None:
    cases = [(f"{EPOCH_US + i}.{i % 1000:03d}", (EPOCH_US + i) * 1000 + i % 1000) for i in range(20_000)]
    assert nanoseconds([text for text, _ in cases]).to_list() == [ns for _, ns in cases]


def test_as_floats_they_would_not_be() -> None:
    """The reason why a reader keeps long decimals as text."""
    assert round(float(f"{EPOCH_US}.101") * 1000) != EPOCH_US * 1000 + 101


@pytest.mark.parametrize("below_us", [10**6, 2**42 + 10**6, int(EXACT_FLOAT)])
def test_floats_below_the_limit_are_exact(below_us: int) -> None:
    cases = _decimals(below_us)
    assert nanoseconds([float(text) for text, _ in cases]).to_list() == [ns for _, ns in cases]


def test_whole_microseconds_are_exact() -> None:
    assert nanoseconds([EPOCH_US, 0, -5]).to_list() == [EPOCH_US * 1000, 0, -5000]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("313.88628125", 313_886),
        ("7.0005", 7_001),
        ("1736408883704643.212\t", 1_736_408_883_704_643_212),
        ('"12.5"', 12_500),
        ("-0.5", -500),
        ("1.7e15", 1_700_000_000_000_000_000),
        ("5e-1", 500),
    ],
)
def test_every_way_to_write_a_number(text: str, ns: int) -> None:
    assert from_texts(pl.Series([text])).to_list() == [ns]


@pytest.mark.parametrize("value", ["", "x", "N/A", "nan", "1e300", "-", "1.2.3", None, float("nan"), 1e300, 10**30])
def test_what_is_no_number_is_null_and_spoils_no_other(value: object) -> None:
    assert nanoseconds([value, 2]).to_list() == [None, 2000]


def test_nothing_is_no_error() -> None:
    assert nanoseconds([]).to_list() == []
    assert whole([]).to_list() == []


def test_identifiers_in_any_clothing() -> None:
    values = [7, "7", "stream 7", 7.0, 7.5, "Spans", None, 10**30, "-3", -3, True]
    assert whole(values).to_list() == [7, 7, 7, 7, -1, -1, -1, -1, -1, -3, 1]


def test_numbers_of_threads_that_do_not_fit_are_unknown() -> None:
    series = small(pl.Series("tid", [5, -1, -7, 2**31, 2**31 - 1]))
    assert series.to_list() == [5, -1, -1, -1, 2**31 - 1]
    assert (series.dtype, series.name) == (pl.Int32, "tid")


def test_identifiers_beyond_64_bits_are_none() -> None:
    assert whole([1, 2**63, -(2**63) - 1, 2**200]).to_list() == [1, -1, -1, -1]
