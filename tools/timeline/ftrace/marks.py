"""Parse lines of ftrace's text that are no events: comments, losses reported by the tracer, unreadable lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from whystall.tools.contract.text import clean
from whystall.tools.timeline import clocks
from whystall.tools.timeline.clocks import ClockPoint

_CAPTURE = "# whystall: "
_LOST = "# whystall-lost: "
# The kernel's pipe, and trace-cmd; the third: the oldest events of this CPU were overwritten. ``CPU:1 [LOST 15
# EVENTS]``, ``CPU:0 [15 EVENTS DROPPED]``
_LOSS = (
    r"^CPU:(?P<cpu>\d{1,5}) \[LOST (?:(?P<lost>\d{1,15}) )?EVENTS\]\s*$",
    r"^CPU:(?P<cpu>\d{1,5}) \[(?:(?P<lost>\d{1,15}) )?EVENTS DROPPED\]\s*$",
    r"^#+ CPU (?P<cpu>\d{1,5}) buffer started #+\s*$",
)
# trace-cmd's first lines, atrace's, and stacks.
_HARMLESS = r"^(?:CPU \d+ is empty|version = .*|cpus=\d+|capturing trace\.\.\..*|TRACE:|\s*=>\s.*|\s*)$"
LOSSES = pl.Schema({"row": pl.get_index_type(), "cpu": pl.Int32, "lost": pl.Int64, "began": pl.Boolean})


@dataclass(frozen=True)
class Marks:
    """Of one block: `losses` (`LOSSES`; `began`: no event of this CPU was kept before), comments (`row`, `line`) and
    unreadable lines (`row`, `line`)."""

    losses: pl.DataFrame
    comments: pl.DataFrame
    odd: pl.DataFrame


def sort(lines: pl.DataFrame) -> Marks:
    """Classify lines that are no events."""
    if lines.is_empty():
        return Marks(LOSSES.to_frame(), lines, lines)
    line = pl.col("line")
    lines = lines.filter(~line.str.contains(_HARMLESS))  # an empty line is null
    losses = []
    for pattern in _LOSS:
        groups = lines.select("row", line.str.extract_groups(pattern).alias("groups")).unnest("groups")
        lost = pl.col("lost") if "lost" in groups.columns else pl.lit(None)
        found = groups.filter(pl.col("cpu").is_not_null())
        lost = lost.cast(pl.Int64, strict=False).fill_null(-1)
        losses.append(found.select("row", pl.col("cpu").cast(pl.Int32), lost=lost, began="lost" not in groups.columns))
    every = pl.concat([LOSSES.to_frame(), *losses]).sort("row")
    lines = lines.join(every, on="row", how="anti", maintain_order="left")
    comment = line.str.starts_with("#")
    return Marks(every, lines.filter(comment), lines.filter(~comment))


@dataclass(frozen=True)
class Header:
    """The content of our own comments: the trace's clock (empty: unknown), the CPUs traced (none: unknown), the host's
    clocks, the events lost in all by CPU, and the number of the file in its series (1: the first). `filtered`: only
    events of some processes were kept; `broken_off`: its recorder died before ending it."""

    clock: str = ""
    cpus: tuple[int, ...] = ()
    points: tuple[ClockPoint, ...] = ()
    lost: dict[int, int] = field(default_factory=dict)
    part: int = 1
    filtered: bool = False
    broken_off: bool = False


def header(comments: Sequence[str]) -> Header:
    """Parse our own comments; a damaged one is ignored."""
    capture: dict[str, Any] = {}
    lost: dict[int, int] = {}
    for line in comments:
        if line.startswith(_CAPTURE):
            capture = _object(line, _CAPTURE)
        elif line.startswith(_LOST):
            entry = _object(line, _LOST)
            cpu, counts = (_cpu(entry.get("cpu")), (entry.get("overrun", 0), entry.get("dropped", 0)))
            if cpu is not None and all(isinstance(count, int) and 0 <= count < 1 << 62 for count in counts):
                lost[cpu] = lost.get(cpu, 0) + sum(counts)
    listed, clock, part = (capture.get(name) for name in ("cpus", "clock", "part"))
    cpus = {cpu for one in listed if (cpu := _cpu(one)) is not None} if isinstance(listed, list) else set()
    points = [point for line in comments if (point := clocks.parse(line)) is not None and _fits(point)]
    return Header(
        clock=clean(clock, 32) if isinstance(clock, str) else "",
        cpus=tuple(sorted(cpus)),
        points=tuple(points),
        lost=lost,
        part=part if isinstance(part, int) else 1,
        filtered="pids" in capture,
        broken_off="buffer_kb" in capture and not lost,  # a recorder ends with its losses, even without any
    )


def _object(line: str, mark: str) -> dict[str, Any]:
    try:
        value = json.loads(line[len(mark) :])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _cpu(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 16 else None


def _fits(point: ClockPoint) -> bool:
    return all(abs(value) < 1 << 63 for value in vars(point).values())
