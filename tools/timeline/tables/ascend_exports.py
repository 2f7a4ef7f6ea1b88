"""Read the tables that an Ascend profiler exports for one rank, where there is neither timeline nor database:
``step_trace_time.csv``, ``communication.json`` and ``communication_matrix.json`` in ``ASCEND_PROFILER_OUTPUT``.

The first has the sums of each step, the others the operations between ranks with their instants.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from whystall.tools.files.formats import Head, Match
from whystall.tools.files.input import bad
from whystall.tools.timeline.ascend import directory
from whystall.tools.timeline.ascend.collectives import DETAILS, with_collectives
from whystall.tools.timeline.ascend.groups import Communicators
from whystall.tools.timeline.ascend.info import info_of
from whystall.tools.timeline.ascend.measured import of_json
from whystall.tools.timeline.profile import SUMS_ONLY, TABLES, Profile
from whystall.tools.timeline.profile_reading.format import ProfileFormat
from whystall.tools.timeline.tables.format import mapping_of, read_rows
from whystall.tools.timeline.tables.ranks import profiles_of, sums_of
from whystall.tools.timeline.tables.rows import ROWS

SOURCE = "ascend_export"
_REMEDY = "export it again: torch_npu.profiler.profiler.analyse(its parent directory)"


def read(path: Path) -> Profile:
    """Return the profile in a directory with tables only. Raises `ToolError` (bad_trace, io_error)."""
    info, output = info_of(path), path / directory.OUTPUT
    rank = directory.rank_of(path, info)
    table = output / directory.STEPS
    base = Profile({name: schema.to_frame() for name, schema in TABLES.items()}, "", SOURCE)
    rows = ROWS.to_frame()
    if table.exists():
        mapping = mapping_of(Head(table), whole_directory=True)
        if mapping is None:
            raise bad(table, "its columns are not those of a step's times", _REMEDY)
        rows, notes = read_rows(table, mapping, max(rank, 0))
        base = profiles_of(rows, SOURCE, notes)[0]
    measured = of_json(output)
    if rows.is_empty() and not measured.times:
        raise bad(output / directory.OPERATIONS, "no operation in it can be read", _REMEDY)
    source, clock = (SOURCE, "real") if measured.times else (SOURCE + SUMS_ONLY, "")
    base = replace(base, rank=rank, source=source, clock=clock, bridges=info.bridges)
    found = with_collectives(base, DETAILS.to_frame(), measured, Communicators(info.groups), info, listed=False)
    groups = found.groups
    if not (groups["ranks"].list.len() > 1).any():  # then only the sums tell whether it is one stage of several
        groups = pl.concat([groups, base.groups])
    return replace(found, sums=sums_of(rows, found.collectives), groups=groups)


FORMAT = ProfileFormat(
    SOURCE,
    lambda head: (
        Match.CERTAIN if directory.is_directory(head.path) and directory.has_only_tables(head.path) else Match.NO
    ),
    read,
    lambda head: directory.rank_of(head.path, info_of(head.path)),
    lambda head: False,
    only_collectives=True,
    directory=True,
)
