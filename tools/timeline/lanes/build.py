"""From events to lanes: who had each CPU, what each thread did or waited for, what interrupted it.

The instants and unknowns follow `whystall.tools.timeline.sched`. What was not told is not invented:

* On a CPU every switch, and every event in a thread's context, is a statement of who has it. Where two neighbouring
  statements disagree, a switch between them was not told (a *broken chain*). The one who is there afterwards is taken
  to have come as early as the statements allow: at its `prev_arrived_ns` if the scheduler accounted it, else at the
  last statement about its predecessor, but not before it was woken and not before it was last told to be on another
  CPU. Both slices are `inexact`; what the predecessor does from then on is `unknown` until it is next told of.
* Within a hole that the tracer itself tells of (`holes`, any `why` but ``unseen``) a CPU belongs to nobody known
  (thread -1), and a thread is `unknown` unless another CPU tells that it ran there. Holes ``unseen`` are not read:
  the broken chains they tell of are found from the events.
* A wait is `inexact` when its end is not told: nobody was seen to wake the thread, or only half of the wake-up.
  So is a wait for a CPU in whose queue a broken chain falls. Where some CPU is told of that was not traced, so are
  all waits of threads that were there, and the last wait of every thread.
* A thread that again and again leaves its CPU untold, or is woken twice without having run, may run untold at any
  time: some kernels tell no switches of certain threads. All its waits for a CPU are `inexact`, and where none of its
  runs is told after, it is `unknown`. (Once in a thousand times is an accident, and only that wait is not known.)
* CPUs whose clocks differ a little may tell a wake-up on the wrong side of a switch: `SKEW_NS`.

Two switches lost without a mark, away from a thread and straight back to it, leave nothing to be found.
"""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.lanes import cpu as lanes_cpu
from whystall.tools.timeline.lanes import interrupts as lanes_interrupts
from whystall.tools.timeline.lanes import threads as lanes_threads
from whystall.tools.timeline.sched import SchedTrace

_I, _N, _S, _B = pl.Int64, pl.Int32, pl.String, pl.Boolean

STATES = ("running", "runnable", "sleeping", "uninterruptible", "stopped", "idle", "dead", "unknown")
"""Of a thread. `runnable`: ready, without a CPU. `idle`: a kernel thread's wait that counts as no load (I). `stopped`:
by a signal, a tracer, or parked. `dead`: after its last switch, and before it was born. `unknown`: within a hole, or
never told."""

CPU_SLICES = pl.Schema(
    {
        "start_ns": _I,
        "end_ns": _I,
        # tid -1: nobody known had it
        "cpu": _N,
        "tid": _N,
        "prio": _N,
        # the state it left in, as in `switches`; "" while open at the end, "?" when its leaving was not told
        "end_state": _S,
        "open_start": _B,
        "open_end": _B,
        # a bound is not the switch itself but what else limits it (see `unseen` holes)
        "inexact": _B,
    }
)
THREAD_SLICES = pl.Schema(
    {
        "start_ns": _I,
        "end_ns": _I,
        "tid": _N,
        "state": _S,
        # running: on it; runnable: first queued on it, -1 when unknown; otherwise the one it left
        "cpu": _N,
        # a wait that ended, and the runnable slice after it: who woke it (-1: nobody seen, or an interrupt), and
        # when; 0 when not seen
        "waker_tid": _N,
        "waker_context": _S,
        "woken_ns": _I,
        # runnable: it was put off the CPU although it wanted to go on, and by whom (the next on that CPU; 0: nobody
        # else ran, so it was throttled); a sched_yield is no preemption, where system calls were traced
        "preempted": _B,
        "preemptor_tid": _N,
        # running: where it ran before, when that was another CPU, else -1
        "from_cpu": _N,
        "open_start": _B,
        "open_end": _B,
        # a bound was not told, so the state may be wrong near it
        "inexact": _B,
    }
)
INTERRUPT_SLICES = pl.Schema(
    {
        "start_ns": _I,
        "end_ns": _I,
        "cpu": _N,
        "tid": _N,
        "soft": _B,
        "vector": _N,
        "name": _S,
        # how many interrupts it is nested in, and its own time without those nested in it
        "depth": _N,
        "self_ns": _I,
        # its entry or exit was not told: only the part that is certain
        "open_start": _B,
        "open_end": _B,
    }
)


def cpu_slices(trace: SchedTrace) -> pl.DataFrame:
    """Who had each CPU, from switch to switch (`CPU_SLICES`), sorted by CPU and start; the idle thread too.

    Every traced CPU is covered over the whole span, without gap or overlap.
    """
    return _shape(lanes_cpu.fill_gaps(trace, lanes_cpu.tenures(trace).slices), CPU_SLICES)


def thread_slices(trace: SchedTrace) -> pl.DataFrame:
    """Return what each thread did over the whole span (`THREAD_SLICES`), sorted by thread and start, without gaps.

    Threads that some event tells of; never the idle threads. `running` slices are those of `cpu_slices`.
    """
    return _shape(lanes_threads.slices(trace, lanes_cpu.tenures(trace)), THREAD_SLICES)


def interrupt_slices(trace: SchedTrace) -> pl.DataFrame:
    """Interrupts and softirqs, nested (`INTERRUPT_SLICES`), sorted by CPU and start."""
    return _shape(lanes_interrupts.slices(trace), INTERRUPT_SLICES)


def _shape(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())
