"""What a dispatcher suffered, from its log; and a dispatcher beside a disturber, for a person to try."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from running import Event, Running


class Wake(NamedTuple):
    """One row of ``wakes``; CLOCK_MONOTONIC nanoseconds."""

    intended_ns: int
    woken_ns: int
    done_ns: int
    cpu: int
    missed: int

    @property
    def late_ns(self) -> int:
        """How long after the deadline it went on."""
        return self.woken_ns - self.intended_ns


@dataclass(frozen=True)
class Log:
    """A dispatcher's wakes, and the gaps of its device as (start, end)."""

    wakes: list[Wake]
    idle: list[tuple[int, int]]

    @classmethod
    def of(cls, events: Iterable[Event]) -> Log:
        """From the lines of the program."""
        steps = [line for line in events if line["event"] == "step"]
        wakes = [Wake(*row) for step in steps for row in step["wakes"]]
        return cls(wakes, [(start, end) for step in steps for start, end in step["idle"]])

    def between(self, start_ns: int, end_ns: int) -> Log:
        """What lies wholly in the span."""
        wakes = [wake for wake in self.wakes if start_ns <= wake.intended_ns and wake.done_ns <= end_ns]
        return Log(wakes, [gap for gap in self.idle if start_ns <= gap[0] and gap[1] <= end_ns])

    def late(self, milliseconds: float) -> list[Wake]:
        """Wakes at least so late, the latest first."""
        found = [wake for wake in self.wakes if wake.late_ns >= milliseconds * 1e6]
        return sorted(found, key=lambda wake: -wake.late_ns)

    def lateness_ms(self, share: float) -> float:
        """The quantile of all lateness."""
        ranked = sorted(wake.late_ns for wake in self.wakes)
        return ranked[min(int(share * len(ranked)), len(ranked) - 1)] / 1e6

    def summary(self) -> dict[str, float]:
        """A few numbers; times in ms."""
        span = self.wakes[-1].done_ns - self.wakes[0].intended_ns
        return {
            "wakes": len(self.wakes),
            "late_p50": self.lateness_ms(0.5),
            "late_p99": self.lateness_ms(0.99),
            "late_max": self.lateness_ms(1),
            "later_than_1_ms": len(self.late(1)),
            "missed": sum(wake.missed for wake in self.wakes),
            "busy_p50": sorted(wake.done_ns - wake.woken_ns for wake in self.wakes)[len(self.wakes) // 2] / 1e6,
            "busy_max": max(wake.done_ns - wake.woken_ns for wake in self.wakes) / 1e6,
            "cpu_changes": sum(one.cpu != other.cpu for one, other in pairwise(self.wakes)),
            "device_idle_pct": 100 * sum(end - start for start, end in self.idle) / span,
            "idle_max": max((end - start for start, end in self.idle), default=0) / 1e6,
        }


def demonstrate(options: argparse.Namespace) -> None:
    """Run a dispatcher, for the second half of the time beside ``options.disturb``, and compare the halves."""
    passed = ("duration", "period_ms", "work_ms", "launches", "kernel_ms", "wakes_per_step", "thread_name", "profile")
    cpu = max(os.sched_getaffinity(0)) if options.cpu is None else options.cpu
    arguments: list[object] = ["--cpu", cpu]
    for name in passed:
        if (value := getattr(options, name)) is not None:
            arguments += [f"--{name.replace('_', '-')}", value]
    with Running("dispatcher.py", *arguments) as program:
        time.sleep(options.duration / 2)
        victim = program.start["dispatch_tid"]
        with Running("disturbers.py", options.disturb, "--victim", victim, "--cpu", cpu) as disturber:
            begun = disturber.until("disturbing")["mono_ns"]
            program.until("end")
            (did,) = (line for line in disturber.stop() if line["event"] == "did")
    log = Log.of(program.events)
    alone, disturbed = log.between(0, begun).summary(), log.between(begun, did["mono_ns"]).summary()
    print(f"{'times in ms':20}{'alone':>12}{options.disturb:>12}")
    for name in alone:
        print(f"{name:20}{alone[name]:12.6g}{disturbed[name]:12.6g}")
    print("done to it:", {key: value for key, value in did.items() if key not in ("event", "mono_ns")})
