"""Find the most stalled of several processes by sampling thread states and CPU wait from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from whystall.tools.collect.proc_parse import UNKNOWN, pid_stat, schedstat

_STUCK = "DTt"  # uninterruptible wait; stopped
# Less than a fifth of the samples may be chance, and so may less than twice the second highest score.
_LEAST = 0.2
_TIMES = 2.0
_THREADS = 64


@dataclass(frozen=True)
class State:
    """One sample of a process. `stuck`: threads in an uninterruptible wait or stopped; `wait_ns`: total CPU wait of its
    threads, -1 if the kernel does not count it; `at_ns`: CLOCK_MONOTONIC.
    """

    stuck: int
    wait_ns: int
    at_ns: int


def sampled(pids: Iterable[int], root: str = "/proc") -> dict[int, State]:
    """Sample `pids`, at most 64 threads of each; without those that have ended."""
    found = {}
    for pid in pids:
        stuck, waited, known = 0, 0, False
        try:
            threads = os.listdir(f"{root}/{pid}/task")[:_THREADS]
        except OSError:
            continue  # it has ended
        for tid in threads:
            base = f"{root}/{pid}/task/{tid}"
            try:
                stuck += pid_stat(Path(base, "stat").read_bytes()).state in _STUCK
                wait = schedstat(Path(base, "schedstat").read_bytes()).wait_ns
            except (OSError, ValueError, IndexError):
                continue  # it is exiting
            known = known or wait != UNKNOWN
            waited += max(wait, 0)
        found[pid] = State(stuck, waited if known else UNKNOWN, time.monotonic_ns())
    return found


def most_stalled(samples: Sequence[dict[int, State]]) -> int | None:
    """Return the process that is stalled at least a fifth of the time and twice as much as any other, or None."""
    pids = set.intersection(*map(set, samples)) if samples else set()
    scores = sorted(((_score([sample[pid] for sample in samples]), pid) for pid in pids), reverse=True)
    if not scores or scores[0][0] < _LEAST:
        return None
    if len(scores) > 1 and scores[0][0] < _TIMES * scores[1][0]:
        return None
    return scores[0][1]


def _score(states: Sequence[State]) -> float:
    """Return the larger share: of samples with stuck threads, or of time waiting for a CPU."""
    stuck = sum(state.stuck > 0 for state in states) / len(states)
    first, last = states[0], states[-1]
    elapsed = last.at_ns - first.at_ns
    if UNKNOWN in (first.wait_ns, last.wait_ns) or elapsed <= 0:
        return stuck
    return max(stuck, min(1.0, (last.wait_ns - first.wait_ns) / elapsed))
