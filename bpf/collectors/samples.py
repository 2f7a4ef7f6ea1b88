"""Samples of who has each CPU, and where, by a timer per CPU."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping

from whystall.bpf import layout as lay
from whystall.bpf.capture import Stack
from whystall.bpf.collector import Collector, Window
from whystall.bpf.libbpf import Link, Program
from whystall.bpf.perf_events import cpu_clock, online_cpus
from whystall.bpf.samples import Place, SampleLog, Samples

_STACKS = 1 << 16  # while sampling, nearly every stack is new
_OTHER_DESCRIPTORS = 512  # open beside the timers: hooks and maps take 120, files of processes come later


class CpuSamples(Collector):
    """Sample every CPU each `period_ns`."""

    shared_maps = ("stacks_told",)

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._log = SampleLog()
        self._new: list[Place] = []
        self.timers = 0
        """CPUs that are sampled."""

    def programs(self) -> list[str]:
        """The program of the timers."""
        return ["on_tick"]

    def map_sizes(self) -> Mapping[str, int]:
        """More stacks than without samples."""
        return {"stacks_told": _STACKS}

    def constants(self) -> Mapping[str, int]:
        """The switch."""
        return {"samples": True}

    def record_handlers(self) -> Mapping[int, Callable[[bytes], object]]:
        """Samples are kept as columns as they arrive."""
        return {lay.RECORD_SAMPLE: self._take}

    def attach(self, program: Program) -> list[Link]:
        """Attach to a timer of every CPU; they tick out of step, each since its own start."""
        cpus = online_cpus()
        raise_open_files(2 * len(cpus) + _OTHER_DESCRIPTORS)
        links = []
        try:
            for cpu in cpus:
                timer = cpu_clock(cpu, self._period_ns)
                if timer is not None:
                    links.append(program.attach_to_timer(timer))
        except BaseException:
            while links:
                links.pop().close()
            raise
        self.timers = len(links)
        return links

    def _take(self, record: bytes) -> None:
        place = self._log.add(record)
        if place is not None:
            self._new.append(place)

    def new_places(self) -> list[tuple[Place, Stack | None]]:
        """Return where samples were taken for the first time since the last call, each with its user stack: symbols
        must be read while a process lives."""
        arrived, self._new = self._new, []
        return [(place, self.setup.stacks.get(place.ustack)) for place in arrived]

    def read(self, window: Window) -> Samples:
        """Return the samples that were kept."""
        return self._log.samples()


def raise_open_files(descriptors: int) -> None:
    """Raise our limit of open files to `descriptors`, as far as the hard limit allows: of a soft limit of 1024 the
    timers of 512 CPUs take all. A limit that cannot be raised shows where it is reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= descriptors:
        return
    most = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
