"""Counts of interrupts from /proc/interrupts and /proc/softirqs, and the time of all handlers from /proc/stat.

The kernel keeps no time per handler; that of all handlers is in ticks, sampled by the tick unless the kernel has
CONFIG_IRQ_TIME_ACCOUNTING.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import polars as pl

from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.tables import INTERRUPTS, filled
from whystall.tools.contract.text import clean
from whystall.tools.node.vantage import node_path

HARD, SOFT = "hardirq", "softirq"
Counts = dict[tuple[str, str], dict[int, int]]
"""Kind and name -> CPU -> count."""
#            CPU0       CPU1
#  24:          7          0   PCI-MSI 65536-edge      virtio0-config
# LOC:   81234567   79123456   Local timer interrupts
_LABEL = re.compile(rb"\s*([\w.-]+):((?:\s+\d+)*)(.*)")
_COLUMN = re.compile(rb"CPU(\d+)")


class Line(NamedTuple):
    """One line of /proc/interrupts or /proc/softirqs: label, counts per CPU, and the text after them."""

    label: str
    counts: dict[int, int]
    rest: str


def lines(raw: bytes) -> list[Line]:
    """Parse either file. Offline CPUs have no column; lines with a single sum (ERR, MIS) are left out."""
    head, _, body = raw.partition(b"\n")
    cpus = [int(number) for number in _COLUMN.findall(head)]
    found = []
    for line in body.splitlines():
        match = _LABEL.match(line)
        if match is None:
            continue
        numbers = [int(number) for number in match[2].split()]
        # a description may begin with a number
        if not cpus or len(numbers) < len(cpus):
            continue
        spare = " ".join(map(str, numbers[len(cpus) :]))
        rest = f"{spare} {clean(match[3])}" if spare else clean(match[3])
        found.append(Line(clean(match[1]), dict(zip(cpus, numbers, strict=False)), rest))
    return found


def action_names(rest: str) -> str:
    """Return the names of an interrupt's actions from the text after its counts; empty if it has none.

    kernel/irq/proc.c (show_interrupts) prints the chip, its number and trigger, two blanks, and the actions' names,
    separated by comma and blank.
    """
    _, gap, names = rest.strip().rpartition("  ")
    return names.strip() if gap and not re.fullmatch(r"[\d.]+-?\w*", names.strip()) else ""


class InterruptCounts:
    """Reads the counts when it is made and at `stop`. `read` returns a file of /proc by its name.

    `denied`: files that cannot be read (containers may hide them).
    """

    def __init__(self, read: Callable[[str], bytes] | None = None) -> None:
        self._read = read or _read_proc
        self.denied: list[str] = []
        self._architecture: set[str] = set()
        self._first = self._read_all()
        self._last = self._first

    def stop(self) -> None:
        """Read the counts again."""
        self._last = self._read_all()

    def _read_all(self) -> tuple[Counts, dict[int, tuple[int, int]]]:
        counts: Counts = {}
        for line in self._lines("interrupts"):
            if line.label.isdigit():
                name = action_names(line.rest) or f"irq {line.label}"
            else:  # handled by the architecture, with a short name (x86: LOC, RES, TLB)
                name = line.label
                self._architecture.add(name)
            _add(counts, (HARD, name), line.counts)
        for line in self._lines("softirqs"):
            _add(counts, (SOFT, line.label), line.counts)
        return counts, self._times()

    def _lines(self, name: str) -> list[Line]:
        try:
            found = lines(self._read(name))
        except OSError:
            found = []
        if not found and name not in self.denied:
            self.denied.append(name)
        return found

    def _times(self) -> dict[int, tuple[int, int]]:
        try:
            return {cpu: (t.irq, t.softirq) for cpu, t in parse.host_stat(self._read("stat")).cpus.items()}
        except (OSError, ValueError):
            return {}

    def grown(self) -> Counts:
        """Return the counts between the readings that are not zero."""
        before, after = self._first[0], self._last[0]
        found: Counts = {}
        for key, counts in after.items():
            # a count decreases when its number was reused or a CPU came back online
            since = {cpu: count - before.get(key, {}).get(cpu, 0) for cpu, count in counts.items()}
            since = {cpu: count for cpu, count in since.items() if count > 0}
            if since:
                found[key] = since
        return found

    def softirqs(self) -> int | None:
        """Return the number of softirqs between the readings; None if hidden."""
        if "softirqs" in self.denied:
            return None
        return sum(sum(counts.values()) for (kind, _), counts in self.grown().items() if kind == SOFT)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of `interrupts`, without time per handler."""
        rows = [
            (kind, name, cpu, count, -1, -1)
            for (kind, name), counts in self.grown().items()
            for cpu, count in counts.items()
        ]
        return filled(INTERRUPTS, totals=rows, cpus=self.cpu_rows())

    def architecture_rows(self) -> list[tuple[str, str, int, int, int, int]]:
        """Return the rows of interrupts that the architecture handles, for which there is no irq tracepoint."""
        return [
            (kind, name, cpu, count, -1, -1)
            for (kind, name), counts in self.grown().items()
            if kind == HARD and name in self._architecture
            for cpu, count in counts.items()
        ]

    def cpu_rows(self) -> list[tuple[int, int, int]]:
        """Return the time in handlers per CPU, by the kernel's own account."""
        before, after = self._first[1], self._last[1]
        return [
            (cpu, max(0, hard - before[cpu][0]), max(0, soft - before[cpu][1]))
            for cpu, (hard, soft) in sorted(after.items())
            if cpu in before
        ]


def _add(counts: Counts, key: tuple[str, str], more: Mapping[int, int]) -> None:
    into = counts.setdefault(key, {})
    for cpu, count in more.items():
        into[cpu] = into.get(cpu, 0) + count


def _read_proc(name: str) -> bytes:
    # container runtimes hide /proc/interrupts (moby since 28); a sidecar reaches the node's
    with open(node_path(f"/proc/{name}"), "rb") as file:
        return file.read()
