"""Compare the methods of I/O in a calibration with today's, per request size, with bounds. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import polars as pl
from pydantic import Field

from whystall.tools.contract.result import Model

Operation = Literal["read", "write"]
Clear = Literal["faster", "slower", "unclear"]

BASE: dict[Operation, str] = {"read": "buffered", "write": "synced"}
"""The baselines: cold buffered reads, and buffered writes until they are on the disk, as direct writes are. `buffered`
writes, until the calls return, are compared as a method of their own."""
LEAST_TRIALS = 5
"""With fewer, not even the full range bounds the median with 90 %."""
_CONFIDENCE = 0.9


class Compared(Model):
    """One method against the baseline. Ratios are medians over rounds of two consecutive trials: `ratio` of bytes per
    second (above 1: faster), `cpu_ratio` of CPU time per byte (below 1: cheaper); low and high bound the median with
    at least 90 %. `clear`: the side of 1 on which the bounds of `ratio` lie, if any.
    """

    directory: str
    dev: str
    filesystem: str
    operation: Operation
    way: str
    request_bytes: int
    trials: int
    moved_bytes_rate: float = Field(description="median, per second")
    base_bytes_rate: float
    ratio: float
    low_ratio: float
    high_ratio: float
    cpu_ratio: float | None = Field(description="None where the trials were too short for the clock of CPU time")
    cpu_low_ratio: float | None
    cpu_high_ratio: float | None
    clear: Clear

    @property
    def enough(self) -> bool:
        """Return whether there were enough trials for bounds."""
        return self.trials >= LEAST_TRIALS

    @property
    def less_cpu(self) -> bool:
        """Return whether it clearly costs less CPU time per byte."""
        return self.enough and self.cpu_high_ratio is not None and self.cpu_high_ratio < 1

    def turned(self) -> Compared:
        """Return the inverse comparison: the baseline against this method."""
        sides: dict[Clear, Clear] = {"faster": "slower", "slower": "faster", "unclear": "unclear"}
        return self.model_copy(
            update={
                "way": BASE[self.operation],
                "moved_bytes_rate": self.base_bytes_rate,
                "base_bytes_rate": self.moved_bytes_rate,
                "ratio": 1 / self.ratio,
                "low_ratio": 1 / self.high_ratio,
                "high_ratio": 1 / self.low_ratio,
                "cpu_ratio": 1 / self.cpu_ratio if self.cpu_ratio else None,
                "cpu_low_ratio": 1 / self.cpu_high_ratio if self.cpu_high_ratio else None,
                "cpu_high_ratio": 1 / self.cpu_low_ratio if self.cpu_low_ratio else None,
                "clear": sides[self.clear],
            }
        )


class Bounds(NamedTuple):
    """A median and its bounds."""

    median: float
    low: float
    high: float


def median_bounds(values: Sequence[float]) -> Bounds:
    """Return the median of `values` (at least one) and the order statistics that bound the population median with 90 %.

    Valid for any distribution (binomial); with fewer than five values, the full range.
    """
    ordered = sorted(values)
    n, out = len(ordered), 0
    outside = 0.0
    while out < (n - 1) // 2:
        outside += 2 * math.comb(n, out) / 2**n  # probability of a median beyond the first or last `out` + 1 values
        if 1 - outside - 2 * math.comb(n, out + 1) / 2**n < _CONFIDENCE:
            break
        out += 1
    return Bounds(statistics.median(ordered), ordered[out], ordered[n - 1 - out])


def compare(trials: pl.DataFrame) -> list[Compared]:
    """Return every method against the baseline by file system, operation and size, from rounds that tried both."""
    found = []
    moved = trials.filter((pl.col("bytes") > 0) & (pl.col("wall_ns") > 0)).with_columns(
        (pl.col("bytes") / pl.col("wall_ns") * 1e9).alias("rate"), (pl.col("cpu_ns") / pl.col("bytes")).alias("cost")
    )
    keys = ["dev", "fstype", "directory", "operation", "request_bytes"]
    for place, rows in moved.group_by(keys, maintain_order=True):
        dev, fstype, directory, operation, size = place
        if operation not in BASE:
            continue
        base = rows.filter(pl.col("way") == BASE[operation]).select("trial", base_rate="rate", base_cost="cost")
        for way in rows["way"].unique(maintain_order=True):
            if way == BASE[operation]:
                continue
            pairs = rows.filter(pl.col("way") == way).join(base, on="trial")
            if pairs.is_empty():
                continue
            ratio = median_bounds((pairs["rate"] / pairs["base_rate"]).to_list())
            # The CPU clock may be too coarse for a trial.
            costs = pairs.filter((pl.col("base_cost") > 0) & (pl.col("cost") > 0))
            cpu = (
                median_bounds((costs["cost"] / costs["base_cost"]).to_list()) if costs.height >= LEAST_TRIALS else None
            )
            found.append(
                Compared(
                    directory=directory,
                    dev=dev,
                    filesystem=fstype,
                    operation=operation,
                    way=way,
                    request_bytes=size,
                    trials=pairs.height,
                    moved_bytes_rate=statistics.median(pairs["rate"].to_list()),
                    base_bytes_rate=statistics.median(pairs["base_rate"].to_list()),
                    ratio=_digits(ratio.median),
                    low_ratio=_digits(ratio.low),
                    high_ratio=_digits(ratio.high),
                    cpu_ratio=_digits(cpu.median) if cpu else None,
                    cpu_low_ratio=_digits(cpu.low) if cpu else None,
                    cpu_high_ratio=_digits(cpu.high) if cpu else None,
                    clear=_clear(ratio, pairs.height),
                )
            )
    return sorted(found, key=lambda c: (c.dev, c.operation, c.way, c.request_bytes))


def crossover(compared: Sequence[Compared]) -> int | None:
    """Return the size from which the method of `compared` was clearly faster at every tried size; None: not found."""
    return _from(compared, [c.request_bytes for c in compared if c.clear == "faster"])


def cpu_crossover(compared: Sequence[Compared]) -> int | None:
    """Return the size from which it clearly costs less CPU time per byte without being clearly slower; None: none."""
    return _from(compared, [c.request_bytes for c in compared if c.less_cpu and c.clear != "slower"])


def _from(compared: Sequence[Compared], good: Sequence[int]) -> int | None:
    """Return the smallest size such that it and all larger, sufficiently tried sizes are `good`."""
    found = None
    for row in sorted((c for c in compared if c.enough), key=lambda c: -c.request_bytes):
        if row.request_bytes not in good:
            break
        found = row.request_bytes
    return found


def nearest(compared: Sequence[Compared], request_bytes: int) -> Compared | None:
    """Return the trials of the largest size not above `request_bytes`, if there were enough; else None.

    A larger size would overstate the gain of direct I/O.
    """
    rows = [c for c in compared if c.request_bytes <= request_bytes and c.enough]
    return max(rows, key=lambda c: c.request_bytes, default=None)


def _digits(ratio: float) -> float:
    """Round to three significant digits."""
    return float(f"{ratio:.3g}")


def _clear(ratio: Bounds, trials: int) -> Clear:
    if trials < LEAST_TRIALS or ratio.low <= 1 <= ratio.high:
        return "unclear"
    return "faster" if ratio.low > 1 else "slower"
