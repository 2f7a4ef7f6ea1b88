"""Name the failing calls between which a thread sleeps: a loop that tries again after each failure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whystall.tools.host.common.failed_calls import FailureRow, is_held_lock
from whystall.tools.host.common.path_codes import RETRY
from whystall.tools.host.critical_path.looks import PAUSES
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.walk import World

# A loop of retries sleeps about once per failure.
_LEAST_FAILURES, _LEAST_SHARE = 3, 0.5


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
