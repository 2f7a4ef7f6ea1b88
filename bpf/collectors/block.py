"""Requests to disks: latencies and totals per disk, and each slow request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whystall.bpf import capture as cap
from whystall.bpf.collector import Collector, Window


@dataclass(frozen=True)
class BlockRows:
    """The requests of one window."""

    block_slots: list[cap.BlockSlot] = field(default_factory=list)
    block_totals: list[cap.BlockTotal] = field(default_factory=list)
    block_ios: list[cap.BlockIo] = field(default_factory=list)
    block_open: list[cap.BlockIo] = field(default_factory=list)
    """In progress when the window ended; not in the totals."""


class Block(Collector):
    """Record requests that take at least `min_ns`, queue and device together."""

    shared_maps = ("requests", "block_slots", "block_totals")

    def __init__(self, min_ns: int = 50_000_000) -> None:
        self._min_ns = min_ns

    def programs(self) -> list[str]:
        """Return ends first: no request's start is recorded without its end."""
        merges = ["on_merge"] * self.setup.variants["block_merge_hook"]
        return ["on_complete", "on_issue", "on_insert", *merges]

    def constants(self) -> Mapping[str, int]:
        """Return the threshold."""
        return {"block_min_ns": self._min_ns}

    def read(self, window: Window) -> BlockRows:
        """Return rows. Without the merge hook, a request that was queued and never issued may have been merged."""
        made, merges = window.made, self.setup.variants["block_merge_hook"]
        open_ios = cap.open_ios(made.map("requests").items(), window.end)
        return BlockRows(
            cap.block_slots(made.map("block_slots").items()),
            cap.block_totals(made.map("block_totals").items()),
            window.records.block_ios,
            [io for io in open_ios if io.issue or merges],
        )
