"""Read the host's clocks at one instant, so that traces and profiles on different clocks can be aligned.

Imports the standard library only: the recorder inside a training process uses it.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

_TRIES = 16
MARK = "# whystall-clocks: "
"""Prefix of the comment lines of a trace file that carry a `ClockPoint` as JSON."""


@dataclass(frozen=True)
class ClockPoint:
    """One instant on four clocks, integer nanoseconds. `error_ns`: the longest time between two of the readings."""

    mono: int
    mono_raw: int
    boot: int
    real: int
    error_ns: int

    def line(self) -> str:
        """Return a comment line of a trace file, without line end."""
        return MARK + json.dumps(asdict(self), separators=(",", ":"))


def now() -> ClockPoint:
    """Read the clocks: the tightest of several readings. clock_gettime(2); NTP does not slew mono_raw."""
    return min((_read() for _ in range(_TRIES)), key=lambda point: point.error_ns)


def _read() -> ClockPoint:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    real = time.clock_gettime_ns(time.CLOCK_REALTIME)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return ClockPoint(mono=(before + after) // 2, mono_raw=raw, boot=boot, real=real, error_ns=after - before)


# # whystall-clocks: {"mono":5000000000,"mono_raw":4999990000,"boot":5000000000,"real":1700000000000000000,"error_ns":9}
def parse(line: str) -> ClockPoint | None:
    """Return the point in a comment line; None for another or a damaged line."""
    if not line.startswith(MARK):
        return None
    try:
        values = json.loads(line[len(MARK) :])
        return ClockPoint(**{name: int(values[name]) for name in ("mono", "mono_raw", "boot", "real", "error_ns")})
    except (ValueError, TypeError, KeyError):
        return None
