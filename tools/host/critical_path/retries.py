"""Name the failing calls that a thread tries again after each failure, asleep in between or not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whystall.tools.host.common.failed_calls import FailureRow, is_fault, is_held_lock
from whystall.tools.host.common.path_codes import RETRY, RUNNING, SPIN
from whystall.tools.host.critical_path.looks import PAUSES, Calls
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.world import World

# A loop of retries sleeps about once per failure.
_LEAST_FAILURES, _LEAST_SHARE = 3, 0.5
# A loop without sleeps does nothing else if it runs for less than this per failure, ns.
_BUSY_NS = 1_000_000
_PROGRAM = ("user", "system")


def explain_retries(
    world: World, rows: list[Row], tid: int, failures: Sequence[FailureRow], comms: Mapping[int, str]
) -> None:
    """Fill in, for rows of sleeps of thread `tid`, the call that fails about as often: its name and error in `detail`,
    its file or peer, and, for a lock of a file, the process that holds it.

    `failures`: the failing calls of all threads; `comms`: names of processes. Nothing is filled in for a row with more
    than twice as many sleeps as failures.
    """
    own = [one for one in failures if one.tid == tid and one.count >= _LEAST_FAILURES]
    for row in rows:
        able = [one for one in own if one.count >= _LEAST_SHARE * row.count]
        if row.code not in PAUSES or not able:
            continue
        failure = max(able, key=lambda one: (is_held_lock(one), one.count))
        row.detail = f"{RETRY} {failure.syscall} {failure.error}"
        if failure.path or failure.object:
            row.objects[failure.path or world.objects.name(failure.object)] += row.total_ns
        if is_held_lock(failure) and (pid := world.objects.holder_of_file(failure.dev, failure.ino, failure.pid)):
            row.by[pid, comms.get(pid, "")] += row.total_ns


def explain_busy_retries(rows: list[Row], tid: int, failures: Sequence[FailureRow], calls: Calls | None) -> None:
    """Let what thread `tid` runs in a function that makes a failing call again and again be spinning, with the call and
    its error in `detail`.

    That holds if most calls of this name fail, and the thread runs for less than `_BUSY_NS` per failure in all.
    """
    running = [row for row in rows if row.code == RUNNING and row.mode in _PROGRAM]
    ran = sum(row.total_ns for row in running)
    often = [one for one in failures if one.tid == tid and is_fault(one) and one.count * _BUSY_NS >= ran]
    able = [one for one in often if calls is not None and one.count >= _LEAST_SHARE * calls.count[one.syscall]]
    if not able or ran == 0:
        return
    failure = max(able, key=lambda one: one.count)
    loop = {row.place.function for row in running if row.mode == "system" and row.detail == failure.syscall}
    for row in running:
        if row.place.function in loop:
            row.mode, row.detail = SPIN, f"{RETRY} {failure.syscall} {failure.error}"
