"""Build lanes from events: the thread on each CPU, the states and waits of each thread, its interrupts.

Instants and unknowns follow `whystall.tools.timeline.sched`. Missing events are handled so:

* Every switch on a CPU, and every event in a thread's context, states which thread is on it. Where two successive
  statements disagree, a switch between them is missing (a *broken chain*). The later thread is assumed to have arrived
  as early as the statements allow: at its `prev_arrived_ns` if the scheduler accounted it, else at the last statement
  about its predecessor, but not before it was woken and not before the last event that shows it on another CPU. Both
  slices are `inexact`; the predecessor is `unknown` from then on until its next event.
* Within a hole that the tracer reports (`holes`, any `why` but ``unseen``) the CPU's thread is unknown (-1), and a
  thread is `unknown` unless another CPU shows that it ran there. Holes ``unseen`` are not used: the broken chains
  behind them are found from the events.
* A wait is `inexact` when the event that ends it is missing: no waker, or only half of the wake-up. So is a wait for a
  CPU in whose queue a broken chain falls. Where events mention a CPU that was not traced, so are all waits of threads
  that were there, and the last wait of every thread.
* A thread that repeatedly leaves its CPU without an event, or is woken twice without having run, may run unrecorded at
  any time: its waits are not trusted. Where it surely ran unrecorded, it is `unknown` until its next event. (Once in a
  thousand times is an accident, and only that wait is not known.)
* CPUs whose clocks differ a little may record a wake-up on the wrong side of a switch: `SKEW_NS`.

Two lost switches without a mark, away from a thread and straight back to it, cannot be detected.
"""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.lanes import cpu as lanes_cpu
from whystall.tools.timeline.lanes import interrupts as lanes_interrupts
from whystall.tools.timeline.lanes import threads as lanes_threads
from whystall.tools.timeline.sched import SchedTrace

_I, _N, _S, _B = pl.Int64, pl.Int32, pl.String, pl.Boolean

STATES = ("running", "runnable", "sleeping", "uninterruptible", "stopped", "idle", "dead", "unknown")
"""States of a thread. `runnable`: ready, without a CPU. `idle`: a kernel thread's wait that counts as no load (I).
`stopped`: by a signal, a tracer, or parked. `dead`: after its last switch, and before its birth. `unknown`: within a
hole, or without any event."""

CPU_SLICES = pl.Schema(
    {
        "start_ns": _I,
        "end_ns": _I,
        # tid -1: the thread is unknown
        "cpu": _N,
        "tid": _N,
        "prio": _N,
        # the state it left in, as in `switches`; "" while open at the end, "?" when that event is missing
        "end_state": _S,
        "open_start": _B,
        "open_end": _B,
        # a bound is not the switch itself but what else limits it (see above)
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
        # a wait that ended, and the runnable slice after it: its waker (-1: unknown, or an interrupt), and when; 0 when
        # not recorded
        "waker_tid": _N,
        "waker_context": _S,
        "woken_ns": _I,
        # runnable: it was preempted, and by which thread (the next on that CPU; 0: none, so it was throttled); a
        # sched_yield is no preemption, where system calls were traced
        "preempted": _B,
        "preemptor_tid": _N,
        # running: the CPU it ran on before, if another one, else -1
        "from_cpu": _N,
        "open_start": _B,
        "open_end": _B,
        # the event at a bound is missing, so the state may be wrong near it
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
        # number of interrupts it is nested in, and its own time without those nested in it
        "depth": _N,
        "self_ns": _I,
        # its entry or exit is missing: only the certain part
        "open_start": _B,
        "open_end": _B,
    }
)


def cpu_slices(trace: SchedTrace) -> pl.DataFrame:
    """Return the threads on each CPU, from switch to switch (`CPU_SLICES`), sorted by CPU and start; the idle thread
    too.

    Every traced CPU is covered over the whole span, without gap or overlap.
    """
    return _shape(lanes_cpu.fill_gaps(trace, lanes_cpu.tenures(trace).slices), CPU_SLICES)


def thread_slices(trace: SchedTrace) -> pl.DataFrame:
    """Return the states of each thread over the whole span (`THREAD_SLICES`), sorted by thread and start, without gaps.

    Only threads with an event; never the idle threads. `running` slices are those of `cpu_slices`.
    """
    return _shape(lanes_threads.slices(trace, lanes_cpu.tenures(trace)), THREAD_SLICES)


def interrupt_slices(trace: SchedTrace) -> pl.DataFrame:
    """Return interrupts and softirqs, nested (`INTERRUPT_SLICES`), sorted by CPU and start."""
    return _shape(lanes_interrupts.slices(trace), INTERRUPT_SLICES)


def _shape(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())
