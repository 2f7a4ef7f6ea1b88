"""The faults a job of ranks is given, and what must be said of each: data, for the tests and the benchmark alike.

Why a fault yields its class, in ``VARIANTS``:

* more work in one rank -> compute_slow
* a slow loader: the rank waits for its data; nothing is computed or transferred any slower -> loader_slow
* a throttled cgroup: operators take longer, and that is all a trace can show -> compute_slow; the host's own evidence
  (cpu.stat, run-queue waits) turns it into host_slow
* a fault in some steps only -> intermittent, with the rank, the shape and the steps
* a slow link -> communication_slow. Groups that share ranks tell whose it is. A single group of all ranks cannot: with
  gloo's ring all ranks' durations are equal within 1 or 2 ms of 30, nobody is late, and without other groups or an
  earlier run nothing even says that the transfer should be faster -> nobody is accused, and it is said that a link that
  is slow for all looks normal (``no_baseline``); beside a healthy run, `compare_runs` says what changed
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Layout = Literal["ddp", "mesh", "stages"]
"""``ddp``: one group of all ranks; ``mesh``: rows and columns; ``stages``: two pipeline stages of equal width."""
Fault = Literal["nothing", "compute", "quota", "loader", "link", "layers", "moving"]
Shape = Literal["", "period", "start", "stretch", "drift"]
"""In which steps a rank is slow: all, every `PERIOD`th, the first `FIRST`, the middle third, or 1 % more with each."""
PERIOD = 5
FIRST = 3


@dataclass(frozen=True)
class Variant:
    """A job and what is wrong with it. `slow`: how many ranks have the fault; `workers`: of every rank's DataLoader;
    `wired`: each rank in a network namespace of its own; `rows`: of a batch, how much is computed.

    What must be said: one of `verdicts`; the ranks named are those with the fault if `named`, else none; `slow_class`,
    and `with_host` once host evidence is there (empty: no rank is classed); the blind spot `unseen`, if any; `shape` of
    the slow steps, of all traced `steps`.
    """

    layout: Layout
    fault: Fault
    slow: int
    verdicts: tuple[str, ...]
    slow_class: str = ""
    with_host: str = ""
    named: bool = True
    workers: int = 0
    wired: bool = False
    rows: int = 256
    unseen: str = ""
    steps: int = 24
    shape: Shape = ""

    def strength(self, step: int) -> float:
        """How much of the fault its rank has in `step` (negative: warm-up); of a drift, per cent of a step."""
        if not self.shape:
            return 1.0
        if step < 0:
            return 0.0
        if self.shape == "period":
            return float(step % PERIOD == 0)
        if self.shape == "start":
            return float(step < FIRST)
        if self.shape == "stretch":
            return float(self.steps // 3 <= step < 2 * self.steps // 3)
        return float(step)

    def slow_ranks(self, world: int, seed: int) -> list[int]:
        """The ranks with the fault, ascending; of a stage imbalance those of the longer stage."""
        chance = random.Random(f"{self.fault} {world} {seed}{self.shape and ' '}{self.shape}")
        if self.fault == "layers":
            first = chance.choice((0, world // 2))
            return list(range(first, first + world // 2))
        return sorted(chance.sample(range(world), self.slow))


VARIANTS = {
    "nothing": Variant("ddp", "nothing", 0, ("none",), named=False),
    "nothing_workers": Variant("ddp", "nothing", 0, ("none",), named=False, workers=2),
    "nothing_mesh": Variant("mesh", "nothing", 0, ("none",), named=False, wired=True),
    "nothing_stages": Variant("stages", "nothing", 0, ("none",), named=False, rows=384),
    "compute": Variant("ddp", "compute", 1, ("rank",), "compute_slow", "compute_slow"),
    "quota": Variant("ddp", "quota", 1, ("rank",), "compute_slow", "host_slow", rows=2048),
    "loader": Variant("ddp", "loader", 1, ("rank",), "loader_slow", "loader_slow"),
    "loader_workers": Variant("ddp", "loader", 1, ("rank",), "loader_slow", "loader_slow", workers=2),
    "link": Variant("ddp", "link", 1, ("none", "cannot_tell"), named=False, wired=True, unseen="no_baseline"),
    "link_mesh": Variant("mesh", "link", 1, ("link",), "communication_slow", "communication_slow", wired=True),
    "layers": Variant("stages", "layers", 0, ("stage",), rows=384),
    "two": Variant("ddp", "compute", 2, ("several",), "compute_slow", "compute_slow"),
    "moving": Variant("ddp", "moving", 0, ("moving",), named=False),
}
_AT_TIMES = ("intermittent",)
AT_TIMES = {
    "every_fifth": Variant("ddp", "compute", 1, _AT_TIMES, "compute_slow", "compute_slow", steps=40, shape="period"),
    "first_three": Variant("ddp", "loader", 1, _AT_TIMES, "loader_slow", "loader_slow", steps=200, shape="start"),
    # the fault lasts for about 10 s
    "middle": Variant("ddp", "compute", 1, _AT_TIMES, "compute_slow", "compute_slow", steps=240, shape="stretch"),
    "drift": Variant("ddp", "compute", 1, _AT_TIMES, "compute_slow", "compute_slow", steps=120, shape="drift"),
}
"""Faults in some steps only: too long to be recorded as the others are (tests/recorded/ranks)."""
ALL = {**VARIANTS, **AT_TIMES}


@dataclass(frozen=True)
class Score:
    """An answer beside the truth. `ranks`, `slow_class`: whether the right ones were named, as far as any must be;
    `accused`: ranks that were accused and are innocent.
    """

    verdict: bool
    ranks: bool
    slow_class: bool
    unseen: bool
    accused: tuple[int, ...]
    shape: bool = True

    @property
    def right(self) -> bool:
        """Whether all of it is right."""
        return self.verdict and self.ranks and self.slow_class and self.unseen and self.shape and not self.accused


def score(name: str, slow_ranks: list[int], result: Mapping[str, Any]) -> Score:
    """What slow_node_check's `result` (its JSON) is worth for variant `name`."""
    variant, data = ALL[name], result["data"]
    accused = {row["rank"]: row["slow_class"] for row in data["accused"]}
    named = set(accused)
    for finding in result["findings"]:
        if finding["kind"] in ("stage.slow", "link.slow") and finding["polarity"] == "abnormal":
            named |= ranks_of(finding["attributes"]["ranks"])
    due = set(slow_ranks) if variant.named else set()
    classes = {variant.slow_class} if variant.slow_class else set()
    spots = {spot["code"] for spot in result["coverage"]["not_seen"]}
    # workers that prepare batches side by side deliver them together, and the rank waits once for all of them
    in_turn = data["verdict"] == "intermittent" and variant.workers > 0
    return Score(
        verdict=data["verdict"] in variant.verdicts or in_turn,
        ranks=named == due,
        slow_class=set(accused.values()) == classes,
        unseen=not variant.unseen or variant.unseen in spots,
        accused=tuple(sorted(named - set(slow_ranks))),
        shape={(row["slow_steps"] or {}).get("shape", "") for row in data["accused"]}
        <= {"period" if in_turn else variant.shape},
    )


def ranks_of(text: str) -> set[int]:
    """The ranks in ``0-3, 8``."""
    ranks: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks
