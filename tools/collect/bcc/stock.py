"""The base class of methods that run a stock BCC tool."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from typing import ClassVar, NoReturn

from whystall.tools.collect.bcc import known_faults
from whystall.tools.collect.bcc.child import failed
from whystall.tools.collect.bcc.parse import PerSecond
from whystall.tools.collect.bcc.running import Running, no_kprobes
from whystall.tools.contract.commands import program
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

# A second of output that began before the window by no more than this counts whole.
_EDGE_S = 0.1
UNKNOWN = -1
# Two counts of the same events agree if the smaller one is at least AGREE of the other less FEW: they are not read at
# the same instant.
AGREE = 0.8
FEW = 20


class StockMethod:
    """A `methods.Method` that runs one or two stock BCC tools."""

    collector: ClassVar[str]
    tools: ClassVar[tuple[str, ...]]
    kprobes: ClassVar[bool] = False
    loads_last: ClassVar[bool] = False

    def __init__(self) -> None:
        self.serves = frozenset({self.collector})
        self._running: list[Running] = []
        self._stopped = False
        self._epoll: select.epoll | None = None
        self._wanted: Mapping[str, Options] = {}
        self._target = Target(everything=True)

    @property
    def name(self) -> str:
        """The tools' file names as installed here."""
        return " + ".join(os.path.basename(program(f"bcc.{tool}") or tool) for tool in self.tools)

    def unavailable(self, collector: str) -> str | None:
        """Return that a tool is not installed or known broken on this kernel, or that kprobes do not work."""
        for tool in self.tools:
            path = program(f"bcc.{tool}")
            if path is None:
                return f"{tool} is not installed"
            if reason := known_faults.broken(tool, path, known_faults.kernel_of(os.uname().release)):
                return f"{tool}: {reason}"
        return no_kprobes() if self.kprobes else None

    @property
    def limited(self) -> bool:
        """Whether our own program reports more."""
        kernel = known_faults.kernel_of(os.uname().release)
        return any(known_faults.limited(tool, program(f"bcc.{tool}") or "", kernel) for tool in self.tools)

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Start the tools, of which each compiles its program."""
        self._wanted, self._target = wanted, target
        try:
            self._spawn()
            self._epoll = select.epoll()
            for running in self._running:
                self._epoll.register(running.fileno(), select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def wait_loaded(self, deadline: float) -> None:
        """Wait until all tools have attached."""
        try:
            for running in self._running:
                running.wait_ready(deadline)
        except BaseException:
            self.close()
            raise

    def start(self) -> int:
        """Drop the output so far, and read the kernel's own counts."""
        since = time.monotonic_ns()
        for running in self._running:
            running.poll()
        self._start(any(time.monotonic() - running.ready_at > _EDGE_S for running in self._running))
        return since

    def stop(self) -> None:
        """Read the kernel's own counts again, and ask the tools to end."""
        if not self._stopped:
            self._stopped = True
            self._read_final_counts()
            for running in self._running:
                running.poll()
                running.stop()

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when a tool has written something."""
        return self._epoll.fileno() if self._epoll is not None else None

    def poll(self) -> None:
        """Read the tools' output."""
        for running in self._running:
            running.poll()

    def read(self) -> dict[str, Capture]:
        """End the tools. The output of one that ended too early is kept, but not proven."""
        self.stop()
        for running in self._running:
            running.finish()
        capture = self._capture()
        ended_early = [running.ended_early for running in self._running if running.ended_early]
        if ended_early or (self.kprobes and no_kprobes()):
            capture.proven = False
        capture.not_seen += [("cut_short", why) for why in ended_early]
        self.close()
        return {self.collector: capture}

    def close(self) -> None:
        """Kill the tools."""
        for running in self._running:
            running.close()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _only_pid(self) -> int | None:
        """Return the one process of the target, or None for the whole host; raise `ToolError` for other targets."""
        if self._target.everything:
            return None
        if len(self._target.pids) == 1 and not self._target.follow:
            return self._target.pids[0]
        raise failed(f"{self.name} follows one process, or the whole host")

    def _refuse(self, why: str) -> NoReturn:
        raise failed(f"{self.name} {why}")

    def _spawn(self) -> None:
        raise NotImplementedError

    def _start(self, skip_next: bool) -> None:
        raise NotImplementedError

    def _read_final_counts(self) -> None:
        """Read the kernel's own counts at the end of the window."""

    def _capture(self) -> Capture:
        raise NotImplementedError


def skipped_second(name: str, *seconds: PerSecond) -> list[tuple[str, str]]:
    """Return the blind spot of a second that began before the window and was left out."""
    longest = max(each.skipped_s for each in seconds)
    return [("first_second", f"{name}: {longest:.1f} s")] if longest else []


def unparsed_lines(lines: int) -> list[tuple[str, str]]:
    """Return the blind spot of the number of `lines` that could not be parsed."""
    return [("odd_lines", str(lines))] if lines else []
