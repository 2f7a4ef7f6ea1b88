"""Exact numbers of profiles: decimal microseconds to integer nanoseconds, and whole numbers of any type.

A float64 of microseconds since the epoch is off by up to 125 ns, so such a number is never made a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import polars as pl

EXACT_FLOAT = 2.0**43
"""Below it a float64 of microseconds is exact to its third decimal: neighbours are less than 0.001 apart."""

_LARGEST = 2**63 - 1
_NS = Decimal(1000)


def nanoseconds(values: Sequence[object]) -> pl.Series:
    """Convert microseconds (int, float below `EXACT_FLOAT`, or text such as ``"1736413971558972.912"``) to nanoseconds,
    rounded half up; null: no such number."""
    types = set(map(type, values))
    try:
        if types <= {int}:
            return pl.Series(values, dtype=pl.Int64) * 1000
        if types <= {int, float}:
            return _from_floats(pl.Series(values, dtype=pl.Float64, strict=False))
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        pass  # a whole number beyond 64 bits
    return from_texts(pl.Series([str(value) for value in values], dtype=pl.String))


def from_texts(texts: pl.Series) -> pl.Series:
    """Convert decimal texts as `nanoseconds` does; quotes and white space around them are ignored."""
    found = texts.str.strip_chars(' \t\r\n"').str.extract_groups(r"^(-?)([0-9]{1,15})(?:\.([0-9]+))?$").struct
    sign, whole, part = found.field("1"), found.field("2"), found.field("3").fill_null("0").str.pad_end(4, "0")
    digits = part.str.slice(0, 4).cast(pl.Int64)
    size = whole.cast(pl.Int64) * 1000 + (digits + 5) // 10
    result = pl.select(pl.when(sign == "-").then(-size).otherwise(size)).to_series()
    odd = result.is_null()
    if odd.any():  # with an exponent, or not a number
        places = odd.arg_true()
        numbers = [_from_decimal(text) for text in texts.gather(places).to_list()]
        result = result.scatter(places, pl.Series(numbers, dtype=pl.Int64))
    return result


def whole(values: Sequence[object]) -> pl.Series:
    """Convert identifiers (int, whole float, or text that ends with a number) to Int64, -1 without one."""
    try:
        if set(map(type, values)) <= {int}:
            return pl.Series(values, dtype=pl.Int64)
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        pass
    known: dict[object, int] = {}
    for value in set(values):
        known[value] = whole_of(value)
    return pl.Series([known[value] for value in values], dtype=pl.Int64)


def small(series: pl.Series) -> pl.Series:
    """Convert Int64 to Int32, -1 where it does not fit: ids of processes, threads, devices, steps."""
    fits = series.is_between(-1, 2**31 - 1)
    return pl.select(pl.when(fits).then(series).otherwise(-1).cast(pl.Int32).alias(series.name)).to_series()


def _from_floats(numbers: pl.Series) -> pl.Series:
    # Whole and fraction separately: both are exact, and so is their sum; the product with 1000 would be rounded.
    floor = pl.lit(numbers).floor()
    part = ((pl.lit(numbers) - floor) * 1000 + 0.5).floor()
    return pl.select(floor.cast(pl.Int64, strict=False) * 1000 + part.cast(pl.Int64, strict=False)).to_series()


def _from_decimal(text: str | None) -> int | None:
    try:
        number = Decimal((text or "").strip(' \t\r\n"'))
        if not number.is_finite() or abs(number) > _LARGEST // 1000:
            return None
        return int((number * _NS).to_integral_value("ROUND_HALF_UP"))
    except InvalidOperation:
        return None


def whole_of(value: object) -> int:
    """Convert one value as `whole` does."""
    if isinstance(value, str):
        digits = value.strip().rpartition(" ")[2]  # "stream 7"
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1
    if isinstance(value, float):
        value = int(value) if value.is_integer() else -1
    return value if isinstance(value, int) and abs(value) <= _LARGEST else -1
