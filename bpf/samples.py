"""CPU samples as they are kept while a window runs: twelve bytes for each, however deep their stacks."""

from __future__ import annotations

import random
from array import array
from typing import NamedTuple

from whystall.bpf import layout as lay

MOST = 8_000_000
"""Samples that are kept (about 100 MB). Beyond, one in two, four, ... is, chosen by chance, and stands for the others:
shares stay true, and only their bounds widen."""

_SAMPLE = lay.unpacker(lay.SampleRecord)


class Place(NamedTuple):
    """Where a thread was. Stacks are keys of ``Capture.stacks``; 0: none, or lost."""

    tgid: int
    tid: int
    kstack: int
    """Kernel stack; 0: it was in user mode."""
    ustack: int
    pystack: int


class Samples(NamedTuple):
    """Samples in columns: ``at`` (CLOCK_MONOTONIC ns), and ``place``, a row of ``places``."""

    at: array[int]
    place: array[int]
    places: list[Place]
    one_in: int
    """How many samples one that was kept stands for."""


class SampleLog:
    """Takes in sample records."""

    def __init__(self, most: int = MOST, seed: int | None = None) -> None:
        self._most = most
        self._chance = random.Random(seed)  # noqa: S311 - which sample is kept is no secret
        self._at, self._place = array("q"), array("i")
        self._places: dict[Place, int] = {}
        self._one_in = 1

    def add(self, record: bytes) -> Place | None:
        """Keep one record; the place when it is a new one."""
        _, _, at, kstack, ustack, pystack, tgid, tid = _SAMPLE.unpack(record)
        if self._one_in > 1 and self._chance.randrange(self._one_in):
            return None
        place = Place(tgid, tid, kstack, ustack, pystack)
        known = len(self._places)
        number = self._places.setdefault(place, known)
        self._at.append(at)
        self._place.append(number)
        if len(self._at) > self._most:
            self._thin()
        return place if number == known else None

    def _thin(self) -> None:
        """Drop about half of what is there."""
        import numpy as np

        kept = np.random.default_rng(self._chance.getrandbits(64)).random(len(self._at)) < 0.5
        self._at = array("q", np.frombuffer(self._at, np.int64)[kept].tobytes())
        self._place = array("i", np.frombuffer(self._place, np.int32)[kept].tobytes())
        self._one_in *= 2

    def samples(self) -> Samples:
        """What was kept."""
        return Samples(self._at, self._place, list(self._places), self._one_in)
