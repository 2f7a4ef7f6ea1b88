"""The collector ``proc`` of a window, from the looks of a continuous recording.

Looks are seconds apart: counters at the window's start and end are interpolated between the looks around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from whystall.tools.collect.slice_log import Entry
from whystall.tools.collect.slice_parts import PROC as KIND
from whystall.tools.collect.slice_parts import unpacked
from whystall.tools.collect.tables import PROC, filled
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.store import TableSchema

_KEYS = {
    "host": ("name",),
    "cpu_times": ("cpu",),
    "disks": ("device",),
    "cgroups": ("cgroup", "version"),
    "memory": ("cgroup", "version"),
    "processes": ("pid", "start_ticks"),
    "threads": ("pid", "tid"),
}
"""Columns that name what is counted, of tables that are interpolated."""
_Row = list[Any]


class _Look(NamedTuple):
    at: int
    rows: list[_Row]


def proc_capture(entries: Sequence[Entry], start: int, end: int, own: frozenset[int] | None = None) -> Capture | None:
    """Return the tables of the window [start, end), ns of CLOCK_MONOTONIC; None without a look. `own`: threads of these
    processes only; None: of all targets."""
    looks: dict[str, list[_Look]] = {name: [] for name in PROC}
    for entry in entries:
        if entry.kind == KIND:
            for name, rows in unpacked(entry.data).items():
                if name in looks and isinstance(rows, list):
                    looks[name].append(_Look(entry.end_ns, rows))
    if not looks["host"]:
        return None
    tables = filled(PROC, **{name: _window(name, found, start, end) for name, found in looks.items() if found})
    for name in ("threads", "affinity") if own is not None else ():
        tables[name] = tables[name].filter(pl.col("pid").is_in(own or ()))
    rows = sum(frame.height for frame in tables.values())
    return Capture(tables, ["/proc"], seen=rows, kept=rows, lost=0, proven=tables["host"]["at_ns"].n_unique() > 1)


def descendants(entries: Sequence[Entry], pids: frozenset[int]) -> frozenset[int]:
    """Return `pids` and their descendants, as far as looks found them."""
    parents: dict[int, int] = {}
    for entry in entries:
        if entry.kind == KIND:
            for row in unpacked(entry.data).get("processes", ()):
                parents[row[1]] = row[2]
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return frozenset(found)


def _window(name: str, looks: list[_Look], start: int, end: int) -> list[tuple[Any, ...]]:
    schema = PROC[name]
    inside = [look for look in looks if start < look.at < end]
    before = next((look for look in reversed(looks) if look.at <= start), None)
    after = next((look for look in looks if look.at >= end), None)
    if "at_ns" not in schema.names():
        known = before or (inside or looks)[0]
        return [tuple(row) for row in known.rows]
    rows = [row for look in inside for row in look.rows]
    if name not in _KEYS:
        rows = [*(before.rows if before else ()), *rows]
        return [tuple(row) for row in rows or (after.rows if after else ())]
    first, last = (inside[0], inside[-1]) if inside else (after, before)
    rows = _at(schema, name, start, before, first) + rows + _at(schema, name, end, last, after)
    # a count at one instant alone would look as if all of it had happened in the window
    return [tuple(row) for row in rows] if len({row[0] for row in rows}) > 1 else []


def _at(schema: TableSchema, name: str, at: int, one: _Look | None, other: _Look | None) -> list[_Row]:
    """Return the rows of an instant between two looks; none without both."""
    if one is None or other is None:
        return []
    names = schema.names()
    places = [names.index(column) for column in _KEYS[name]]
    share = (at - one.at) / max(other.at - one.at, 1)
    before = {tuple(row[place] for place in places): row for row in one.rows}
    after = {tuple(row[place] for place in places): row for row in other.rows}
    return [[at, *_between(row, after.get(key, row), share)[1:]] for key, row in before.items()]


def _between(row: _Row, other: _Row, share: float) -> _Row:
    """Interpolate each number between two rows; negative ones are unknown."""
    found = []
    for before, after in zip(row, other, strict=False):
        if isinstance(before, str | bool) or isinstance(after, str | bool) or before < 0 or after < 0:
            found.append(before)
        else:
            value = before + (after - before) * share
            found.append(value if isinstance(before, float) else round(value))
    return found
