"""Numbers with units."""

from __future__ import annotations

import pytest

from whystall.prompts.quantities import quantity
from whystall.tools.contract.kinds import KINDS


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1230, "ms", "1.23 s"),
        (45, "ms", "45 ms"),
        (45.6789, "ms", "45.7 ms"),
        (0.5, "ms", "500 us"),
        (999.9, "ms", "1,000 ms"),
        (7.125, "us", "7.12 us"),
        (0, "ms", "0 us"),
        (3.2, "s", "3.2 s"),
        (125, "s", "125 s"),
        (1200, "s", "20 min"),
        (40_560, "s", "11.3 h"),
        (50 * 1024 * 1024, "bytes", "50 MiB"),
        (1023, "bytes", "1,023 B"),
        (1536, "bytes", "1.5 KiB"),
        (3 * 1024**4, "bytes", "3 TiB"),
        (2 * 1024**2, "bytes/s", "2 MiB/s"),
        (15.62, "GB/s", "15.6 GB/s"),
        (36.94, "pct", "36.9 %"),
        (100, "pct", "100 %"),
        (0.004, "pct", "0 %"),
        (12345, "count", "12,345"),
        (120.4, "1/s", "120/s"),
        (1.5, "ratio", "1.5"),
        (3.2e-9, "ratio", "3e-09"),
        (0, "ratio", "0"),
        (2, "cpus", "2 CPU"),
    ],
)
def test_quantities(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_every_unit_in_use_is_written() -> None:
    units = {unit for spec in KINDS.values() for unit in spec.metrics.values()}
    assert units <= {"ms", "us", "s", "pct", "count", "bytes", "bytes/s", "1/s", "ratio", "cpus"}
    for unit in units - {"count", "ratio"}:
        assert not quantity(5, unit).isdigit(), unit
