"""Whether a thread that a stalled one waits for lacked a CPU more than before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.agent_server.watch.requests import Request
from whystall.agent_server.watch.rhythm import NS
from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from whystall.knowledge_base.models import Diagnosis
    from whystall.tools.recording.store import Recording

_BEFORE_NS = 30 * NS
# A thread that ran for less before is not known well enough to compare.
_LEAST_NS = NS // 10
_MOST_STRETCH = 1000


def awaited_starved(request: Request, stalled: Recording, diagnosis: Diagnosis) -> float | None:
    """Return how many times more than in the 30 s before the stall of `request` lack of a CPU lengthened the work of
    the thread that waits for one in `diagnosis`, made of the recording `stalled`. None: no other thread does, or it is
    not known."""
    from whystall.tools.collect.continuous import recording_from

    waiting = (f for f in diagnosis.findings if f.kind == "path.waker" and f.attributes.get("wait") == "cpu")
    tid = next((f.subject.tid for f in waiting if f.id in diagnosis.chain), None)
    if tid is None or not request.slices:
        return None
    start = request.stall.start_ns
    try:
        before = recording_from(Path(request.slices), max(0, start - _BEFORE_NS), start, frozenset(request.pids))
    except ToolError:
        return None
    usual, now = stretch(before, tid), stretch(stalled, tid)
    return None if usual is None or now is None else now / usual


def stretch(recording: Recording, tid: int) -> float | None:
    """Return by how much lack of a CPU lengthened the work of a thread: 2 if it waited for one as long as it ran. None
    if it did hardly any."""
    from whystall.tools.host.critical_path.worlds import world_of

    line = world_of(recording).lines.get(tid)
    if line is None:
        return None
    ready = sum(wait.end_ns - wait.awake_ns for wait in line.waits)
    active = line.running_ns + ready
    return active / max(line.running_ns, active // _MOST_STRETCH) if active >= _LEAST_NS else None
