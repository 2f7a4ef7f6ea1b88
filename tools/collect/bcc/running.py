"""One running stock BCC tool: wait until it has attached, read its lines, end it."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path

from whystall.tools.collect.bcc.child import Child, failed
from whystall.tools.contract.commands import Value, argv
from whystall.tools.contract.errors import ToolError

END_S = 30.0
"""Time a tool may take to print its results: it resolves the symbols of stacks only then."""
_TICK_S = 0.5


class Running:
    """One stock tool. `feed` gets the lines it prints after the one that contains `ready_word`.

    `ready_at`: when that line came (time.monotonic()). `ended_early`: why it ended before the window did, or empty.
    """

    def __init__(self, tool: str, ready_word: str, feed: Callable[[str], None], **values: Value) -> None:
        """Start it with the options `values`; raise `ToolError` on failure."""
        try:
            words = argv(f"bcc.{tool}", **values)
        except (FileNotFoundError, ValueError) as error:
            raise failed(f"{tool}: {error}") from None
        self.tool, self.ready_at, self.ended_early = tool, 0.0, ""
        self._word, self._feed = ready_word, feed
        self._child = Child(words)

    @property
    def name(self) -> str:
        """The program's file name."""
        return self._child.name

    def wait_ready(self, deadline: float) -> None:
        """Wait for the line printed once everything is attached; raise `ToolError` if it does not come."""
        waiting = select.poll()
        waiting.register(self._child.fileno(), select.POLLIN)
        while not self.ready_at:
            left = deadline - time.monotonic()
            if left <= 0:
                self.close()
                raise failed(f"{self.name} was not ready in time")
            waiting.poll(min(left, _TICK_S) * 1000)
            ended = self._child.ended
            self._take()
            if ended is not None and not self.ready_at:
                raise self._exit_error(ended)

    def poll(self) -> None:
        """Read its output."""
        ended = self._child.ended
        self._take()
        if not self.ended_early and (self._child.cut or ended is not None):
            self.ended_early = f"{self.name} {self._child.cut or self._exit_text(ended)}"

    def stop(self) -> None:
        """Ask it to end, without waiting."""
        self._child.interrupt()

    def finish(self) -> None:
        """End it, and read the rest of its output."""
        for line in self._child.finish(END_S):
            self._feed(line)
        if self._child.cut and not self.ended_early:
            self.ended_early = f"{self.name} {self._child.cut}"

    def fileno(self) -> int:
        """Return a descriptor that is readable when it has written something."""
        return self._child.fileno()

    def close(self) -> None:
        """Kill it; idempotent."""
        self._child.close()

    def _take(self) -> None:
        for line in self._child.lines():
            if self.ready_at:
                self._feed(line)
            elif self._word in line:
                self.ready_at = time.monotonic()

    def _exit_error(self, status: int) -> ToolError:
        self.close()
        return failed(f"{self.name} {self._exit_text(status)}")

    def _exit_text(self, status: int | None) -> str:
        error = self._child.error()
        return f"ended by itself with status {status}" + (f": {error}" if error else "")


def no_kprobes(root: Path = Path("/")) -> str | None:
    """Return why kprobes do not fire on this host; None if they do, or if that is unknown.

    Only the debug file system shows whether they are armed. Without it, an independent count must agree.
    """
    if not any(
        (root / place).exists() for place in ("sys/bus/event_source/devices/kprobe", "sys/kernel/tracing/kprobe_events")
    ):
        return "the kernel has no kprobes"
    try:
        armed = (root / "sys/kernel/debug/kprobes/enabled").read_text().strip()
    except OSError:
        return None
    return "kprobes are disarmed (echo 1 > /sys/kernel/debug/kprobes/enabled)" if armed == "0" else None
