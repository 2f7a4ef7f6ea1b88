"""Tell a job whose threads all wait for each other from one that waits for something from outside. Pure."""

from __future__ import annotations

from whystall.tools.host.common.held import ENDED
from whystall.tools.host.common.timelines import Timeline
from whystall.tools.host.critical_path.rows import Row
from whystall.tools.host.critical_path.world import World

# Waits that only threads of the job end. A pipe without a name does too if all its other ends are in the job.
_WITHIN = frozenset({"queue", "queue_full", "lock", "join", "barrier", "child"})
_PIPES = frozenset({"pipe", "pipe_full"})
_OWN = ("pipe:[", "anon_inode:[eventfd:")
# Share of the window from which on a wait lasted all along.
_ALL_ALONG = 0.95


def explain_standstill(world: World, rows: list[Row], *, hangs: bool) -> None:
    """Set `standstill` of the rows of waits that have lasted all along, if no thread of the job will go on. A loop that
    waits for events counts only if the job is reported to hang: one that runs until a signal ends it is idle."""
    waits = [row for row in rows if row.open_ns >= _ALL_ALONG * world.window_ns and (hangs or row.code != "events")]
    stands = bool(waits) and at_standstill(world)
    for row in waits:
        row.standstill = stands


def at_standstill(world: World) -> bool:
    """Return whether every thread of the job has been all along in one wait without a time-out, which only another
    thread of the job can end, or has ended: then none of them will go on. An event loop is in such a wait if it polls
    for nothing but what wakes it up from within the job.

    False if a thread was not observed, or if what it waits for is not known.
    """
    known = {tid for tid, row in world.objects.threads.items() if row["pid"] in world.target}
    lines = [line for line in world.lines.values() if line.pid in world.target and not world.is_kernel(line)]
    return bool(lines) and known <= {line.tid for line in lines} and all(_waits_within(world, one) for one in lines)


def _waits_within(world: World, line: Timeline) -> bool:
    if line.waits and line.waits[0].state == ENDED:
        return True
    row = world.objects.threads.get(line.tid)
    wait = line.waits[-1] if line.waits else None
    if row is None or wait is None or not wait.open or row["limited"] != 0:
        return False
    if wait.end_ns - wait.start_ns < _ALL_ALONG * world.window_ns:
        return False
    kind = world.kind(line, wait)
    if kind.code in _WITHIN:
        return True
    if kind.code == "events":
        members = world.objects.members.get(line.tid, [])
        return bool(members) and all(_only_within(world, name) for name in members)
    ends = world.objects.writers if kind.code == "pipe" else world.objects.readers
    name = wait.object or row["object"]
    # a FIFO can be opened by anybody
    return kind.code in _PIPES and name.startswith("pipe:") and set(ends(name, line.pid)) <= world.target


def _only_within(world: World, name: str) -> bool:
    """Return whether only processes of the job can make a member of an epoll set ready: both ends of a socket, or all
    writers of a pipe or eventfd, are theirs. Timers, signals and connections come from outside."""
    socket = world.objects.socket(name)
    if socket is not None:
        peer = world.objects.peer(name)
        return socket["state"] == "established" and peer is not None and peer["pid"] in world.target
    writers = {end["pid"] for end in world.objects.ends.get(name, ()) if end["writes"]}
    return bool(writers) and writers <= world.target and name.startswith(_OWN)
