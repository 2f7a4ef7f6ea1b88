"""Read ``cluster_communication.json`` of msprof-analyze: the operations of all ranks, as ``communication.json`` has
those of one.

    {"(0, 1)": {"step13": {"hcom_allReduce__586_0_1@11394183861583396586": {"0": {"Communication Time Info": {"Start
     Timestamp(us)": 1736413971558972.9, "Elapse Time(ms)": 2.86, "Wait Time(ms)": 2.11, "Idle Time(ms)": 0.02}}}}}}
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import polars as pl

from whystall.tools.files.input import DAMAGED, bad, opened, unreadable
from whystall.tools.timeline.ascend.groups import number_of
from whystall.tools.timeline.ascend.measured import SUM, Measured, step_of
from whystall.tools.timeline.collectives import canonical_op
from whystall.tools.timeline.profile_reading.groups import RANK_LIMIT, number
from whystall.tools.timeline.tables.rows import ROWS

_LIMIT = 1 << 30
_OPERATIONS = dict[str, dict[str, dict[str, dict[str, msgspec.Raw]]]]
_REMEDY = "run msprof-analyze cluster again"
_GROUP = re.compile(r"\([0-9, ]*\)")


def communication(path: Path) -> tuple[pl.DataFrame, int]:
    """Return the rows (`rows.ROWS`) of the file, and how many entries could not be read.

    Raises `ToolError` (bad_trace, io_error).
    """
    try:
        with opened(path) as file:
            content = file.read(_LIMIT + 1)
        if len(content) > _LIMIT:
            raise bad(path, f"more than {_LIMIT >> 20} MiB", "give fewer steps")
        groups = msgspec.json.decode(content, type=_OPERATIONS)
    except OSError as error:
        raise unreadable(path, error) from None
    except (*DAMAGED, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad(path, "not the operations of a cluster", _REMEDY) from None
    found: list[tuple[object, ...]] = []
    measured = Measured()
    for ranks, steps in groups.items():
        for step, operations in steps.items():
            for name, by_rank in operations.items():
                plain, _, group = name.partition("@")
                if plain != SUM:
                    for rank, raw in by_rank.items():
                        _take(
                            measured,
                            (plain, f"{group}|{ranks if _GROUP.fullmatch(ranks) else ''}", step),
                            rank,
                            raw,
                            found,
                        )
    if not found:
        raise bad(path, "no operation in it can be read", _REMEDY)
    return pl.DataFrame(found, schema=ROWS, orient="row"), measured.odd


def _take(
    measured: Measured, place: tuple[str, str, str], rank: str, raw: msgspec.Raw, found: list[tuple[object, ...]]
) -> None:
    name, group, step = place
    before = len(measured.times)
    entry = msgspec.json.decode(raw)
    part = entry.get("Communication Time Info") if isinstance(entry, dict) else None
    if not isinstance(part, dict) or not 0 <= number(rank) < RANK_LIMIT:
        measured.odd += 1
        return
    parts = [part.get(f"{what} Time(ms)") for what in ("Elapse", "Wait", "Idle")]
    measured.time(name, group, part.get("Start Timestamp(us)"), parts, step)
    for one in measured.times[before:]:
        op, seq = canonical_op(name), number_of(name)
        row = (
            number(rank),
            step_of(step),
            "communication",
            name,
            one.start_ns,
            one.elapse_ns,
            None,
            op,
            group,
            -1,
            seq,
            -1,
            "",
            "",
        )
        found.append(row)
