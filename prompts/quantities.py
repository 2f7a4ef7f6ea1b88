"""Formats numbers with units, for reading."""

from __future__ import annotations


def quantity(value: float, unit: str) -> str:
    """Format `value` in `unit`: ``ms``, ``us``, ``s``, ``pct``, ``count``, ``bytes``, ``bytes/s``, ``GB/s``, ``1/s``,
    ``ratio``, ``cpus``. A ratio close to zero (a probability) has an exponent.
    """
    if unit in _SECONDS:
        return duration(value * _SECONDS[unit])
    if unit == "pct":
        return f"{_digits(value)} %"
    if unit in ("bytes", "bytes/s"):
        return size(value) + unit.removeprefix("bytes")
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "1/s":
        return f"{_digits(value)}/s"
    if unit == "GB/s":  # decimal, as for links
        return f"{_digits(value)} GB/s"
    if unit == "ratio" and 0 < abs(value) < 0.005:
        return f"{value:.0e}"
    return f"{_digits(value)} CPU" if unit == "cpus" else _digits(value)


def direction(code: str, before: str, after: str, change: float) -> str:
    """Return the code of a change's direction that agrees with its printed shares.

    What takes more (``grew``) or less (``shrank``) of the same work may have a share that moved the other way, or not
    at all as printed, because other things changed more: then the code ends with ``_against``.
    """
    grew = {"grew": True, "shrank": False}.get(code)
    if grew is None or (before != after and (change > 0) is grew):
        return code
    return f"{code}_against"


def points(value: float) -> str:
    """Format a difference of two percentages: ``+15.9``, ``-3``."""
    return f"{'-' if value < 0 else '+'}{_digits(abs(value))}"


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def duration(seconds: float) -> str:
    """Format seconds: ``1.23 s``, ``45 ms``, ``7.1 us``, ``12 min``, ``11.3 h``."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if abs(seconds) < limit:
            return f"{_digits(seconds * factor)} {unit}"
    return f"{_digits(seconds / 3600)} h"


def size(value: float) -> str:
    """Format bytes: ``50 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{_digits(value)} {unit}"
        value /= 1024
    return f"{_digits(value)} TiB"


def _digits(value: float) -> str:
    """Format with three significant digits, without trailing zeros or exponent."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    places = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
