"""A stock tool while it runs: until it has attached, while it tells, and until it has ended."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path

from whystall.tools.collect.bcc.child import Child, failed
from whystall.tools.contract.commands import Value, argv
from whystall.tools.contract.errors import ToolError

END_S = 30.0
"""How long a tool may take to print what it has: stacks are named only then."""
_TICK_S = 0.5


class Running:
    """One stock tool. `feed` gets the lines it prints after the one that holds `ready_word`.

    `ready_at`: when that came (time.monotonic()). `gone`: why it did not go on to the end of the window.
    """

    def __init__(self, tool: str, ready_word: str, feed: Callable[[str], None], **values: Value) -> None:
        """Start it; `ToolError` where that fails."""
        try:
            words = argv(f"bcc.{tool}", **values)
        except (FileNotFoundError, ValueError) as error:
            raise failed(f"{tool}: {error}") from None
        self.tool, self.ready_at, self.gone = tool, 0.0, ""
        self._word, self._feed = ready_word, feed
        self._child = Child(words)

    @property
    def name(self) -> str:
        """The program's file name."""
        return self._child.name

    def ready(self, deadline: float) -> None:
        """Wait for the line that says that everything is attached; `ToolError` when it does not come."""
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
                raise self._ended(ended)

    def poll(self) -> None:
        """Take in what it has said."""
        ended = self._child.ended
        self._take()
        if not self.gone and (self._child.cut or ended is not None):
            self.gone = f"{self.name} {self._child.cut or self._told(ended)}"

    def cease(self) -> None:
        """Ask it to end, as ^C does."""
        self._child.ask()

    def stop(self) -> None:
        """Have it end, and take in the rest."""
        for line in self._child.interrupt(END_S):
            self._feed(line)
        if self._child.cut and not self.gone:
            self.gone = f"{self.name} {self._child.cut}"

    def said(self) -> str:
        """What it said last on its standard error."""
        return self._child.why()

    def fileno(self) -> int:
        """Readable when it has said something."""
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

    def _ended(self, status: int) -> ToolError:
        self.close()
        return failed(f"{self.name} {self._told(status)}")

    def _told(self, status: int | None) -> str:
        why = self._child.why()
        return f"ended by itself with status {status}" + (f": {why}" if why else "")


def no_kprobes(root: Path = Path("/")) -> str | None:
    """Why kprobes see nothing on this host; None where they do, or nobody says.

    Without the debug file system it is not told whether they are armed: an independent count then has to agree.
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
