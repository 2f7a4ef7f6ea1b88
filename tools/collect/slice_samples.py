"""What the threads of a slice ran: CPU samples by thread and Python stack, counted as the records arrive."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MOST = 4096  # different stacks of a slice; of the others only the thread is known
# pystack, tgid, tid
_SAMPLE = struct.Struct("<32xQII").unpack_from


class SliceSamples:
    """The samples of the slice so far."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int, int], int] = {}

    def begin(self) -> None:
        """Begin a slice."""
        self._counts = {}

    def sample(self, taken: bytes, at: int) -> None:
        """Add the record of a sample."""
        pystack, tgid, tid = _SAMPLE(taken, at)
        key = (tgid, tid, pystack)
        if key not in self._counts and len(self._counts) >= _MOST:
            key = (tgid, tid, 0)
        self._counts[key] = self._counts.get(key, 0) + 1

    def counts(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield process, thread, Python stack (0: none), and the number of samples."""
        for (tgid, tid, pystack), number in self._counts.items():
            yield tgid, tid, pystack, number
