"""The critical paths of two spans of the history, as long as the log in full detail reaches back. Blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.tools.collect.continuous import recording_from
from whystall.tools.collect.slice_history import HistoryRow, Minute
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.history.path_data import PathDifference
from whystall.tools.history.summary import at_text, ns_of

if TYPE_CHECKING:
    from whystall.tools.recording.store import Recording

_MINUTE_NS = 60_000_000_000
_SLACK_NS = 6_000_000_000  # of the ends of a span: the log has slices of some seconds, and steps seldom end there
_NOT_KEPT = frozenset({ErrorCode.NO_OVERLAP, ErrorCode.NOT_FOUND, ErrorCode.BAD_RECORDING})
Span = tuple[int, int]
Wants = Callable[[Minute, HistoryRow], bool]


def path_history(
    directory: Path, minutes: Sequence[Minute], wanted: Wants, pid: int | None, spans: tuple[Span, Span], top: int
) -> tuple[PathDifference | None, list[BlindSpot]]:
    """Return how the critical path of the `wanted` rows' job, or of process `pid`, differs between the baseline and the
    span (`spans`, ns of CLOCK_REALTIME), and what is not known; None if it cannot be compared.

    Raises `ToolError` if a recording cannot be judged.
    """
    jobs = {job for minute, row in _rows(minutes, wanted, spans) if (job := minute.jobs.get(row.pid)) is not None}
    if pid is None and len(jobs) > 1:
        return None, [BlindSpot(code="path_several_jobs")]
    made, spots = [], []
    for label, span in zip(("baseline", "span"), spans, strict=True):
        pids = frozenset({pid} if pid is not None else {row.pid for _, row in _rows(minutes, wanted, (span,))})
        found = _recording(directory, span, pids)
        if isinstance(found, str):
            spots.append(BlindSpot(code="path_not_kept", detail=f"{label}: {found}"))
        else:
            made.append(found)
    if spots:
        return None, spots
    from whystall.tools.host.critical_path.step_accounts import path_difference

    found_paths, spots = path_difference(made[0], made[1], top)
    if found_paths is not None:
        compared = (found_paths.before, found_paths.after)
        for label, span, part in zip(("baseline", "span"), spans, compared, strict=True):
            if ns_of(part.since) - span[0] > _SLACK_NS or span[1] - ns_of(part.until) > _SLACK_NS:
                spots.append(BlindSpot(code="path_part", detail=f"{label}: {part.since} - {part.until}"))
    return found_paths, spots


def _rows(minutes: Sequence[Minute], wanted: Wants, spans: Sequence[Span]) -> Iterator[tuple[Minute, HistoryRow]]:
    for minute in minutes:
        if any(start - _MINUTE_NS < minute.minute_ns < end for start, end in spans):
            yield from ((minute, row) for row in minute.rows if wanted(minute, row))


def _recording(directory: Path, span: Span, pids: frozenset[int]) -> Recording | str:
    """Return what the log has of `pids` in `span`; if nothing, the span as text."""
    offset = time.time_ns() - time.monotonic_ns()
    start, end = (max(0, at - offset) for at in span)
    try:
        if pids and end > start:
            return recording_from(directory, start, end, pids)
    except ToolError as error:
        if error.code not in _NOT_KEPT:
            raise
    return f"{at_text(span[0])} - {at_text(span[1])}"
