"""Folded stacks: ``main;load;read 12`` a line. Also what py-spy calls raw, and difffolded's two counts a line.

Lines are read in columns, so that millions of them take seconds; memory holds distinct stacks, not lines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.stacks.columns import FrameTable, tables_of
from whystall.tools.stacks.forest import EMPTY, Forest, Ints, grown, merged
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.names import named
from whystall.tools.stacks.text import Text

BEFORE, AFTER = "before", "after"
"""The events of a file with two counts a line."""
MOST_NODES = 30_000_000
"""Nodes of the tree of all stacks; about 100 bytes each while they are laid together."""
_TOGETHER = 16_000_000
_TAIL = 64  # characters that hold the counts of a line
_COUNTS = {1: r"([ \t]+[^ \t;]+[ \t]*)$", 2: r"([ \t]+[^ \t;]+[ \t]+[^ \t;]+[ \t]*)$"}
_COUNT = {1: r"([^ \t]+)[ \t]*$", 2: r"([^ \t]+)[ \t]+[^ \t]+[ \t]*$"}


def read(path: Path) -> StackProfile:
    """The stacks in `path`. Counts may be fractions; negative and non-finite ones make a line odd.

    The unit is ``samples``, since the format tells none. Two counts on every line (difffolded) are the events
    ``before`` and ``after``. Raises `ToolError`: bad_trace (no such line in it, more than `MOST_NODES`), io_error.
    """
    text = Text(path)
    reader = _Reader(path)
    for block in text.blocks():
        reader.add(block)
    if not reader.columns:
        raise text.nothing("a folded stack like a;b;c 12")
    reader.odd += text.odd
    return reader.profile()


def lines_of(block: str, columns: int) -> tuple[pl.DataFrame, int]:
    """(`stack`, `1`, `2`...) of the lines that end with so many counts, and how many do not."""
    line = pl.Series("line", [block]).str.split("\n").explode().to_frame().filter(pl.col("line").str.len_bytes() > 0)
    tail = pl.col("line").str.tail(_TAIL).str.extract(_COUNTS[columns])
    last = tail.str.extract(_COUNT[1]).cast(pl.Float64, strict=False)
    counts = {str(columns): last}
    if columns == 2:
        counts["1"] = tail.str.extract(_COUNT[2]).cast(pl.Float64, strict=False)
    found = line.lazy().select(pl.col("line").str.strip_suffix(tail).alias("stack"), **counts)
    sound = pl.all_horizontal(*((pl.col(name).is_finite() & (pl.col(name) >= 0)).fill_null(False) for name in counts))
    some = pl.col("stack").str.strip_chars("; \t").str.len_bytes() > 0
    kept = found.filter(sound & some).collect()
    return kept, line.height - kept.height


class _Reader:
    def __init__(self, path: Path) -> None:
        self.columns = 0  # of counts; 0: not known yet
        self.odd = 0
        self._path = path
        self._frames = FrameTable()
        self._row_of: dict[str, int] = {}
        self._forest, self._weights = EMPTY, np.zeros((2, 0))
        self._parts: list[tuple[Forest, Ints, NDArray[np.float64]]] = []
        self._pending = 0

    def add(self, block: str) -> None:
        """Read some lines."""
        lines, odd = lines_of(block, self.columns or 1)
        if not self.columns and lines.height:
            both, other = lines_of(block, 2)
            self.columns = 2 if other == odd and both.height else 1
            lines = both if self.columns == 2 else lines
        self.odd += odd
        if lines.is_empty():
            return
        names = [str(number + 1) for number in range(self.columns)]
        stacks = lines.group_by("stack").agg(pl.col(names).sum()).sort("stack")  # neighbours share most
        parts = stacks.select(pl.col("stack").str.split(";"))["stack"]
        forest, leaf = grown(self._coded(parts.explode()), parts.list.len().to_numpy().astype(np.int64))
        self._parts.append((forest, leaf, stacks.select(names).to_numpy().T))
        self._pending += len(forest)
        if self._pending > max(_TOGETHER, len(self._forest)):
            self._lay_together()

    def profile(self) -> StackProfile:
        """All that was read."""
        self._lay_together()
        found = [np.flatnonzero(row) for row in self._weights]
        samples = {
            "stack": np.concatenate(found),
            "event": np.repeat(np.arange(len(found)), [len(one) for one in found]),
            "weight": np.concatenate([row[one] for row, one in zip(self._weights, found, strict=True)]),
        }
        names = (BEFORE, AFTER) if self.columns == 2 else ("samples",)
        events = [(name, "samples", 0.0) for name in names]
        tables = tables_of(self._frames.table(), self._forest, events, samples)
        return StackProfile(tables, "folded", notes=(("odd_lines", str(self.odd)),) if self.odd else ())

    def _coded(self, texts: pl.Series) -> Ints:
        """The row in the frames for each text."""
        codes = texts.cast(pl.Categorical(pl.Categories.random())).to_physical().to_numpy()
        at = np.empty(int(codes.max()) + 1, np.int64)
        at[codes] = np.arange(len(codes))
        rows = self._row_of
        found = np.zeros(len(at), np.int64)
        used = np.zeros(len(at), bool)
        used[codes] = True
        for code, text in zip(np.flatnonzero(used), texts.gather(at[used]).to_list(), strict=True):
            row = rows.get(text)
            if row is None:
                row = rows[text] = self._frames.row(named(text))
            found[code] = row
        coded: Ints = found[codes]
        return coded

    def _lay_together(self) -> None:
        parts, self._parts = self._parts, []
        if not parts:
            return
        forest, node_of = merged([self._forest, *(part[0] for part in parts)])
        weights = np.zeros((self.columns, len(forest)))
        weights[:, node_of[0]] = self._weights[: self.columns]
        for (_, leaf, counts), nodes in zip(parts, node_of[1:], strict=True):
            for row, count in zip(weights, counts, strict=True):
                np.add.at(row, nodes[leaf], count)
        self._forest, self._weights, self._pending = forest, weights, 0
        if len(forest) > MOST_NODES:
            raise ToolError(
                ErrorCode.BAD_TRACE,
                f"{self._path.name} has more than {MOST_NODES // 1_000_000} million different calls in its stacks",
                "fold by function instead of by line or address, or fold a part of the profile",
            )
