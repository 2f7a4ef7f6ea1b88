"""Build the tables of a stack profile from CPU samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from whystall.bpf.capture import Thread
from whystall.bpf.samples import Place, Samples
from whystall.tools.collect.frames import Call
from whystall.tools.collect.py_spy import EVENT as PY_SPY
from whystall.tools.collect.py_spy import FoldedStack
from whystall.tools.contract.text import clean
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_STACK, SAMPLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

EVENT = "cpu-clock"


Calls = Callable[[Place], Sequence[Call]]
"""Returns the frames of a place from the outermost inward: user mode, then kernel."""


def sample_tables(
    samples: Samples,
    threads: Mapping[int, Thread],
    calls: Calls,
    period_ns: int,
    py_spy: Sequence[FoldedStack] = (),
) -> dict[str, pl.DataFrame]:
    """Return the tables of the collector ``samples``. A sample weighs `period_ns` times the samples it stands for.

    `py_spy`: samples that become a separate event, without times.
    """
    import numpy as np

    builder = Builder()
    weight = float(period_ns * samples.one_in)
    builder.event(EVENT, "ns", weight)
    numbers: dict[Call, int] = {}
    stack_of, thread_of = np.empty(len(samples.places), np.int32), np.empty(len(samples.places), np.int32)
    for row, place in enumerate(samples.places):
        stack = NO_STACK
        for call in calls(place):
            number = numbers.get(call)
            if number is None:
                number = numbers[call] = builder.frame(call.name, call.file, call.line, call.kind)
            stack = builder.call(stack, number)
        thread = threads.get(place.tid)
        stack_of[row] = stack
        thread_of[row] = builder.thread(place.tgid, place.tid, clean(thread.comm) if thread is not None else "")
    for other in py_spy:
        comm = threads[other.pid].comm if other.pid in threads else b""
        stack = builder.stack(builder.frame(*frame) for frame in other.frames)
        thread_number = builder.thread(other.pid, -1, clean(comm))
        builder.sample(stack, builder.event(PY_SPY), float(other.samples), thread=thread_number)
    rows = np.frombuffer(samples.place, np.int32)
    tables = dict(builder.profile("ebpf").tables)
    columns: dict[str, NDArray[Any]] = {
        "at_ns": np.frombuffer(samples.at, np.int64),
        "span_ns": np.zeros(len(rows), np.int64),
        "thread": thread_of[rows],
        "stack": stack_of[rows],
        "event": np.zeros(len(rows), np.int16),
        "weight": np.full(len(rows), weight),
    }
    own = pl.DataFrame([pl.Series(name, columns[name], dtype=kind) for name, kind in SAMPLES.items()])
    tables["samples"] = pl.concat([own, tables["samples"]])
    return tables
