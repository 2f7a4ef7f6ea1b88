"""What every reader of a topology fills: rows of the tables `tables.TOPOLOGY`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from whystall.tools.collect.ftrace.cpus import parse_cpus
from whystall.tools.collect.tables import TOPOLOGY, filled
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Capture

UNKNOWN = -1
MOST_ROWS = 400_000
"""Rows of one table; 1,024 hosts with 18 devices each have 157,000 pairs."""
_LONG_HOST = 64


@dataclass
class Rows:
    """Rows by table, and what was not seen (code, detail). `read`: how many sources gave something."""

    sources: list[tuple[object, ...]] = field(default_factory=list)
    numa: list[tuple[object, ...]] = field(default_factory=list)
    devices: list[tuple[object, ...]] = field(default_factory=list)
    links: list[tuple[object, ...]] = field(default_factory=list)
    ranks: list[tuple[object, ...]] = field(default_factory=list)
    marks: list[tuple[object, ...]] = field(default_factory=list)
    latency: list[tuple[object, ...]] = field(default_factory=list)
    groups: list[tuple[object, ...]] = field(default_factory=list)
    not_seen: list[tuple[str, str]] = field(default_factory=list)

    def capture(self) -> Capture:
        """Return the rows as the capture of the collector `topology`."""
        rows = {name: getattr(self, name) for name in TOPOLOGY}
        for name, found in rows.items():
            if len(found) > MOST_ROWS:
                self.not_seen.append(("topology_unread", f"all but the first {MOST_ROWS} {name}"))
        tables = filled(TOPOLOGY, **{name: found[:MOST_ROWS] for name, found in rows.items()})
        seen = sum(table.height for table in tables.values())
        return Capture(
            tables=tables,
            hooks=[],
            seen=seen,
            kept=seen,
            lost=0,
            proven=bool(self.sources),
            not_seen=self.not_seen,
        )


def host_named(name: str) -> str:
    """Return the name by which inputs of one host are merged: `name` up to its first dot, but a whole IPv4 address."""
    text = clean(name, _LONG_HOST)
    return text if re.fullmatch(r"[0-9.]+", text) else text.split(".")[0]


def cpus_of(text: str) -> str:
    """Return a list of CPUs (``0-55,112-167``) as it stands; empty if it is none, or names more than Linux has."""
    text = text.strip()
    try:
        return text if text != "all" and parse_cpus(text) else ""
    except ToolError:
        return ""


def cpu_set(text: str) -> frozenset[int]:
    """Return the CPUs of a list that `cpus_of` returned."""
    return frozenset(parse_cpus(text)) if text else frozenset()
