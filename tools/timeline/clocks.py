"""The host's clocks, read at one instant, so that traces and profiles on different clocks can be laid side by side.

Standard library only: the recorder that runs inside a training process uses it.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

_TRIES = 16
MARK = "# whystall-clocks: "
"""Begins the comment lines of a trace file that carry a `ClockPoint` as JSON."""


@dataclass(frozen=True)
class ClockPoint:
    """One instant on four clocks, integer nanoseconds. `error_ns`: they were read at most so far apart."""

    mono: int
    mono_raw: int
    boot: int
    real: int
    error_ns: int

    def line(self) -> str:
        """As a comment line of a trace file, without line end."""
        return MARK + json.dumps(asdict(self), separators=(",", ":"))


def now() -> ClockPoint:
    """The clocks now: the tightest of several readings. clock_gettime(2); mono_raw is not slewed by NTP."""
    return min((_read() for _ in range(_TRIES)), key=lambda point: point.error_ns)


def _read() -> ClockPoint:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    real = time.clock_gettime_ns(time.CLOCK_REALTIME)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return ClockPoint(mono=(before + after) // 2, mono_raw=raw, boot=boot, real=real, error_ns=after - before)


def parse(line: str) -> ClockPoint | None:
    """The point a comment line carries, or None when it is another line or damaged."""
    if not line.startswith(MARK):
        return None
    try:
        values = json.loads(line[len(MARK) :])
        return ClockPoint(**{name: int(values[name]) for name in ("mono", "mono_raw", "boot", "real", "error_ns")})
    except (ValueError, TypeError, KeyError):
        return None
