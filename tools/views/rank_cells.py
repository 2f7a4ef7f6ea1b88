"""Reduce tables of ranks to matrices of bounded size: rows, columns and the value of each cell.

Rows are ranks, grouped by those that do the same work. More ranks or steps than fit are binned, and the matrix states
how many.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

MOST_RANKS = 512
MOST_STEPS = 1000
"""Limit of rows and columns of a matrix; beyond that several are binned."""
MOST_DETAILS = 60_000
"""Cells up to which the peers' median, waiting, work and gaps are included: 2 MB of figures. With own time alone, the
largest matrices have 4 MB."""
_DETAILS = ("beside_ns", "step_ns", "wait_ns", "compute_ns", "gap_ns")
_ALONE = 2  # a group smaller than this has no peers


@dataclass(frozen=True)
class Group:
    """Ranks that do the same work. `label`: the program's name for them, may be empty."""

    label: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """Ranks in the order of rows. `cells`: the ranks of each row; `groups`: label and number of rows of each."""

    cells: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[str, int], ...]

    @property
    def binned(self) -> int:
        """Largest number of ranks in one row."""
        return max((len(cell) for cell in self.cells), default=0)

    def places(self) -> dict[int, int]:
        """Return the row of each rank."""
        return {rank: row for row, cell in enumerate(self.cells) for rank in cell}


@dataclass(frozen=True)
class Matrix:
    """Cells row by row; NaN if unknown.

    `columns`: the first step of each; `binned`: largest number of steps in one column. `shade`: the value of the
    colour. `values`: figures of the cell, by name, in ms. `means`: of own time over all steps, by row, in ms; the
    largest of several ranks.
    """

    rows: Rows
    columns: tuple[int, ...]
    binned: int
    shade: array[float]
    values: dict[str, array[float]]
    means: tuple[float, ...] = ()


def rows_of(ranks: Sequence[int], groups: Sequence[Group], most: int = MOST_RANKS) -> Rows:
    """Return the rows for `ranks`: by group in the given order, then those in no group; about `most` rows at most."""
    known = set(ranks)
    placed: set[int] = set()
    parts: list[tuple[str, list[int]]] = []
    for group in groups:
        members = sorted((set(group.ranks) & known) - placed)
        placed.update(members)
        if members:
            parts.append((group.label, members))
    if rest := sorted(known - placed):
        parts.append(("", rest))
    width = max(math.ceil(len(known) / most), 1)
    cells: list[tuple[int, ...]] = []
    sizes = []
    for label, members in parts:
        before = len(cells)
        cells += [tuple(members[at : at + width]) for at in range(0, len(members), width)]
        sizes.append((label, len(cells) - before))
    return Rows(tuple(cells), tuple(sizes))


def step_matrix(own: pl.DataFrame, groups: Sequence[Group]) -> Matrix:
    """Return the own time of each rank in each step: `shade` is how much it is above (below: negative) the median of
    its peers in that step, as a share of it. A rank without peers is compared with its own median over all steps.

    `own` has rank, step, own_ns and any of step_ns, wait_ns, compute_ns, gap_ns (negative: unknown). Binned steps show
    the mean, binned ranks the slowest.
    """
    rows = rows_of(own["rank"].unique().to_list(), groups)
    steps = sorted(own["step"].unique().to_list())
    width = max(math.ceil(len(steps) / MOST_STEPS), 1)
    columns = tuple(steps[::width])
    peers = {rank: number for number, group in enumerate(groups) if len(group.ranks) >= _ALONE for rank in group.ranks}
    median = pl.col("own_ns").median()
    compared = own.with_columns(
        peers=pl.col("rank").replace_strict(peers, default=-1, return_dtype=pl.Int64),
        row=pl.col("rank").replace_strict(rows.places(), return_dtype=pl.Int64),
        column=pl.col("step").replace_strict(
            {step: place // width for place, step in enumerate(steps)}, return_dtype=pl.Int64
        ),
    ).with_columns(
        beside_ns=pl.when(pl.col("peers") >= 0).then(median.over("peers", "step")).otherwise(median.over("rank"))
    )
    details = [name for name in _DETAILS if name in compared.columns]
    compared = compared.with_columns(known(*details))
    each = compared.group_by("row", "rank", "column").agg(pl.col("own_ns", *details).mean())
    ratio = pl.col("own_ns") / pl.col("beside_ns") - 1
    shaded = each.with_columns(shade=pl.when(pl.col("beside_ns") > 0).then(ratio).otherwise(None)).sort(
        "shade", "rank", descending=[True, False], nulls_last=True
    )
    slowest = shaded.group_by("row", "column", maintain_order=True).first()
    size = (len(rows.cells), len(columns))
    names = ["own_ns", *(details if size[0] * size[1] <= MOST_DETAILS else ())]
    values = {name.removesuffix("_ns"): _dense(slowest, name, size, 1e-6) for name in names}
    of_rank = compared.group_by("row", "rank").agg(pl.col("own_ns").mean()).group_by("row").agg(pl.col("own_ns").max())
    means = tuple((of_rank.sort("row")["own_ns"] / 1e6).to_list())
    return Matrix(rows, columns, width, _dense(slowest, "shade", size), values, means)


def known(*names: str) -> pl.Expr:
    """Return the columns `names`, null where they are negative: unknown."""
    columns = pl.col(*names)
    return pl.when(columns >= 0).then(columns)


def wait_matrix(waits: pl.DataFrame, ranks: Sequence[int], steps: int) -> Matrix:
    """Return how long each rank (row) waited for another (column), ms per step. `waits`: waiter, last, wait_ns."""
    rows = rows_of(ranks, ())
    places = rows.places()
    known = pl.col("waiter").is_in(list(places)) & pl.col("last").is_in(list(places))
    sums = (
        waits.filter(known & (pl.col("waiter") != pl.col("last")))
        .with_columns(
            row=pl.col("waiter").replace_strict(places, return_dtype=pl.Int64),
            column=pl.col("last").replace_strict(places, return_dtype=pl.Int64),
        )
        .group_by("row", "column")
        .agg(pl.col("wait_ns").sum() / max(steps, 1))
    )
    count = len(rows.cells)
    shade = _dense(sums, "wait_ns", (count, count), 1e-6, empty=0.0)
    return Matrix(rows, tuple(cell[0] for cell in rows.cells), rows.binned, shade, {})


def _dense(
    frame: pl.DataFrame, name: str, size: tuple[int, int], factor: float = 1.0, empty: float = math.nan
) -> array[float]:
    """Return column `name` of a frame with row and column as cells, row by row; `empty` where the frame has none."""
    out = array("f", [empty]) * (size[0] * size[1])
    places = (frame["row"] * size[1] + frame["column"]).to_list()
    for place, value in zip(places, (frame[name].cast(pl.Float64) * factor).to_list(), strict=True):
        if value is not None:
            out[place] = value
    return out
