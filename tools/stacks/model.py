"""Stack samples in columns: when, in which thread, at which stack, and how much that counts.

Stacks are nodes of one tree, so that a stack shared by a million samples is stored once, and what a flame graph needs
is there already. Instants are nanoseconds on the profile's clock (in a recording: since its start), `NO_TIME` where the
source does not say. No nulls; -1 for another unknown number, 0 for an unknown line, empty for an unknown text. Names
are inert (`whystall.tools.contract.text.clean`) since they entered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

NO_TIME = -1
NO_STACK = -1
NO_THREAD = -1

SAMPLES = pl.Schema(
    {
        "at_ns": pl.Int64,
        # how long the sample stands for from `at_ns` on: a kernel's run, a wait; 0: an instant
        "span_ns": pl.Int64,
        # row of `threads`, of `stacks` (its innermost frame), of `events`
        "thread": pl.Int32,
        "stack": pl.Int32,
        "event": pl.Int16,
        # in the event's unit; finite and not negative; fractions are kept
        "weight": pl.Float64,
    }
)
THREADS = pl.Schema({"thread": pl.Int32, "pid": pl.Int32, "tid": pl.Int32, "comm": pl.String})
# A node of the tree of stacks: `frame` called by `parent` (-1: outermost). A parent comes before its children, so
# stack == row number, and parent < stack.
STACKS = pl.Schema({"stack": pl.Int32, "parent": pl.Int32, "frame": pl.Int32})
FRAMES = pl.Schema(
    {
        "frame": pl.Int32,
        "name": pl.String,
        # source file or module, as far as known; line in it
        "file": pl.String,
        "line": pl.Int32,
        "kind": pl.String,
    }
)
EVENTS = pl.Schema(
    {
        "event": pl.Int16,
        "name": pl.String,
        # of the weights: samples, ns, bytes, or what the source calls it
        "unit": pl.String,
        # what one sample stands for, in the unit; 0 unknown
        "period": pl.Float64,
    }
)
TABLES: dict[str, pl.Schema] = {
    "samples": SAMPLES,
    "threads": THREADS,
    "stacks": STACKS,
    "frames": FRAMES,
    "events": EVENTS,
}
"""The tables of a stack profile, and of the collectors ``samples`` and ``samples_before`` in a recording."""

KINDS = ("python", "native", "kernel", "operator", "annotation", "launch", "device", "idle", "thread", "other")
"""What a frame is. `device`: work of an accelerator, named ``GPU:...`` or ``NPU:...``; `idle`: it, or a CPU, had
nothing to do; `thread`: stands for a process, thread or device at the root; `other`: not known."""


@dataclass(frozen=True)
class StackProfile:
    """Stack samples from one source.

    `source`: the format (``ebpf``, ``folded``, ``perf_script``, ``pprof``, ``speedscope``, ``chrome``, ``kineto``,
    ``ascend_text`` ...). `clock`: as in `whystall.tools.timeline.profile.Profile`, empty when the source does not say.
    `notes`: (blind spot code, detail); ``odd_lines`` tells how many records could not be read.
    """

    tables: Mapping[str, pl.DataFrame]
    source: str
    clock: str = ""
    notes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, schema in TABLES.items():
            if self.tables[name].schema != schema:
                raise ValueError(f"table {name} does not have its columns")

    @property
    def samples(self) -> pl.DataFrame:
        """The samples, in no order."""
        return self.tables["samples"]

    @property
    def threads(self) -> pl.DataFrame:
        """Who was sampled."""
        return self.tables["threads"]

    @property
    def stacks(self) -> pl.DataFrame:
        """The tree of stacks."""
        return self.tables["stacks"]

    @property
    def frames(self) -> pl.DataFrame:
        """The frames, each once."""
        return self.tables["frames"]

    @property
    def events(self) -> pl.DataFrame:
        """What was counted; usually one."""
        return self.tables["events"]

    @property
    def timed(self) -> bool:
        """Whether every sample says when it was taken."""
        return not self.samples.is_empty() and bool((self.samples["at_ns"] != NO_TIME).all())
