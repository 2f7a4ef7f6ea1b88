"""Which line of the program a thread ran in a stall, and how much of the time before."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from whystall.agent_server.watch.requests import Request
from whystall.agent_server.watch.rhythm import NS
from whystall.tools.contract.errors import ToolError
from whystall.tools.recording.store import Recording

_BEFORE_NS = 30 * NS


class OwnWork(NamedTuple):
    """The line that a thread ran for the largest part of a stall: ``build_index (data.py:30)``; its share of the stall,
    and of the 30 s before, percent; None: not known."""

    line: str
    share_pct: float
    before_pct: float | None


def own_work(request: Request, stalled: Recording) -> OwnWork | None:
    """Return what the thread of `request` ran in the recording `stalled`; None if it did not run."""
    from whystall.tools.collect.continuous import recording_from

    ran = _running(stalled, request.stall.tid)
    if not ran:
        return None
    line, share = max(ran.items(), key=lambda each: each[1])
    if not request.slices:
        return OwnWork(line, share, None)
    start = request.stall.start_ns
    try:
        before = recording_from(Path(request.slices), max(0, start - _BEFORE_NS), start, frozenset(request.pids))
    except ToolError:
        return OwnWork(line, share, None)
    return OwnWork(line, share, _running(before, request.stall.tid).get(line, 0.0))


def _running(recording: Recording, tid: int) -> dict[str, float]:
    """Return the share of the window, percent, that a thread ran each line."""
    from whystall.tools.host.critical_path.tool import Params, judge

    shares: dict[str, float] = {}
    for row in judge(recording, Params(tid=tid, top=50)).data.rows:
        if row.what == "running":
            shares[row.line] = shares.get(row.line, 0.0) + row.window_pct
    return shares
