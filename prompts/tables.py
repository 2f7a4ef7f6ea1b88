"""Formats records as plain text columns. Column names are field names and not translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whystall.prompts.escape import Safe, placed, plain_code, short
from whystall.prompts.quantities import quantity

Row = Mapping[str, Any]

_UNITS = {
    # before the shorter endings that are suffixes of it
    "gb_per_s": "GB/s",
    "_bytes_rate": "bytes/s",
    "_ms_per_step": "ms",
    "_ms": "ms",
    "_us": "us",
    "_s": "s",
    "_ns": "ns",
    "_pct": "pct",
    "_bytes": "bytes",
    "_rate": "1/s",
}
_BYTES = ("bytes", "bytes_asked", "bytes_returned")
# Long texts are last and not padded; of a stack the innermost frames are shown.
_WIDE = ("path", "cgroup", "kernel_stack", "user_stack")
_FRAMES = 3
_CELL = 120


def shared(rows: Sequence[Row]) -> Row:
    """Return the columns that have the same value in all of several `rows`."""
    if len(rows) < 2:
        return {}
    return {n: value for n, value in rows[0].items() if _shown(value) and all(row[n] == value for row in rows)}


def table(rows: Sequence[Row], budget: int) -> tuple[list[Safe], int]:
    """Return `rows` (with the same fields) as lines with a header within `budget` characters, and the number of rows.

    Columns that are empty in every row are omitted, and lists of records (histograms) too.
    """
    names = [n for n in (rows[0] if rows else ()) if any(_shown(row[n]) for row in rows)]
    names.sort(key=lambda n: n in _WIDE)
    cells = [[_cell(name, row[name]) for name in names] for row in rows]
    heads = [_head(name) for name in names]
    widths = [max(len(head), *(len(line[at]) for line in cells)) for at, head in enumerate(heads)] if cells else []
    lines: list[Safe] = []
    for line in [heads, *cells]:
        columns = zip(names, line, widths, strict=True)
        padded = [text if name in _WIDE else text.rjust(width) for name, text, width in columns]
        text = Safe("  ".join(padded).rstrip())
        if budget < len(text) + 1:
            break
        budget -= len(text) + 1
        lines.append(text)
    return (lines, len(lines) - 1) if len(lines) > 1 else ([], 0)


def record(row: Row) -> Safe:
    """Return a record as one line: ``name value, name value``."""
    return Safe(", ".join(f"{name} {_cell(name, value)}" for name, value in row.items() if _shown(value)))


def _shown(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and not isinstance(value[0], dict)
    return value is not None and value != "" and value is not False and not isinstance(value, dict)


def _unit(name: str) -> str | None:
    return "bytes" if name in _BYTES else next((u for end, u in _UNITS.items() if name.endswith(end)), None)


def _head(name: str) -> str:
    """Return `name` without its unit, since values have theirs."""
    end = next((end for end in _UNITS if name.endswith(end)), "")
    return name.removesuffix(end) if _UNITS.get(end) in ("ms", "us", "s", "ns") else name


def _cell(name: str, value: Any) -> str:
    if value is None or value == "" or value == [] or (name == "offset" and value < 0):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        unit = "ratio" if name == "p_value" else _unit(name)
        return quantity(value, unit) if unit else f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        return " < ".join(placed(str(item), plain_code, _CELL) for item in value[:_FRAMES])
    if name == "frame":
        return placed(value, plain_code, _CELL)
    return plain_code(value if name == "path" else short(str(value), _CELL))
