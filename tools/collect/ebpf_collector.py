"""The interface of one collector of the ``ebpf`` engine: its BPF programs, its proof, and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from whystall.bpf.capture import Capture as BpfCapture
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
class SessionResult:
    """The results of a BPF session, and the names of its files, stacks and frames."""

    raw: BpfCapture
    files: Files
    stacks: Stacks
    calls: SampleCalls


class EbpfCollector:
    """One collector in one window. A subclass creates `kernel` from its options and overrides what it needs.

    The engine calls ``loaded``, ``started``, ``poll`` any number of times, ``stopping``, ``stopped``, ``capture`` in
    this order, and ``close`` at any time.
    """

    name: ClassVar[str]
    losses: ClassVar[frozenset[str]] = frozenset()
    """Reasons of loss (of `whystall.bpf.layout.LOSSES`) that affect this collector and no other."""
    kernel: Collector
    python: bool = False
    """Whether Python frames are wanted."""

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        raise NotImplementedError

    def loaded(self, target: Target, processes: Processes, frames: PythonFrames | None) -> None:
        """Called when all hooks are attached, before counting begins."""

    def started(self, session: Session) -> None:
        """Called when counting has begun: read counts to compare with, cause events that prove the hooks."""

    def poll(self) -> None:
        """Process what has arrived."""

    def stopping(self, session: Session) -> None:
        """Called before counting ends: read the counts again, cause the last events."""

    def stopped(self) -> None:
        """Called when counting has ended; the hooks are still attached."""

    def capture(self, result: SessionResult) -> Capture:
        """Return the tables, and whether the collector is proven."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything; idempotent."""


def capture_of(
    raw: BpfCapture, name: str, tables: dict[str, pl.DataFrame], events: int, proven: bool, kept: str = ""
) -> Capture:
    """Return the capture of collector `name`; `kept`: its table of single events, if it has one."""
    return Capture(
        tables=tables,
        hooks=[*raw.hooks, *(f"{variant}={value}" for variant, value in sorted(raw.variants.items()))],
        seen=events,
        kept=tables[kept].height if kept else 0,
        lost=losses(raw, name),
        proven=proven,
    )


_STACKS_OF, _CALLS_OF = frozenset({"syscalls", "switches", "samples"}), frozenset({"syscalls", "switches"})
_SHARED = {
    "ring_stack": _STACKS_OF,
    "stacks_full": _STACKS_OF,
    "stack_walk_failed": _STACKS_OF,
    "ring_code": frozenset({"switches", "samples"}),
    "ring_file": _CALLS_OF | {"page_cache"},
    "files_full": _CALLS_OF | {"page_cache"},
    "no_state": _CALLS_OF | {"page_cache"},
    "threads_full": _STACKS_OF | {"page_cache"},
    "recursion_on_switch": _CALLS_OF,
    "accelerator_full": frozenset({"accelerator"}),
}
"""Reasons of loss that affect several collectors, but not all."""


def losses(raw: BpfCapture, name: str) -> int:
    """Return how many events of collector `name` were lost, for its own reasons and for those that affect all."""
    kinds = EbpfCollector.__subclasses__()
    lost = 0
    for reason, counts in raw.lost.items():
        affected = _SHARED.get(reason) or {kind.name for kind in kinds if reason in kind.losses}
        if not affected or name in affected:
            lost += sum(counts)
    return lost


def add_files_and_stacks(capture: Capture, result: SessionResult) -> None:
    """Add the tables ``files`` and ``stacks``."""
    named = result.stacks.table()
    capture.tables |= {"files": result.files.table(), "stacks": named}
    if named["kernel"].any() and kernel_symbols().hidden:  # symbols are read only when needed
        capture.not_seen.append(("kernel_symbols", ""))


def disk_name(dev: int) -> str:
    """Return the name of a kernel device number, ``8:0`` if it has none."""
    return disk_name_of(*device(dev))
