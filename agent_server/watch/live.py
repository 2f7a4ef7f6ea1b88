"""Follow jobs for as long as somebody looks: one recorder in memory, and what each process waits for now."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from whystall.agent_server.watch.jobs import JobList, Selection, WatchedJob
from whystall.agent_server.watch.now import NS, Now, RecentWaits
from whystall.tools.collect.continuous import MOST_RECORDED, ContinuousRecorder
from whystall.tools.collect.continuous_budget import Limits
from whystall.tools.recording.target import Target

_LOOKS = 10  # over which the cost is measured
_LIMITS = Limits(cpu_share=0.02, log_bytes=8 << 20, slice_ns=NS)


class LiveJobs:
    """Attached from ``__enter__`` to ``__exit__``; call `look` about each second.

    `jobs`: the followed jobs; `now`: by process; `cost`: share of one core of the last looks; `seen_s`: for how long
    the jobs have been observed. Raises `ToolError` if nothing can be recorded.
    """

    def __init__(self, selection: Selection) -> None:
        self._list = JobList(selection, min_age_s=0.0)
        self._recorder = ContinuousRecorder(Target(everything=False), _LIMITS, None)
        self._waits = RecentWaits(self._recorder.call_and_line)
        self._began = 0.0
        self._spent: deque[tuple[float, float]] = deque(maxlen=_LOOKS)  # instant, CPU time of this process
        self.now: dict[int, Now] = {}

    def __enter__(self) -> LiveJobs:
        self._recorder.start()
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.close()

    @property
    def jobs(self) -> list[WatchedJob]:
        return self._list.jobs

    @property
    def seen_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def cost(self) -> float:
        """The CPU time of this process, with drawing, and of the programs in the kernel."""
        (since, before), (until, after) = self._spent[0], self._spent[-1]
        return (after - before) / max(until - since, 1.0) + self._recorder.cost().kernel_share

    def look(self) -> None:
        """Read what has ended since the last call, and renew `now`. Raises `ToolError`."""
        self._spent.append((time.monotonic(), time.process_time()))
        if self._list.renew(time.monotonic()):
            leaders = [pid for job in self.jobs for pid in job.leaders]
            self._waits.follow(leaders)
            others = {pid for job in self.jobs for pid in job.pids} - set(leaders)
            self._recorder.retarget(frozenset([*leaders, *others][:MOST_RECORDED]))
        waits, at = self._recorder.poll(), time.monotonic_ns()
        self._waits.feed(waits, at)
        found = (
            (pid, self._waits.of(pid, self._recorder.in_progress(), at)) for job in self.jobs for pid in job.leaders
        )
        self.now = {pid: now for pid, now in found if now is not None}
