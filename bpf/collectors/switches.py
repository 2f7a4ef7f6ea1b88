"""Switches of threads: each long time off the CPU with its stacks and waker, and totals of all."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from whystall.bpf import capture as cap
from whystall.bpf import layout as lay
from whystall.bpf.collector import Collector, Window
from whystall.bpf.preemption import preempt_distance


@dataclass(frozen=True)
class SwitchRows:
    """The times off the CPU of one window."""

    segments: list[cap.Segment] = field(default_factory=list)
    off_totals: list[cap.OffTotal] = field(default_factory=list)
    followed: list[cap.Followed] = field(default_factory=list)


class Switches(Collector):
    """Record times off the CPU of at least `min_ns`, optionally with `wakers` and native `user_stacks`; with
    `follow_wakers` also of the processes that wake threads of targets, and of those that wake these."""

    maps = ("wake_marks",)
    shared_maps = ("off_totals", "stacks_emitted")
    hints = (
        *("on_timer_exit", "on_timer_entry", "on_served", "on_serving", "on_device_exit", "on_device_entry"),
        "on_completion",
    )
    start_iterators = stop_iterators = ("walk",)
    bytes_per_thread = ct.sizeof(lay.SegmentRecord)

    def __init__(
        self, min_ns: int = 1_000_000, *, wakers: bool = False, user_stacks: bool = False, follow_wakers: bool = False
    ) -> None:
        self._min_ns, self._user_stacks, self._follow_wakers = min_ns, user_stacks, follow_wakers
        self._wakers = wakers or follow_wakers
        self._followed: list[cap.Followed] = []

    def programs(self) -> list[str]:
        """Return the programs, with those for files of major faults and for wakers if available and wanted."""
        variants = self.setup.variants
        names = ["on_switch"] if variants["task_storage"] else ["on_switch", "on_thread_exit"]
        names += ["on_fault"] * variants["fault_hook"]
        if not self._wakers:
            return names
        if variants["wake_contexts"]:
            names += ["on_timer_exit", "on_timer_entry", "on_serving"]
            # where the preemption count shows what runs, ends need no note
            names += ["on_served", "on_device_exit", "on_device_entry"] * (not variants["preempt_count"])
            names.append("on_completion")
        return [*names, "on_waking"]

    def constants(self) -> Mapping[str, int]:
        """Return the threshold and the options."""
        return {
            "switches": True,
            "switch_min_ns": self._min_ns,
            "user_stacks": self._user_stacks,
            "wakers": self._wakers,
            "preempt_distance": preempt_distance() if self._wakers and self.setup.variants["preempt_count"] else 0,
            "follow_wakers": self._follow_wakers,
        }

    def followed(self, found: Sequence[cap.Followed]) -> None:
        """Keep them for `read`."""
        self._followed += found

    def read(self, window: Window) -> SwitchRows:
        """Return rows."""
        totals = cap.off_totals(window.made.map("off_totals").items())
        window.seen["switches"] = sum(one.count for one in totals) + sum(window.lost.get("off_totals_full", ()))
        return SwitchRows(window.records.segments, totals, self._followed)
