"""Whether a stall becomes a ticket, by its diagnosis. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from whystall.agent_server.watch.pauses import RUNNING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from whystall.agent_server.watch.progress import Stall
    from whystall.knowledge_base.models import Cause, Diagnosis

NS = 1_000_000_000
# A stall without a known cause is worth a ticket from this length on, and this many usual intervals.
_LONG_NS, _LONG_TIMES = 10 * NS, 20
# The recording is of the stall alone: its cause takes about all of it. Less is what the host is like at any time.
_SHARE_PCT = 40.0
NOT_OF_ONE_PAUSE = frozenset({"recurring_pause"})
"""Causes that name what a program does at regular distances, of which one pause is no example."""
# A host that is as busy as before is no stall: a cause that takes the CPU must do so three times as much.
_MORE_STARVED = 3.0
# On such a host, another cause is named only if the thread was blocked for longer than usual by this.
_UNUSUAL_NS = NS
# Causes that name what a thread ran.
_OF_RUNNING = frozenset({"garbage_collection", "own_hot_code"})
# The program's own code is worth a ticket only where a sign of progress was named that stays away for so long.
_OWN_WORK_NS = 60 * NS


@dataclass(frozen=True)
class Decision:
    """`usual`: pauses like this one are no stalls. `why`: a code."""

    action: Literal["ticket", "log"]
    why: Literal[
        "cause_found",
        "no_cause_but_long",
        "own_work_too_long",
        "no_fault",
        "own_work",
        "phase",
        "no_cause",
        "weak",
        "busy_as_usual",
    ]
    usual: bool = False


def decide(
    diagnosis: Diagnosis, cause: Cause | None, stall: Stall, now_ns: int, awaited: float | None = None
) -> Decision:
    """Return what to do about `stall`; `cause`: the one that `diagnosis` names; `now_ns`: CLOCK_MONOTONIC; `awaited`:
    how many times more than before lack of a CPU lengthened the work of the thread that it waits for, None: not known.

    The cause must take most of the stall; in a new phase of the program it must be confirmed.
    """
    from whystall.knowledge_base.models import Verdict

    if diagnosis.verdict.no_fault:
        return Decision("log", "no_fault", usual=True)
    named = cause is not None and diagnosis.verdict in (Verdict.CONFIRMED, Verdict.LIKELY)
    if named and cause is not None and not cause.ordinary:
        if cause.category == "cpu" and _lacks_as_usual(diagnosis, stall, now_ns, awaited):
            return Decision("log", "busy_as_usual", usual=awaited is None)
        if stall.phase and diagnosis.verdict is not Verdict.CONFIRMED:
            return Decision("log", "phase", usual=True)
        if stall.kind not in ("slowdown", "drift") and _share_pct(diagnosis, stall, now_ns) < _SHARE_PCT:
            return Decision("log", "weak")
        return Decision("ticket", "cause_found")
    if stall.phase:
        return Decision("log", "phase", usual=True)
    length = _length(stall, now_ns)
    if stall.kind == "signal" and named and length >= max(_OWN_WORK_NS, _LONG_TIMES * stall.usual_ns):
        return Decision("ticket", "own_work_too_long")
    idle = stall.ongoing or not _is_starved(stall, now_ns)  # one in progress is looked at only if its thread is blocked
    if (
        stall.kind in ("gap", "wait", "signal")
        and not named
        and idle
        and length >= max(_LONG_NS, _LONG_TIMES * stall.usual_ns)
    ):
        return Decision("ticket", "no_cause_but_long")
    # a pause in which the thread ran has no place of its own: another one may have another reason
    return Decision("log", "own_work" if named else "no_cause", usual=named and stall.place != RUNNING)


def not_explaining(stall: Stall, causes: Mapping[str, Cause]) -> frozenset[str]:
    """Return those of `causes` that cannot explain `stall` of a thread that lacked a CPU as much before it: those that
    take the CPU; and those of waits too, if it was not blocked for longer than usual."""
    if stall.starved >= _MORE_STARVED:
        return frozenset()
    if stall.unusual_ns >= _UNUSUAL_NS:
        return frozenset(cause.id for cause in causes.values() if cause.category == "cpu")
    return frozenset(causes) - _OF_RUNNING


def _lacks_as_usual(diagnosis: Diagnosis, stall: Stall, now_ns: int, awaited: float | None) -> bool:
    """Return whether a cause that takes the CPU takes hardly more of it than usual: the thread lacks it as usual, and
    the threads for which it waits do not lack it for most of the rest, or as usual."""
    if stall.starved >= _MORE_STARVED:
        return False
    if awaited is not None and awaited < _MORE_STARVED:
        return True
    busy = stall.runnable_ns / max(_length(stall, now_ns), 1)
    beyond = (_window_pct(diagnosis) - 100.0 * busy) / max(1.0 - busy, 0.1)
    return _is_starved(stall, now_ns) or beyond < _SHARE_PCT


def _window_pct(diagnosis: Diagnosis) -> float:
    return next((one.window_pct for one in diagnosis.assessments if one.cause == diagnosis.cause), 0.0)


def _share_pct(diagnosis: Diagnosis, stall: Stall, now_ns: int) -> float:
    """Return which share the named cause takes of the stall, without the part for which the thread waits for a CPU as
    it usually does."""
    busy = stall.runnable_ns / max(_length(stall, now_ns), 1) if stall.starved < _MORE_STARVED else 0.0
    return min(100.0, _window_pct(diagnosis) / max(1.0 - busy, 0.1))


def _length(stall: Stall, now_ns: int) -> int:
    return (stall.end_ns or now_ns) - stall.start_ns


def _is_starved(stall: Stall, now_ns: int) -> bool:
    """Return whether it did not block for most of the stall, but ran, or could have."""
    return stall.waited_ns - stall.runnable_ns < _length(stall, now_ns) / 2
