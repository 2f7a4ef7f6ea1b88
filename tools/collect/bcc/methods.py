"""The protocol of what fills collectors for the ``bcc`` engine: a stock BCC tool, or BCC programs of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

READY_S = 240.0
"""BCC compiles when it starts: half a second on a server, minutes in an emulated machine."""


class Method(Protocol):
    """One method to fill collectors, for one window; child processes do the work.

    The calls and their guarantees are those of `Engine`, with one difference: ``load`` returns at once and
    ``wait_loaded`` waits, so that the children of all methods compile at the same time.
    If the child dies, hangs or prints unparsable output, ``wait_loaded``, ``poll`` and ``read`` raise `ToolError`; they
    never return an empty capture instead. What a method cannot observe is in the capture's `not_seen`.
    """

    @property
    def name(self) -> str:
        """Shown to people, as in ``biolatency-bpfcc`` or ``own program``."""

    @property
    def serves(self) -> frozenset[str]:
        """The collectors it can fill."""

    @property
    def loads_last(self) -> bool:
        """Whether it counts from when it attached, so that it must be loaded after all others."""

    def unavailable(self, collector: str) -> str | None:
        """Return why it cannot fill `collector` here, in a few words; None if it can. Starts nothing."""

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Start the children for the `wanted` collectors and return at once; raise `ToolError` on failure."""

    def wait_loaded(self, deadline: float) -> None:
        """Wait until all hooks are attached, until `deadline` (time.monotonic()); raise `ToolError` if it fails."""

    def start(self) -> int:
        """Begin to count, and cause events that prove the hooks alive. Return the time, ns of CLOCK_MONOTONIC."""

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when there is output to read, or None."""

    def poll(self) -> None:
        """Read the available output; never blocks."""

    def stop(self) -> None:
        """End counting, without waiting; idempotent."""

    def read(self) -> dict[str, Capture]:
        """End the children and return the results, in bounded time.

        A capture is `proven` only if an event of our own was observed, or the kernel's own count agrees.
        """

    def close(self) -> None:
        """Kill all children; idempotent, at any time."""
