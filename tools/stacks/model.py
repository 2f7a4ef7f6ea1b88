"""Stack samples in columns: instant, thread, stack and weight.

Stacks are nodes of one tree, so that a stack shared by a million samples is stored once, in the form a flame graph
needs. Instants are nanoseconds on the profile's clock (in a recording: since its start), `NO_TIME` if unknown. No
nulls; -1 for another unknown number, 0 for an unknown line, empty for an unknown text. Names are escaped
(`whystall.tools.contract.text.clean`).
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
        # duration of the sample from `at_ns` on: a kernel's run, a wait; 0: an instant
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
        # source file or module, if known; line in it
        "file": pl.String,
        "line": pl.Int32,
        "kind": pl.String,
    }
)
EVENTS = pl.Schema(
    {
        "event": pl.Int16,
        "name": pl.String,
        # of the weights: samples, ns, bytes, or the source's own
        "unit": pl.String,
        # the value of one sample in the unit; 0 unknown
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
"""The tables of a stack profile, and of a recording's collectors ``samples``, ``samples_before``, ``accelerator``."""

KINDS = ("python", "native", "kernel", "operator", "annotation", "launch", "device", "idle", "thread", "other")
"""Kinds of frames. `device`: work of an accelerator, named ``GPU:...`` or ``NPU:...``; `idle`: it, or a CPU, was idle;
`thread`: a process, thread or device at the root; `other`: unknown."""


@dataclass(frozen=True)
class StackProfile:
    """Stack samples from one source.

    `source`: the format (``ebpf``, ``folded``, ``perf_script``, ``pprof``, ``speedscope``, ``chrome``, ``kineto``,
    ``ascend_text`` ...). `clock`: as in `whystall.tools.timeline.profile.Profile`, empty if unknown. `notes`: (blind
    spot code, detail); ``odd_lines`` is the number of records that could not be read.
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
        """The threads that were sampled."""
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
        """Whether every sample has an instant."""
        return not self.samples.is_empty() and bool((self.samples["at_ns"] != NO_TIME).all())
