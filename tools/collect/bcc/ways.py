"""What the ``bcc`` engine asks of a way to fill collectors: a stock tool of BCC, or a program of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

READY_S = 240.0
"""BCC compiles when it starts: half a second on a server, minutes in an emulated machine."""


class Way(Protocol):
    """One way to fill collectors, for one window; child processes do the work.

    The engine starts the chosen ways of all wanted collectors, waits for each to be `ready`, then tells all to `begin`.
    A way whose child dies, hangs or prints what nobody understands raises `ToolError` from `ready`, `poll` or `stop`,
    never returns an empty capture that looks like quiet; what it cannot tell is in the capture's `not_seen`.
    """

    @property
    def name(self) -> str:
        """Shown to people, as in ``biolatency-bpfcc`` or ``own program``."""

    @property
    def serves(self) -> frozenset[str]:
        """The collectors it can fill."""

    @property
    def late(self) -> bool:
        """Whether it adds up from when it attached, and is to be started when all others are ready."""

    def unavailable(self, collector: str) -> str | None:
        """Why this way cannot fill `collector` here, in a few words; None if it can. Cheap: starts nothing."""

    def start(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Start what fills the `wanted` collectors and return at once; `ToolError` where it cannot be started."""

    def ready(self, deadline: float) -> None:
        """Wait until everything is attached, at most until `deadline` (time.monotonic()); `ToolError` if it fails."""

    def begin(self) -> int:
        """All ways of the window are ready: what happened before now does not count. Causes events of its own that
        prove the hooks alive, where it can. Returned is the instant, in ns of the monotonic clock."""

    def cease(self) -> None:
        """The window is over: what happens from now on does not count. Does not wait."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when there is something to take in, or None."""

    def poll(self) -> None:
        """Take in what was said; never blocks."""

    def stop(self) -> dict[str, Capture]:
        """End it and take in the rest, in bounded time. A capture is `proven` only if an event of our own was seen, or
        the kernel's own count agrees."""

    def close(self) -> None:
        """Nothing of it runs afterwards; at any time, more than once."""
