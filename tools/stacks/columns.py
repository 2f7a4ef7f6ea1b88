"""Build the tables of a stack profile from columns, for readers with millions of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.contract.text import PATH_LIMIT, clean
from whystall.tools.stacks.forest import Forest
from whystall.tools.stacks.model import NO_THREAD, NO_TIME, TABLES
from whystall.tools.stacks.names import NAME_LIMIT, Name


class FrameTable:
    """Numbers frames in order of first use; names are escaped here."""

    def __init__(self) -> None:
        self._rows: dict[Name, int] = {}

    def row(self, frame: Name) -> int:
        """Return the row of a frame."""
        name, file = clean(frame.name, NAME_LIMIT), clean(frame.file, PATH_LIMIT)
        return self._rows.setdefault(Name(name, file, frame.line, frame.kind), len(self._rows))

    def table(self) -> pl.DataFrame:
        """Return all of them."""
        return numbered("frames", self._rows)


def numbered(table: str, rows: Iterable[Sequence[object]]) -> pl.DataFrame:
    """Return a table whose first column is the row's number; `rows` hold the others."""
    schema = TABLES[table]
    number, *names = schema.names()
    frame = pl.DataFrame(list(rows), schema={name: schema[name] for name in names}, orient="row", strict=False)
    return frame.select(pl.int_range(pl.len()).cast(schema[number]).alias(number), *names)


def tables_of(
    frames: pl.DataFrame,
    forest: Forest,
    events: Iterable[tuple[str, str, float]],
    samples: Mapping[str, NDArray[Any]],
    threads: Iterable[tuple[int, int, str]] = (),
) -> dict[str, pl.DataFrame]:
    """Return the tables; `samples` needs `stack`, `event` and `weight`, and may have the others."""
    count = len(samples["stack"])
    usual = {"at_ns": NO_TIME, "span_ns": 0, "thread": NO_THREAD}
    columns = {**{name: np.full(count, value, np.int64) for name, value in usual.items()}, **samples}
    stacks = {"stack": np.arange(len(forest)), "parent": forest.parent, "frame": forest.frame}
    return {
        "samples": pl.DataFrame([_column("samples", name, columns[name]) for name in TABLES["samples"]]),
        "threads": numbered("threads", ((pid, tid, clean(comm)) for pid, tid, comm in threads)),
        "stacks": pl.DataFrame([_column("stacks", name, stacks[name]) for name in TABLES["stacks"]]),
        "frames": frames,
        "events": numbered("events", ((clean(name), clean(unit), period) for name, unit, period in events)),
    }


def _column(table: str, name: str, values: NDArray[Any]) -> pl.Series:
    column: pl.Series = pl.Series(name, values).cast(TABLES[table][name])
    return column
