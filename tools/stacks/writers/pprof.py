"""Write stack samples as pprof (github.com/google/pprof, proto/profile.proto), gzipped."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from whystall.tools.files.protobuf import message, number, text, varint
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.writers.paths import Stacks, Thread, summed

_UNITS = {"ns": "nanoseconds", "us": "microseconds", "ms": "milliseconds", "s": "seconds", "samples": "count"}
_FIXED = 1_000_000  # what a weight is multiplied by where a unit's fractions would be lost: pprof counts whole numbers


def pprof(profile: StackProfile, event: int, path: Path) -> int:
    """Write all events, `event` as the file's own choice; how many samples.

    pprof has whole numbers: an event with fractions is written in millionths, and its unit says so.
    """
    strings: dict[str, int] = {"": 0}
    stacks = Stacks(profile)

    def told(value: str) -> int:
        return strings.setdefault(value, len(strings))

    order = [event, *(other for other in profile.events["event"].to_list() if other != event)]
    values: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0] * len(order))
    for place, one in enumerate(order):
        for stack, thread, weight in summed(profile, one, "stack", "thread"):
            values[int(stack), int(thread)][place] += weight
    scale = [1 if all(row[place].is_integer() for row in values.values()) else _FIXED for place in range(len(order))]
    events = {number_: (name, unit) for number_, name, unit, _ in profile.events.iter_rows()}
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file:
        for place, one in enumerate(order):
            name, unit = events[one]
            unit = _UNITS.get(unit, unit) if scale[place] == 1 else f"{unit}/{_FIXED}"
            file.write(message(1, number(1, told(name)) + number(2, told(unit))))
        for (stack, thread), row in values.items():
            ids = b"".join(varint(frame + 1) for frame in stacks.frames(stack))
            counts = b"".join(varint(round(value * by)) for value, by in zip(row, scale, strict=True))
            labels = _labels(stacks.threads[thread], told)
            file.write(message(2, message(1, ids) + message(2, counts) + labels))
        for row_number, name, source, line, kind in profile.frames.iter_rows():
            one = row_number + 1
            kernel = number(2, 1) if kind == "kernel" else b""
            lines = message(4, number(1, one) + (number(2, line) if line else b""))
            file.write(message(4, number(1, one) + kernel + lines))
            file.write(message(5, number(1, one) + number(2, told(name)) + number(4, told(source))))
        file.write(message(3, number(1, 1) + number(5, told("[kernel.kallsyms]"))))
        choice = number(14, told(events[event][0]))
        for value in strings:
            file.write(text(6, value))
        file.write(choice)
    return len(values)


def _labels(who: Thread, told: Callable[[str], int]) -> bytes:
    found = b""
    if who.comm:
        found += message(3, number(1, told("thread")) + number(2, told(who.comm)))
    if who.tid >= 0:
        found += message(3, number(1, told("tid")) + number(3, who.tid))
    if who.pid >= 0:
        found += message(3, number(1, told("pid")) + number(3, who.pid))
    return found
