"""The collectors ``syscalls``, ``switches`` and ``block`` of the ``ebpf`` engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from whystall.bpf import syscalls
from whystall.bpf.collectors.block import Block, BlockRows
from whystall.bpf.collectors.switches import Switches
from whystall.bpf.collectors.syscalls import Syscalls
from whystall.bpf.session import Session
from whystall.tools.collect.ebpf_collector import (
    EbpfCollector,
    SessionResult,
    add_files_and_stacks,
    capture_of,
    disk_name,
)
from whystall.tools.collect.ebpf_decode import block_tables, switch_tables, syscall_tables
from whystall.tools.collect.options import BlockOptions, SwitchOptions, SyscallOptions
from whystall.tools.collect.python_notes import python_notes
from whystall.tools.recording.collector import Capture, Options


class SyscallCollector(EbpfCollector):
    """Proven by a call of our own."""

    name = "syscalls"
    losses = frozenset(
        {"call_totals_full", "file_slots_full", "failures_full", "ring_call", "reader_call", "compat_skipped"}
        | {"recursion_on_enter", "recursion_on_exit"}
    )

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        self.kernel = Syscalls(SyscallOptions.of(wanted, self.name).min_ns)

    def capture(self, result: SessionResult) -> Capture:
        """Return the tables."""
        raw = result.raw
        tables = syscall_tables(raw, result.files, result.stacks, syscalls.name, os.getpid())
        capture = capture_of(raw, self.name, tables, raw.seen["calls"], raw.seen["self_calls"] > 0, "calls")
        add_files_and_stacks(capture, result)
        return capture


class SwitchCollector(EbpfCollector):
    """Proven by a sleep of our own."""

    name = "switches"
    losses = frozenset({"off_totals_full", "ring_segment", "reader_segment", "recursion_on_waking"})

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        options = SwitchOptions.of(wanted, self.name)
        self.python = options.python
        self._peers = options.peers
        self.kernel = Switches(
            options.min_ns, wakers=options.wakers, user_stacks=True, follow_wakers=options.follow_wakers
        )

    def started(self, session: Session) -> None:
        """Record the peers, too."""
        session.follow(self._peers)

    def capture(self, result: SessionResult) -> Capture:
        """Return the tables."""
        raw = result.raw
        tables = switch_tables(raw, result.files, result.stacks, syscalls.name, os.getpid())
        proven = raw.seen["self_switches"] > 0
        capture = capture_of(raw, self.name, tables, raw.seen["switches"], proven, "segments")
        add_files_and_stacks(capture, result)
        if self.python:
            capture.not_seen += python_notes(raw, switches=True)
        return capture


class BlockCollector(EbpfCollector):
    """Proven by the disks' own counts, as not every host lets us cause a request: both are zero, or both are not."""

    name = "block"
    losses = frozenset(
        {"requests_full", "block_maps_full", "ring_block", "reader_block"}
        | {"recursion_on_complete", "recursion_on_issue", "recursion_on_insert", "recursion_on_merge"}
    )

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        self.kernel = Block(BlockOptions.of(wanted, self.name).min_ns)
        self._requests = 0

    def started(self, session: Session) -> None:
        """Read the disks' own counts."""
        self._requests = -sum(completed_requests().values())

    def stopping(self, session: Session) -> None:
        """Read them again."""
        self._requests += sum(completed_requests().values())

    def capture(self, result: SessionResult) -> Capture:
        """Return the tables."""
        raw = result.raw
        events = raw.seen["block"]
        tables = block_tables(raw.of(BlockRows), disk_name)
        return capture_of(raw, self.name, tables, events, events > 0 or self._requests == 0, "slow")


def completed_requests() -> dict[str, int]:
    """Return the requests completed per whole disk, by the kernel's own count."""
    counts = {}
    for line in Path("/proc/diskstats").read_text().splitlines():
        # "   8       0 sda 1436 21 52114 412 880 ..."
        fields = line.split()
        if Path("/sys/block", fields[2]).exists():
            counts[fields[2]] = int(fields[3]) + int(fields[7])
    return counts
