"""CPU samples of a window, kept in twelve bytes each whatever the depth of their stacks."""

from __future__ import annotations

import random
from array import array
from typing import NamedTuple

from whystall.bpf import layout as lay

MOST = 8_000_000
"""Most samples kept (about 100 MB). Beyond that a random half, quarter, ... is kept and represents the others: shares
stay unbiased, their bounds widen."""

_SAMPLE = lay.unpacker(lay.SampleRecord)


class Place(NamedTuple):
    """A thread and its stacks, keys of ``Capture.stacks``; 0: none, or lost."""

    tgid: int
    tid: int
    kstack: int
    """Kernel stack; 0: it was in user mode."""
    ustack: int
    pystack: int
    collects: bool = False
    """It runs the garbage collector of its Python interpreter."""


class Samples(NamedTuple):
    """Samples in columns: ``at`` (CLOCK_MONOTONIC ns), and ``place``, a row of ``places``."""

    at: array[int]
    place: array[int]
    places: list[Place]
    one_in: int
    """Number of samples that each kept one represents."""


class SampleLog:
    """Collects sample records."""

    def __init__(self, most: int = MOST, seed: int | None = None) -> None:
        self._most = most
        self._chance = random.Random(seed)  # noqa: S311 - sampling, not cryptography
        self._at, self._place = array("q"), array("i")
        self._places: dict[Place, int] = {}
        self._one_in = 1

    def add(self, record: bytes) -> Place | None:
        """Keep one record; return its place if new."""
        _, flags, at, kstack, ustack, pystack, tgid, tid = _SAMPLE.unpack(record)
        if self._one_in > 1 and self._chance.randrange(self._one_in):
            return None
        place = Place(tgid, tid, kstack, ustack, pystack, bool(flags & lay.SAMPLE_COLLECTS))
        known = len(self._places)
        number = self._places.setdefault(place, known)
        self._at.append(at)
        self._place.append(number)
        if len(self._at) > self._most:
            self._thin()
        return place if number == known else None

    def _thin(self) -> None:
        """Drop a random half."""
        import numpy as np

        kept = np.random.default_rng(self._chance.getrandbits(64)).random(len(self._at)) < 0.5
        self._at = array("q", np.frombuffer(self._at, np.int64)[kept].tobytes())
        self._place = array("i", np.frombuffer(self._place, np.int32)[kept].tobytes())
        self._one_in *= 2

    def samples(self) -> Samples:
        """Return the kept samples."""
        return Samples(self._at, self._place, list(self._places), self._one_in)
