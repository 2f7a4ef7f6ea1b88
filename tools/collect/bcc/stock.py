"""Stock BCC tools as ways to fill collectors: which, with what words, and what they cannot tell."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from typing import ClassVar, NoReturn

from whystall.tools.collect.bcc import known_faults
from whystall.tools.collect.bcc.child import failed
from whystall.tools.collect.bcc.parse import Seconds
from whystall.tools.collect.bcc.running import Running, no_kprobes
from whystall.tools.contract.commands import program
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

# What is told per second and began before the window by no more than this counts whole.
_EDGE_S = 0.1
UNTOLD = -1
# Counts of two readers are of two moments: as much as this may lie between them.
AGREE = 0.8
FEW = 20


class StockMethod:
    """A method that runs a stock BCC tool; one instance serves one window. See `methods.Method`."""

    collector: ClassVar[str]
    tools: ClassVar[tuple[str, ...]]
    kprobes: ClassVar[bool] = False
    late: ClassVar[bool] = False
    """Adds up from when it attached: to be started when all others are ready."""

    def __init__(self) -> None:
        self.serves = frozenset({self.collector})
        self._running: list[Running] = []
        self._ceased = False
        self._epoll: select.epoll | None = None
        self._wanted: Mapping[str, Options] = {}
        self._target = Target(everything=True)

    @property
    def name(self) -> str:
        """The tools' names, as they are installed here."""
        return " + ".join(os.path.basename(program(f"bcc.{tool}") or tool) for tool in self.tools)

    def unavailable(self, collector: str) -> str | None:
        """Not installed, known broken on this kernel, or no kprobes that it needs."""
        for tool in self.tools:
            path = program(f"bcc.{tool}")
            if path is None:
                return f"{tool} is not installed"
            if reason := known_faults.broken(tool, path, known_faults.kernel_of(os.uname().release)):
                return f"{tool}: {reason}"
        return no_kprobes() if self.kprobes else None

    @property
    def poor(self) -> bool:
        """Whether our own program tells more."""
        kernel = known_faults.kernel_of(os.uname().release)
        return any(known_faults.poor(tool, program(f"bcc.{tool}") or "", kernel) for tool in self.tools)

    def start(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Start the tools."""
        self._wanted, self._target = wanted, target
        try:
            self._spawn()
            self._epoll = select.epoll()
            for running in self._running:
                self._epoll.register(running.fileno(), select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def ready(self, deadline: float) -> None:
        """Wait for all."""
        try:
            for running in self._running:
                running.ready(deadline)
        except BaseException:
            self.close()
            raise

    def begin(self) -> int:
        """Forget what was before, and take the kernel's own counts."""
        since = time.monotonic_ns()
        for running in self._running:
            running.poll()
        self._begin(any(time.monotonic() - running.ready_at > _EDGE_S for running in self._running))
        return since

    def cease(self) -> None:
        """Take the kernel's own counts, and ask them to end."""
        if not self._ceased:
            self._ceased = True
            self._last_look()
            for running in self._running:
                running.poll()
                running.cease()

    def fileno(self) -> int | None:
        """Readable when one of them has said something."""
        return self._epoll.fileno() if self._epoll is not None else None

    def poll(self) -> None:
        """Take in what they have said."""
        for running in self._running:
            running.poll()

    def stop(self) -> dict[str, Capture]:
        """End them. What one has told before it went away is kept, and proves nothing."""
        self.cease()
        for running in self._running:
            running.stop()
        capture = self._capture()
        gone = [running.gone for running in self._running if running.gone]
        if gone or (self.kprobes and no_kprobes()):
            capture.proven = False
        capture.not_seen += [("cut_short", why) for why in gone]
        self.close()
        return {self.collector: capture}

    def close(self) -> None:
        """Kill them; idempotent."""
        for running in self._running:
            running.close()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _only_pid(self) -> int | None:
        """The one process of the target, or None for the whole host; `ToolError` for what none of them can follow."""
        if self._target.everything:
            return None
        if len(self._target.pids) == 1 and not self._target.follow:
            return self._target.pids[0]
        raise failed(f"{self.name} follows one process, or the whole host")

    def _refuse(self, why: str) -> NoReturn:
        raise failed(f"{self.name} {why}")

    def _spawn(self) -> None:
        raise NotImplementedError

    def _begin(self, skip_next: bool) -> None:
        raise NotImplementedError

    def _last_look(self) -> None:
        """The kernel's own counts, at the end."""

    def _capture(self) -> Capture:
        raise NotImplementedError


def late(name: str, *seconds: Seconds) -> list[tuple[str, str]]:
    """The blind spot of a second that had begun when the window did: it was left out."""
    longest = max(each.late_s for each in seconds)
    return [("first_second", f"{name}: {longest:.1f} s")] if longest else []


def odd(lines: int) -> list[tuple[str, str]]:
    """The blind spot of `lines` that nobody understands."""
    return [("odd_lines", str(lines))] if lines else []
