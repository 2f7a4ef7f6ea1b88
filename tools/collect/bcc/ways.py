"""What the ``bcc`` engine asks of a way to fill a collector: a stock tool of BCC, or a program of our own."""

from __future__ import annotations

from typing import Protocol

from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

READY_S = 120.0
"""BCC compiles when it starts: half a second on a server, tens of seconds in an emulated machine."""


class Way(Protocol):
    """One way to fill one collector, for one window; a child process does the work.

    The engine starts the chosen ways of all wanted collectors, waits for each of them to be `ready`, then tells all to
    `begin`. A way whose child dies, hangs or prints what nobody understands raises `ToolError` from `ready`, `poll` or
    `stop`, never returns an empty capture that looks like quiet; what it cannot tell is in the capture's `not_seen`.
    """

    collector: str
    name: str
    """Shown to people, as in ``biolatency-bpfcc`` or ``own program``."""

    def unavailable(self, options: Options, target: Target) -> str | None:
        """Why this way cannot serve these here, in a few words; None if it can. Cheap: starts nothing."""

    def start(self, options: Options, target: Target) -> None:
        """Start the child and return at once; `ToolError` where it cannot be started."""

    def ready(self, deadline: float) -> None:
        """Wait until everything is attached, at most until `deadline` (time.monotonic()); `ToolError` if it fails."""

    def begin(self) -> None:
        """All ways of the window are ready: what happened before now does not count. Causes events of its own that
        prove the hooks alive, where it can."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when the child has said something, or None."""

    def poll(self) -> None:
        """Take in what the child has said; never blocks."""

    def stop(self) -> Capture:
        """Have the child end and take in the rest, in bounded time. `proven` only if an event of our own was seen, or
        the kernel's own count agrees."""

    def close(self) -> None:
        """Nothing of it runs afterwards; at any time, more than once."""
