"""Read what the Ascend profilers measure per collective: ``communication.json``, ``communication_matrix.json``.

Per operation start, elapsed time and its parts (Elapse = Transit + Wait + Idle, ms); per pair of ranks the bytes, the
transport and the time (MB are 10^6 bytes). Ranks are those of the group, not of the job. ``analysis.db`` holds the same
in tables.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from whystall.tools.contract.errors import ToolError
from whystall.tools.files.input import opened
from whystall.tools.timeline.profile_reading.groups import number
from whystall.tools.timeline.profile_reading.numbers import nanoseconds

_LIMIT = 512 << 20
_STEP = re.compile(r"step([0-9]{1,9})")
_PAIR = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_TOTAL = re.compile(r".*-total")
SUM = "Total Op Info"
"""The sum of all operations, listed among them."""
_LARGEST = 2.0**62
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True)
class Time:
    """One operation; `step` -1 unknown. `wait_ns`: time without any transfer."""

    name: str
    group: str
    start_ns: int
    elapse_ns: int
    wait_ns: int
    step: int


@dataclass(frozen=True)
class Pair:
    """Bytes one rank of `group` sent another, numbered within the group. `label`: which operations: all of a kind
    (``allreduce-total``), or a selected one (``-top1``), then `operation` is its name."""

    step: int
    group: str
    label: str
    operation: str
    source: int
    target: int
    transport: str
    bytes: int
    transit_ns: int


@dataclass
class Measured:
    """All measures; `odd` counts entries that could not be read."""

    times: list[Time] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    odd: int = 0

    def time(self, name: str, group: object, start: object, parts: Sequence[object], step: object) -> None:
        """Add an operation; `parts`: elapsed, wait and idle ms."""
        begin = nanoseconds([start if isinstance(start, (int, float, str)) else ""])[0]
        elapse, wait, idle = (_scaled(part, 1e6) for part in parts)
        if begin is None or begin <= 0 or elapse < 0 or begin + elapse >= 2**63:
            self.odd += 1
            return
        waited = min(wait + idle, elapse) if wait >= 0 and idle >= 0 else -1
        self.times.append(Time(name, str(group), int(begin), elapse, waited, step_of(step)))

    def pair(
        self,
        place: tuple[object, object, object, object],
        ranks: tuple[object, object],
        transport: object,
        size: object,
        took: object,
    ) -> None:
        """Add a pair; `place`: step, group, label, operation; `size` in MB, `took` in ms."""
        step, group, label, operation = place
        source, target = (number(rank, 2**31 - 1) for rank in ranks)
        sent, transit = _scaled(size, 1e6), _scaled(took, 1e6)
        if source < 0 or target < 0 or sent < 0 or transit < 0:
            self.odd += 1
            return
        self.pairs.append(
            Pair(
                step_of(step), str(group), str(label), str(operation or ""), source, target,
                str(transport or ""), sent, transit,
            )
        )  # fmt: skip

    def of_links(self) -> Iterator[Pair]:
        """Yield each operation once: the totals of its kind if there are any, else the selected ones."""
        totals = {(p.step, p.group, p.label.rpartition("-")[0]) for p in self.pairs if _TOTAL.fullmatch(p.label)}
        returned = set()
        for pair in self.pairs:
            if (pair.step, pair.group, pair.label.rpartition("-")[0]) in totals:
                if _TOTAL.fullmatch(pair.label):
                    yield pair
                continue
            key = (pair.step, pair.group, pair.operation or pair.label, pair.source, pair.target)
            if key not in returned:
                returned.add(key)
                yield pair


def of_json(directory: Path) -> Measured:
    """Read the files in ``ASCEND_PROFILER_OUTPUT``; one that is missing or damaged is left out and counted.

    ``communication.json``: ``{"step50": {"collective": {"hcom_allReduce__586_0_1@11394183861583396586": {"Communication
    Time Info": {"Start Timestamp(us)": 1736413971558972.9, "Elapse Time(ms)": 2.86, "Transit Time(ms)": 0.73, "Wait
    Time(ms)": 2.11, "Idle Time(ms)": 0.02}}}}}``
    """
    measured = Measured()
    for step, name, operation in _entries(directory / "communication.json", measured):
        operation_name, _, group = name.partition("@")
        part = operation.get("Communication Time Info")
        if operation_name == SUM:
            continue
        if not isinstance(part, dict):
            measured.odd += 1
            continue
        parts = [part.get(f"{what} Time(ms)") for what in ("Elapse", "Wait", "Idle")]
        measured.time(operation_name, group, part.get("Start Timestamp(us)"), parts, step)
    for step, name, operation in _entries(directory / "communication_matrix.json", measured):
        label, _, group = name.partition("@")
        for ranks, link in operation.items():
            pair = _PAIR.fullmatch(ranks)
            if pair is None or not isinstance(link, dict):
                measured.odd += 1
                continue
            measured.pair(
                (step, group, label, link.get("Op Name")),
                (pair.group(1), pair.group(2)),
                link.get("Transport Type"),
                link.get("Transit Size(MB)"),
                link.get("Transit Time(ms)"),
            )
    return measured


def step_of(label: object) -> int:
    """Return the number in a label ``step50``; -1 without one."""
    match = _STEP.fullmatch(label) if isinstance(label, str) else None
    return number(match.group(1), 2**31 - 1) if match else -1


def _entries(path: Path, measured: Measured) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield step, name and content per operation of a file: step -> p2p or collective -> name."""
    try:
        with opened(path) as file:
            content = file.read(_LIMIT)
        steps = msgspec.json.decode(content, type=dict[str, dict[str, dict[str, msgspec.Raw]]])
    except FileNotFoundError:
        return
    except (OSError, EOFError, zlib.error, ToolError, *_ERRORS):
        measured.odd += 1
        return
    for step, kinds in steps.items():
        for operations in kinds.values():
            for name, raw in operations.items():
                try:
                    entry = msgspec.json.decode(raw)
                except _ERRORS:
                    entry = None
                if isinstance(entry, dict):
                    yield step, name, entry
                else:
                    measured.odd += 1


def _scaled(value: object, by: float) -> int:
    """Return a number of ms or MB times a million, whole; -1 if it is no number or negative."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return -1
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST / by:
        return -1
    return round(value * by)
