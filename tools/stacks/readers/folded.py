"""Read folded stacks: ``main;load;read 12`` per line; also py-spy's raw format, and difffolded's two counts per line.

Lines are read in columns, so that millions of them take seconds; memory holds distinct stacks, not lines.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Format, Head, Match
from whystall.tools.stacks.columns import FrameTable, tables_of
from whystall.tools.stacks.forest import EMPTY, Forest, Ints, grown, merged
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.names import named
from whystall.tools.stacks.readers.text import Text
from whystall.tools.stacks.tree import labels_of

BEFORE, AFTER = "before", "after"
"""The events of a file with two counts a line."""
COLON = "\\x3b"
"""Stands for a semicolon within a name, as our writer has it."""
MOST_NODES = 30_000_000
"""Limit of the nodes of the tree of all stacks; about 100 bytes each during a merge."""
_TOGETHER = 16_000_000
_AT_ONCE = 16 << 20  # bytes of distinct lines that are split at once
_BLOCKS = 32  # blocks whose lines wait at most: each keeps its block in memory
_APART = b"\x01"  # separates columns; lines are read as a table of a single column
_LINE = pl.Schema({"line": pl.String})
LINES = pl.Schema({"line": pl.String, "times": pl.Int64})
"""Distinct lines, and their number."""
_REFUSED = re.compile(r"[^;\s].*\s(?:-[0-9][0-9.e+]*|[-+]?(?:nan|inf(?:inity)?))\s*", re.IGNORECASE)
_TAIL = 64  # characters that hold the counts of a line
_COUNTS = {1: r"([ \t]+[^ \t;]+[ \t]*)$", 2: r"([ \t]+[^ \t;]+[ \t]+[^ \t;]+[ \t]*)$"}
_LAST, _LAST_BUT_ONE = r"([^ \t]+)[ \t]*$", r"([^ \t]+)[ \t]+[^ \t]+[ \t]*$"


def read(path: Path) -> StackProfile:
    """Return the stacks in `path`. Counts may be fractions; negative and non-finite ones make a line odd.

    The unit is ``samples``, since the format has none. Two counts on every line (difffolded) are the events ``before``
    and ``after``. Raises `ToolError`: bad_trace (no such line in it, more than `MOST_NODES`), io_error.
    """
    text = Text(path)
    reader = _Reader(path)
    for block in text.raw():
        reader.add(block)
    reader.read_pending()
    if not reader.columns:
        raise text.nothing("a folded stack like a;b;c 12")
    reader.odd += text.odd
    return reader.profile()


def lines_of(lines: pl.DataFrame, columns: int) -> tuple[pl.DataFrame, int]:
    """Return (`stack`, `1`, `2`...) of the `LINES` that end with so many counts, and the number of the others."""
    some = lines.filter(pl.col("line").str.len_bytes() > 0)
    line = some.with_columns(tail=pl.col("line").str.tail(_TAIL).str.extract(_COUNTS[columns]))
    tail = pl.col("tail").str
    texts = {str(columns): tail.strip_chars(" \t") if columns == 1 else tail.extract(_LAST)}
    if columns == 2:
        texts["1"] = tail.extract(_LAST_BUT_ONE)
    counts = [text.cast(pl.Float64, strict=False).alias(name) for name, text in texts.items()]
    found = line.select("times", *counts, stack=pl.col("line").str.strip_suffix(pl.col("tail")))
    sound = pl.all_horizontal(*((pl.col(name).is_finite() & (pl.col(name) >= 0)).fill_null(False) for name in texts))
    kept = found.filter(sound & pl.col("stack").str.contains(r"[^; \t]"))
    odd = int(some["times"].sum()) - int(kept["times"].sum())
    return kept.select("stack", *(pl.col(name) * pl.col("times") for name in texts)), odd


def _split(block: bytes) -> pl.DataFrame:
    """Return the `LINES` of a block, each once."""
    if not block.isascii():
        block = block.decode("utf-8", "backslashreplace").encode()
    block = block.replace(_APART, b"\\x01")
    lines = pl.read_csv(block, has_header=False, separator=_APART.decode(), quote_char=None, schema=_LINE)
    return lines.group_by("line").agg(pl.len().cast(pl.Int64).alias("times"))


class _Reader:
    def __init__(self, path: Path) -> None:
        self.columns = 0  # number of counts; 0: unknown yet
        self.odd = 0
        self._path = path
        self._frames = FrameTable()
        self._row_of: dict[str, int] = {}
        self._forest, self._weights = EMPTY, np.zeros((2, 0))
        self._lines: list[pl.DataFrame] = []
        self._bytes = 0
        self._parts: list[tuple[Forest, Ints, NDArray[np.float64]]] = []
        self._pending = 0

    def add(self, block: bytes) -> None:
        """Add some lines."""
        lines = _split(block)
        self._lines.append(lines)
        self._bytes += int(lines["line"].str.len_bytes().sum())
        if self._bytes > _AT_ONCE or len(self._lines) > _BLOCKS:
            self.read_pending()

    def read_pending(self) -> None:
        """Read the collected lines, equal ones together."""
        together = pl.concat([pl.DataFrame(schema=LINES), *self._lines])
        self._lines, self._bytes = [], 0
        lines, odd = lines_of(together, self.columns or 1)
        if not self.columns and lines.height:
            both, other = lines_of(together, 2)
            self.columns = 2 if other == odd and both.height else 1
            lines = both if self.columns == 2 else lines
        self.odd += odd
        if lines.is_empty():
            return
        names = [str(number + 1) for number in range(self.columns)]
        stacks = lines.group_by("stack").agg(pl.col(names).sum()).sort("stack")  # neighbours share most
        parts = stacks.select(pl.col("stack").str.split(";"))["stack"]
        codes, row = self._coded(parts.explode())
        forest, leaf = grown(codes, parts.list.len().to_numpy().astype(np.int64))
        self._parts.append((replace(forest, frame=row[forest.frame]), leaf, stacks.select(names).to_numpy().T))
        self._pending += len(forest)
        if self._pending > max(_TOGETHER, len(self._forest)):
            self._lay_together()

    def profile(self) -> StackProfile:
        """Return everything read; frames in the order of their labels, as `call_tree` requires."""
        frames = self._frames.table()
        by_label = frames.select(labels_of(frames), "frame", thread=pl.col("kind") == "thread").sort("label", "thread")
        order = by_label["frame"].to_numpy()
        self._lay_together(np.argsort(order))
        frames = frames[order].with_columns(frames["frame"])
        found = [np.flatnonzero(row) for row in self._weights]
        samples = {
            "stack": np.concatenate(found),
            "event": np.repeat(np.arange(len(found)), [len(one) for one in found]),
            "weight": np.concatenate([row[one] for row, one in zip(self._weights, found, strict=True)]),
        }
        names = (BEFORE, AFTER) if self.columns == 2 else ("samples",)
        events = [(name, "samples", 0.0) for name in names]
        tables = tables_of(frames, self._forest, events, samples)
        return StackProfile(tables, "folded", notes=(("odd_lines", str(self.odd)),) if self.odd else ())

    def _coded(self, texts: pl.Series) -> tuple[Ints, Ints]:
        """Return a number for each text, and for each number the row in the frames."""
        codes = texts.cast(pl.Categorical(pl.Categories.random())).to_physical().to_numpy()
        at = np.full(int(codes.max()) + 1, -1, np.int32)
        at[codes] = np.arange(len(codes), dtype=np.int32)
        used = np.flatnonzero(at >= 0)
        rows = self._row_of
        found = np.zeros(len(at), np.int32)
        for code, text in zip(used, texts.gather(at[used]).to_list(), strict=True):
            row = rows.get(text)
            if row is None:
                row = rows[text] = self._frames.row(named(text.replace(COLON, ";")))
            found[code] = row
        return codes, found

    def _lay_together(self, number: Ints | None = None) -> None:
        """Merge what was read so far into one tree, with other `number`s for the frames."""
        parts, self._parts = self._parts, []
        forests = [self._forest, *(part[0] for part in parts)]
        if number is not None:
            forests = [replace(forest, frame=number[forest.frame]) for forest in forests]
        forest, node_of = merged(forests)
        nodes = np.concatenate(
            [node_of[0], *(nodes[leaf] for (_, leaf, _), nodes in zip(parts, node_of[1:], strict=True))]
        )
        counts = np.concatenate([self._weights[: self.columns], *(part[2] for part in parts)], axis=1)
        weights = np.array([np.bincount(nodes, row, len(forest)) for row in counts])
        self._forest, self._weights, self._pending = forest, weights, 0
        if len(forest) > MOST_NODES:
            raise ToolError(
                ErrorCode.BAD_TRACE,
                f"{self._path.name} has more than {MOST_NODES // 1_000_000} million different calls in its stacks",
                "fold by function instead of by line or address, or fold a part of the profile",
            )


def detect(head: Head) -> Match:
    """Return POSSIBLE for text whose lines mostly end with a number."""
    lines = head.lines
    sound, odd = lines_of(pl.DataFrame({"line": lines, "times": 1}, schema=LINES), 1)
    if sound.height and sound.height >= odd:
        return Match.POSSIBLE
    # lines with negative counts are refused, but are of this format
    refused = sum(_REFUSED.fullmatch(line) is not None for line in lines)
    separated = any(";" in line for line in lines)
    return Match.POSSIBLE if refused and separated and sound.height + refused > max(odd - refused, 0) else Match.NO


FORMAT = Format("folded", detect, read)
