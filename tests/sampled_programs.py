"""Programs that were never run, as a sampling profiler would have seen them: the truth is known, and any number of runs
can be had in a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from whystall.tools.stacks.model import TABLES, StackProfile


@dataclass(frozen=True)
class Program:
    """Stacks (function names, outermost first), the share of the time each has at its top, and for how long it stays
    there at a time, ms. `loop`: stacks follow one another in order, as in training; else as chance has it.
    """

    stacks: Sequence[tuple[str, ...]]
    shares: Sequence[float]
    stays_ms: Sequence[float]
    loop: bool = False

    def slower(self, function: str, factor: float, callee: str = "") -> Program:
        """With `function`'s own code taking `factor` times as long; with `callee`: what it does while in that."""
        changed = []
        for stack, share, stay in zip(self.stacks, self.shares, self.stays_ms, strict=True):
            pairs = list(pairwise(stack))
            hit = (function, callee) in pairs if callee else stack[-1] == function
            changed.append((share * factor, stay * factor) if hit else (share, stay))
        return Program(self.stacks, [s for s, _ in changed], [m for _, m in changed], self.loop)

    def called_more(self, function: str, factor: float) -> Program:
        """With `function` and all it calls taking `factor` times as long."""
        by = [factor if function in stack else 1.0 for stack in self.stacks]
        shares = [share * f for share, f in zip(self.shares, by, strict=True)]
        return Program(self.stacks, shares, [stay * f for stay, f in zip(self.stays_ms, by, strict=True)], self.loop)

    def with_names(self, names: Mapping[str, str]) -> Program:
        """With functions called otherwise."""
        stacks = [tuple(names.get(one, one) for one in stack) for stack in self.stacks]
        return Program(stacks, self.shares, self.stays_ms, self.loop)


def random_program(rng: np.random.Generator, functions: int = 20, share: float = 0.1) -> Program:
    """A program of so many functions that have code of their own, one of which, ``target``, takes `share` of the time;
    stays are of 0.2 to 200 ms."""
    names = ["target", *(f"f{number}" for number in range(1, functions))]
    above: dict[str, tuple[str, ...]] = {}
    for at, name in enumerate(names):
        parent = names[int(rng.integers(0, at))] if at and rng.random() < 0.6 else ""
        above[name] = above[parent] + (parent,) if parent else ("main", f"phase{int(rng.integers(0, 3))}")
    rest = rng.dirichlet(np.full(functions - 1, 0.7)) * (1 - share)
    stays = np.exp(rng.uniform(np.log(0.2), np.log(200), functions))
    stacks = [(*above[name], name) for name in names]
    return Program(stacks, [share, *rest], list(stays), loop=bool(rng.random() < 0.5))


def sampled(
    program: Program, rng: np.random.Generator, *, seconds: float = 30.0, hz: float = 99.0, wobble: float = 0.0
) -> StackProfile:
    """One run of `program`, sampled. `wobble`: by how much (standard deviation of the logarithm) each function's speed
    differs from run to run."""
    shares = np.array(program.shares) * np.exp(rng.normal(0, wobble, len(program.shares)))
    stays = np.array(program.stays_ms) / 1e3 * shares / np.array(program.shares)
    shares = shares / shares.sum()
    if program.loop:
        once = float(np.max(np.array(program.stays_ms) / 1e3)) * 2
        order = np.tile(np.arange(len(shares)), int(seconds / once * 1.5) + 4)
        lengths = (shares * once)[order] * rng.gamma(25.0, 1 / 25.0, len(order))
        order, lengths = order[(start := int(rng.integers(len(shares)))) :], lengths[start:]
    else:
        visits = shares / stays
        mean = float((visits / visits.sum() * stays).sum())
        count = int(seconds / mean * 2) + 200
        order = rng.choice(len(shares), count, p=visits / visits.sum())
        lengths = rng.exponential(stays[order])
    ends = np.cumsum(lengths)
    ticks = np.arange(0, min(seconds, float(ends[-1])), 1 / hz) + rng.random() / hz
    ticks = ticks[ticks < ends[-1]]
    return profile_of(program.stacks, order[np.searchsorted(ends, ticks, "right")], (ticks * 1e9).astype(np.int64))


def profile_of(
    stacks: Sequence[tuple[str, ...]],
    which: Sequence[int] | np.ndarray,
    at_ns: Sequence[int] | np.ndarray | None = None,
    weights: Sequence[float] | np.ndarray | None = None,
    *,
    unit: str = "samples",
    event: str = "cpu-clock",
    spans: Sequence[int] | np.ndarray | None = None,
    kind: str = "native",
) -> StackProfile:
    """A profile of samples at `stacks[which]`."""
    frames: dict[str, int] = {}
    nodes: dict[tuple[int, int], int] = {}
    tops = []
    for stack in stacks:
        node = -1
        for name in stack:
            node = nodes.setdefault((node, frames.setdefault(name, len(frames))), len(nodes))
        tops.append(node)
    count = len(which)
    zeros = np.zeros(count, np.int64)
    samples = {
        "at_ns": np.full(count, -1) if at_ns is None else np.asarray(at_ns),
        "span_ns": zeros if spans is None else np.asarray(spans),
        "thread": zeros - 1,
        "stack": np.asarray(tops)[np.asarray(which, dtype=np.int64)],
        "event": zeros,
        "weight": np.ones(count) if weights is None else np.asarray(weights, dtype=float),
    }
    tables = {
        "samples": samples,
        "threads": {"thread": [], "pid": [], "tid": [], "comm": []},
        "stacks": {
            "stack": list(range(len(nodes))),
            "parent": [parent for parent, _ in nodes],
            "frame": [frame for _, frame in nodes],
        },
        "frames": {
            "frame": list(range(len(frames))),
            "name": list(frames),
            "file": [""] * len(frames),
            "line": [0] * len(frames),
            "kind": [kind] * len(frames),
        },
        "events": {"event": [0], "name": [event], "unit": [unit], "period": [0.0]},
    }
    made = {
        name: pl.DataFrame([pl.Series(column, tables[name][column]).cast(dtype) for column, dtype in of.items()])
        for name, of in TABLES.items()
    }
    return StackProfile(made, "simulated", "mono")
