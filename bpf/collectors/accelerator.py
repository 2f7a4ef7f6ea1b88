"""Calls of functions of accelerators' libraries: number and time by thread, Python stack and function, by uprobes.

Nothing is attached with the session: `attach_to` and `remove` change what is probed while it runs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from whystall.bpf import uprobe_multi
from whystall.bpf.collector import Collector
from whystall.bpf.errors import BpfError
from whystall.bpf.functions import Probe, own_probes
from whystall.bpf.libbpf import Link, Map, Object, Program
from whystall.bpf.uprobe_multi import MultiLink

_ENTRY, _RETURN = "on_accelerator_entry", "on_accelerator_return"


class AcceleratorCalls(Collector):
    """See the module. Needs what `whystall.bpf.functions.unsupported` examines."""

    maps = ("accelerator_pending", "accelerator_totals", "accelerator_busy")
    shared_maps = ("accelerator_calls",)

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}
        self._links: dict[tuple[Probe, ...], list[Link | MultiLink]] = {}
        self._calls: Map | None = None
        self._multi = False
        self._trap_ns: dict[bool, float] = {}

    def programs(self) -> list[str]:
        """Return the programs at entries and at returns."""
        return [_RETURN, _ENTRY]

    def constants(self) -> Mapping[str, int]:
        """Return the switch."""
        return {"accelerator": True}

    def choose(self, made: Object) -> None:
        """Have the programs loaded for many functions at once where the kernel can do that; called before load."""
        self._multi = uprobe_multi.supported()
        for name in self.programs() if self._multi else ():
            made.program(name).set_attach_type(uprobe_multi.ATTACH_TYPE)

    def loaded(self, made: Object) -> None:
        """Keep the map of calls in progress."""
        self._calls = made.map("accelerator_calls")

    def attach(self, program: Program) -> list[Link]:
        """Keep the program for `attach_to`; measure what a probe costs a call, at functions of this process."""
        self._programs[program.name] = program
        if program.name == _ENTRY:
            links, self._trap_ns = own_probes(
                lambda path, offset: self._link(program, path, [(offset, 0)], os.getpid())
            )
            for link in links:
                link.close()
        return []

    def attach_to(self, probes: Iterable[Probe]) -> list[Probe]:
        """Probe entry and return of functions in all processes that execute their files. Return those that the kernel
        refuses."""
        by_file: dict[str, list[Probe]] = defaultdict(list)
        for probe in probes:
            by_file[probe.path].append(probe)
        refused: list[Probe] = []
        for group in by_file.values():
            try:
                if not self._multi:
                    raise BpfError("attach_failed", "", "")
                self._attach(group)
            except BpfError:  # one by one
                for probe in group:
                    try:
                        self._attach([probe])
                    except BpfError:
                        refused.append(probe)
        return refused

    def _attach(self, group: Sequence[Probe]) -> None:
        links: list[Link | MultiLink] = []
        try:
            for name in self.programs():  # the return first: an entry has its return
                places = [(probe.offset, probe.number) for probe in group]
                links.append(self._link(self._programs[name], group[0].path, places))
        except BpfError:
            for link in links:
                link.close()
            raise
        self._links[tuple(group)] = links

    def _link(self, program: Program, path: str, places: Sequence[tuple[int, int]], pid: int = 0) -> Link | MultiLink:
        """Attach a program to the code at (offset, cookie) of a file, of which there may be one only without `_multi`;
        in process `pid` or, with 0, in all."""
        returns = program.name == _RETURN
        if self._multi:
            return uprobe_multi.attach(program, path, places, returns=returns, pid=pid)
        return program.attach_to_function(path, *places[0], returns=returns, pid=pid or -1)

    def keep(self, wanted: Iterable[Probe]) -> None:
        """Remove all probes but `wanted`, and forget the calls in progress, whose return will not be reported."""
        left = set(wanted)
        again = [probe for group in self._links if not left.issuperset(group) for probe in group if probe in left]
        for group in [group for group in self._links if not left.issuperset(group)]:
            for link in reversed(self._links.pop(group)):
                link.close()
        self.attach_to(again)
        if self._calls is not None:
            self._calls.drain()

    def attached(self) -> list[Probe]:
        """Return the probes that are attached."""
        return [probe for group in self._links for probe in group]

    def hit_ns(self) -> float:
        """Return what an entry or a return costs the calling thread, ns: the breakpoint, after which the kernel steps
        over the instruction at an entry or emulates it, and the mean run of our programs while that was measured."""
        runs = sum(program.run_count() for program in self._programs.values())
        ran = sum(one.run_time_ns() for one in self._programs.values()) / runs if runs else 0.0
        least = min(self._trap_ns.values(), default=0.0)  # nothing is stepped over at a return
        entries = [self._trap_ns.get(probe.emulated, least) for probe in self.attached()]
        return ran + (least + sum(entries) / len(entries) if entries else 2 * least) / 2

    def close(self) -> None:
        """Remove all probes; idempotent."""
        self.keep(())
        self._calls = None
