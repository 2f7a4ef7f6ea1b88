"""What the ``ebpf`` engine needs to know of one collector: its kernel side, what proves it alive, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from whystall.bpf.capture import Capture as Seen
from whystall.bpf.capture import device
from whystall.bpf.collector import Collector
from whystall.bpf.collectors.python_frames import PythonFrames
from whystall.bpf.session import Session
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.ebpf_decode import Files, Stacks
from whystall.tools.collect.ebpf_symbols import Processes, SampleCalls
from whystall.tools.collect.mounted import disk_name_of
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target


@dataclass(frozen=True)
class Found:
    """What a session saw, and what names it."""

    seen: Seen
    files: Files
    stacks: Stacks
    calls: SampleCalls


class EbpfCollector:
    """One collector in one window. A subclass per collector makes `kernel` of its options and overrides what it needs.

    The engine calls ``loaded``, ``started``, ``poll`` any number of times, ``stopping``, ``stopped``, ``capture`` in
    this order, and ``close`` at any time.
    """

    name: ClassVar[str]
    losses: ClassVar[frozenset[str]] = frozenset()
    """Reasons of loss that concern this collector alone (of `whystall.bpf.layout.LOSSES`)."""
    kernel: Collector
    python: bool = False
    """Whether frames of Python are wanted."""

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        raise NotImplementedError

    def loaded(self, target: Target, processes: Processes, frames: PythonFrames | None) -> None:
        """All hooks are attached; nothing counts yet."""

    def started(self, session: Session) -> None:
        """Counting has begun: take readings to compare with, cause events that prove the hooks alive."""

    def poll(self) -> None:
        """Take in what has arrived."""

    def stopping(self, session: Session) -> None:
        """Counting ends after this: take the last readings, cause the last events."""

    def stopped(self) -> None:
        """Counting has ended; the hooks are still there."""

    def capture(self, found: Found) -> Capture:
        """Return the tables, and whether the collector is proven alive."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything; idempotent."""


def capture_of(
    seen: Seen, name: str, tables: dict[str, pl.DataFrame], events: int, proven: bool, kept: str = ""
) -> Capture:
    """Return the capture of collector `name`; `kept`: its table of single events, if it has one."""
    return Capture(
        tables=tables,
        hooks=[*seen.hooks, *(f"{variant}={value}" for variant, value in sorted(seen.variants.items()))],
        seen=events,
        kept=tables[kept].height if kept else 0,
        lost=losses(seen, name),
        proven=proven,
    )


def losses(seen: Seen, name: str) -> int:
    """Return how many events of collector `name` were lost: by its own reasons, and by those of no collector alone."""
    of_others = {reason for kind in EbpfCollector.__subclasses__() if kind.name != name for reason in kind.losses}
    return sum(sum(counts) for reason, counts in seen.lost.items() if reason not in of_others)


def add_files_and_stacks(capture: Capture, found: Found) -> None:
    """Add the tables that name the files and stacks of a capture."""
    named = found.stacks.table()
    capture.tables |= {"files": found.files.table(), "stacks": named}
    if named["kernel"].any() and kernel_symbols().hidden:  # symbols are read only when they are needed
        capture.not_seen.append(("kernel_symbols", ""))


def disk_name(dev: int) -> str:
    """Return the name of a kernel device number, ``8:0`` where it has none."""
    return disk_name_of(*device(dev))
