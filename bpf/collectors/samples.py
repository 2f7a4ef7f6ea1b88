"""Samples of the running threads and their stacks, by two timers per CPU."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from itertools import product
from math import sqrt

from whystall.bpf import layout as lay
from whystall.bpf.capture import Stack
from whystall.bpf.collector import Collector, Window
from whystall.bpf.libbpf import Link, Program
from whystall.bpf.perf_events import cpu_clock, online_cpus
from whystall.bpf.samples import Place, SampleLog, Samples

_STACKS = 1 << 16  # while sampling, nearly every stack is new
_OTHER_DESCRIPTORS = 512  # other open descriptors: 120 of hooks and maps, and files of processes
# Periods of the timers of a CPU, as multiples of the mean one: their rates sum to its rate. With a single period, work
# that repeats at about a multiple of it is always met at the same point for a while, as if one call took that long
# (aliasing). The golden ratio has no good approximation by a ratio of small integers, so no work does that to both.
_GOLDEN = (1 + sqrt(5)) / 2
_PERIODS = (_GOLDEN, 1 + _GOLDEN)


class CpuSamples(Collector):
    """Sample every CPU each `period_ns` on average."""

    shared_maps = ("stacks_emitted",)

    def __init__(self, period_ns: int, stacks: int = _STACKS) -> None:
        """`stacks`: most stacks that the kernel side remembers as emitted."""
        self._period_ns, self._stacks = period_ns, stacks
        self._log = SampleLog()
        self._new: list[Place] = []
        self.timers = 0
        """Number of sampled CPUs."""

    def programs(self) -> list[str]:
        """Return the program of the timers."""
        return ["on_tick"]

    def map_sizes(self) -> Mapping[str, int]:
        """Return more stacks than without samples."""
        return {"stacks_emitted": self._stacks}

    def constants(self) -> Mapping[str, int]:
        """Enable sampling."""
        return {"samples": True}

    def record_handlers(self) -> Mapping[int, Callable[[bytes], object]]:
        """Return the handler that keeps samples as columns."""
        return {lay.RECORD_SAMPLE: self._take}

    def attach(self, program: Program) -> list[Link]:
        """Attach to the timers of every CPU; timers are not synchronized."""
        cpus = online_cpus()
        raise_open_files(2 * len(_PERIODS) * len(cpus) + _OTHER_DESCRIPTORS)
        links = []
        try:
            for cpu, multiple in product(cpus, _PERIODS):
                timer = cpu_clock(cpu, round(multiple * self._period_ns))
                if timer is not None:
                    links.append(program.attach_to_timer(timer))
        except BaseException:
            while links:
                links.pop().close()
            raise
        self.timers = len(links) // len(_PERIODS)
        return links

    def _take(self, record: bytes) -> None:
        place = self._log.add(record)
        if place is not None:
            self._new.append(place)

    def new_places(self) -> list[tuple[Place, Stack | None]]:
        """Return the places first sampled since the last call, with their user stacks: symbols must be read while a
        process lives."""
        arrived, self._new = self._new, []
        return [(place, self.setup.stacks.get(place.ustack)) for place in arrived]

    def read(self, window: Window) -> Samples:
        """Return the samples that were kept."""
        return self._log.samples()


def raise_open_files(descriptors: int) -> None:
    """Raise the limit of open files to `descriptors`, as far as the hard limit allows: the timers of 512 CPUs use up
    a soft limit of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= descriptors:
        return
    most = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
