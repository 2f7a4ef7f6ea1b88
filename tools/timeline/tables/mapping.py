"""The declarative mappings of tables onto the model: their fields, and the file that holds them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import yaml

Container = Literal["table", "lines", "events", "ascend_communication"]
UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Nanoseconds of a unit of time."""
REMEDY = (
    "name its columns rank, step, phase, start, end; times are seconds (of start_ms: ms) or ISO 8601; or name the file "
    "rank3.csv, without the column rank: docs/ranks.md"
)


class Where(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows that tell which ranks do the same work: `where` selects them, `ranks` is their column with a list."""

    where: dict[str, str]
    ranks: str


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks that share the operations named `match`, as the group `name`: those with equal columns `same`. A table
    without such a column has the same value on all."""

    name: str
    match: str
    same: list[str]


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The other rank of the messages named `match`: `column` is greater by `offset`, the columns `same` are equal."""

    match: str
    column: str
    offset: int
    same: list[str]


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layout of tables.

    `source`: public name of the format. `container`: a CSV or Parquet table, lines of text (`line`: their pattern),
    Chrome trace events (`marks`: what the text has), or Ascend's JSON. `file`: pattern of the file's name; its group
    ``rank`` is the rank. `rank_of`: ``directory`` - only read as part of the directory that it belongs to.
    `together`: tables of one source in a directory describe the same ranks and are read as one, unless `alternative`:
    then only without the others. They are left out beside the profiles that they were made from.

    `requires`: fields or columns that the table must have. `columns`: from fields of the model to the table's columns;
    `sums`: from phases to columns that hold their sum in a step. `phases`: from phases to patterns of the field
    ``phase``, the first that fits; `operations`: from operations to patterns of the name. `where`: patterns of columns
    that a row must fit. `clock_of_step`: each step counts from its own start. `step_is_row`: rows are steps 1, 2, ...
    `unnamed_operation`: what communication without a name is. `notes`: from the name of a metric to the blind spot that
    it stands for if it is not 0.
    """

    source: str
    container: Container
    file: str = ""
    line: str = ""
    marks: str = ""
    rank_of: Literal["", "directory"] = ""
    requires: list[str] = []
    together: bool = False
    alternative: bool = False
    unit: Literal["ns", "us", "ms", "s"] = "us"
    ticks_ns: int = 0
    columns: dict[str, str | list[str]] = {}
    sums: dict[str, str] = {}
    phases: dict[str, str] = {}
    operations: dict[str, str] = {}
    where: dict[str, str] = {}
    stages: Where | None = None
    groups: list[Group] = []
    peers: list[Peer] = []
    clock_of_step: bool = False
    step_is_row: bool = False
    unnamed_operation: str = "other"
    notes: dict[str, str] = {}

    def names(self, field: str) -> list[str]:
        """Return the columns of a table that may hold `field` of the model, the best first."""
        names = self.columns.get(field, [])
        return [names] if isinstance(names, str) else names

    @property
    def unit_ns(self) -> int:
        """Nanoseconds of the unit of its times."""
        return self.ticks_ns or UNITS[self.unit]


@cache
def mappings() -> tuple[Mapping, ...]:
    """Return all mappings, in the order of the file."""
    text = (Path(__file__).parent / "mappings.yaml").read_text(encoding="utf-8")
    # the C parser is ten times faster
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(msgspec.convert(yaml.load(text, loader), type=list[Mapping]))  # noqa: S506 - both loaders are safe


def sources() -> frozenset[str]:
    """Return the public names of all mapped formats."""
    return frozenset(one.source for one in mappings())


def first_fit(patterns: dict[str, str], text: str, default: str) -> str:
    """Return the key of the first of `patterns` (key -> pattern) that `text` fits as a whole, in any case."""
    return next((key for key, pattern in patterns.items() if re.fullmatch(pattern, text, re.IGNORECASE)), default)
