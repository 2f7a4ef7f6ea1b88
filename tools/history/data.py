"""What `history` returns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.tools.contract.result import Model
from whystall.tools.history.path_data import PathDifference

Direction = Literal["grew", "shrank", "appeared", "vanished"]
WATCHED = "watched jobs"
"""`Coverage.target` of a history of all jobs."""
_BARS = "_▁▂▃▄▅▆▇█"


class WaitPlace(Model):
    """What threads waited for, or ran. `job`: empty if unknown; `comm`: name of the threads, digits as ``*``; `main`:
    the main threads of their processes; `state`: D (uninterruptible), S, R (without a CPU), other, or ``running``: on a
    CPU, by samples; `line`: of the program; `object`: file, peer of a socket, or lock; `ended_by`: who ended most of
    the time of those waits that ended: ``thread NAME`` of the same process, ``process NAME``, or timer, block, network,
    signal, interrupt. Texts are empty if unknown."""

    job: str
    comm: str
    main: bool
    state: str
    call: str
    line: str
    object: str
    ended_by: str


class HistoryPlace(WaitPlace):
    """Waits in one place, or CPU time (`waited_s` then). `count`: of waits that ended; `parts_s`: seconds in each part
    of the span, oldest first; `before_s`: in the baseline, scaled to the recorded time of the span; None: not asked
    for, or nothing was recorded then. `pids`: of the first processes. `idle`: the threads waited all the time, and no
    wait ended."""

    waited_s: float
    count: int
    longest_ms: float
    parts_s: list[float]
    before_s: float | None = None
    pids: list[int] = Field(default_factory=list)
    idle: bool = False

    @property
    def bars(self) -> str:
        """Return `parts_s` as one character each, relative to the most."""
        most = max(self.parts_s, default=0.0)
        steps = [round(seconds / most * (len(_BARS) - 1)) if most else 0 for seconds in self.parts_s]
        return "".join(_BARS[step] for step in steps)


class WaitChange(WaitPlace):
    """A row that changed: from the baseline to the span, or in a stretch of the span (`since` to `until`) against the
    rest of it. `before`, `after`: seconds of waiting of all its threads per second; `low` to `high`: 95 % interval of
    their difference; `p_value`; `q_value`: adjusted for all rows that were tested."""

    direction: Direction
    since: str
    until: str
    before: float
    after: float
    low: float
    high: float
    p_value: float
    q_value: float
    pids: list[int] = Field(default_factory=list)


class HistoryData(Model):
    """What the threads of watched jobs waited for, and ran. `minutes`, `minutes_before`: recorded in the span and in
    the baseline; `waited_s`: of all waits but idle ones, `idle_s`: of these; `ran_s`: CPU time, None if it is not
    known. `tested`: rows tested for a change, None: the span is too short for it. `jobs`: names of those in the span.
    `recorded_s`: seconds recorded in each part of it."""

    since: str
    until: str
    baseline_since: str = ""
    baseline_until: str = ""
    minutes: float
    minutes_before: float = 0.0
    waited_s: float
    idle_s: float
    jobs: list[str]
    recorded_s: list[float] = Field(default_factory=list)
    rows: list[HistoryPlace] = Field(default_factory=list)
    left_out: int = 0
    ran_s: float | None = None
    running: list[HistoryPlace] = Field(default_factory=list)
    running_left_out: int = 0
    changes: list[WaitChange] = Field(default_factory=list)
    changes_left_out: int = 0
    tested: int | None = None
    path: PathDifference | None = None
