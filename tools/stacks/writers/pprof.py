"""Write stack samples as pprof (github.com/google/pprof, proto/profile.proto), gzipped."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from whystall.tools.files.protobuf import message, number, text, varint
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.writers.paths import Stacks, Thread, summed

_UNITS = {"ns": "nanoseconds", "us": "microseconds", "ms": "milliseconds", "s": "seconds", "samples": "count"}
_FIXED = 1_000_000  # factor of weights if a unit's fractions would be lost: pprof has whole numbers


class Taken(NamedTuple):
    """When a profile was taken: its start (ns since the epoch), its length, and the period of the default event in its
    unit."""

    start_ns: int
    length_ns: int
    period: int


def pprof(profile: StackProfile, event: int, path: Path) -> int:
    """Write all events to `path`: see `write_pprof`."""
    with path.open("wb") as raw:
        return write_pprof(profile, event, raw)


def write_pprof(profile: StackProfile, event: int, raw: IO[bytes], taken: Taken | None = None) -> int:
    """Write all events, `event` as the file's default; return the number of samples.

    pprof has whole numbers: an event with fractions is written in millionths, which its unit states. Frames that no
    sample has are left out; the others are numbered without gaps, as receivers require.
    """
    strings: dict[str, int] = {"": 0}
    stacks = Stacks(profile)

    def string(value: str) -> int:
        return strings.setdefault(value, len(strings))

    order = [event, *(other for other in profile.events["event"].to_list() if other != event)]
    values: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0] * len(order))
    for place, one in enumerate(order):
        for stack, thread, weight in summed(profile, one, "stack", "thread"):
            values[int(stack), int(thread)][place] += weight
    scale = [1 if all(row[place].is_integer() for row in values.values()) else _FIXED for place in range(len(order))]
    events = {number_: (name, unit) for number_, name, unit, _ in profile.events.iter_rows()}
    used: dict[int, int] = {}
    rows = profile.frames.rows()
    with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file:
        for place, one in enumerate(order):
            name, unit = events[one]
            unit = _UNITS.get(unit, unit) if scale[place] == 1 else f"{unit}/{_FIXED}"
            file.write(message(1, number(1, string(name)) + number(2, string(unit))))
        for (stack, thread), row in values.items():
            ids = b"".join(varint(used.setdefault(frame, len(used) + 1)) for frame in stacks.frames(stack))
            counts = b"".join(varint(round(value * by)) for value, by in zip(row, scale, strict=True))
            labels = _labels(stacks.threads[thread], string)
            file.write(message(2, message(1, ids) + message(2, counts) + labels))
        for frame, one in used.items():
            _, name, source, line, kind = rows[frame]
            kernel = number(2, 1) if kind == "kernel" else b""
            lines = message(4, number(1, one) + (number(2, line) if line else b""))
            file.write(message(4, number(1, one) + kernel + lines))
            file.write(message(5, number(1, one) + number(2, string(name)) + number(4, string(source))))
        file.write(message(3, number(1, 1) + number(5, string("[kernel.kallsyms]"))))
        choice = number(14, string(events[event][0]))
        if taken is not None:
            name, unit = events[event]
            period = number(1, string(name)) + number(2, string(_UNITS.get(unit, unit)))
            choice += number(9, taken.start_ns) + number(10, taken.length_ns) + message(11, period)
            choice += number(12, taken.period)
        for value in strings:
            file.write(text(6, value))
        file.write(choice)
    return len(values)


def _labels(sampled: Thread, string: Callable[[str], int]) -> bytes:
    found = b""
    if sampled.comm:
        found += message(3, number(1, string("thread")) + number(2, string(sampled.comm)))
    if sampled.tid >= 0:
        found += message(3, number(1, string("tid")) + number(3, sampled.tid))
    if sampled.pid >= 0:
        found += message(3, number(1, string("pid")) + number(3, sampled.pid))
    return found
