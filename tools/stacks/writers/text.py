"""Write stack samples as text: folded stacks, and the format of ``perf script``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import polars as pl

from whystall.tools.stacks.model import NO_TIME, StackProfile
from whystall.tools.stacks.names import UNKNOWN, written
from whystall.tools.stacks.readers.folded import COLON
from whystall.tools.stacks.writers.paths import Stacks, figure, summed

_NO_STACK = "[no stack]"


def folded(profile: StackProfile, event: int, path: Path) -> int:
    """Write ``command;a;b;c 12`` lines and return their number. Fractions are kept; the format has no times.

    The command, where it is known, is the outermost name, as stackcollapse-perf.pl writes it: threads of one name are
    added up, those of different names stay apart.
    """
    names = [written(*row).replace(";", COLON) for row in profile.frames.select("name", "file", "line", "kind").rows()]
    stacks, sums = Stacks(profile), dict[tuple[str, int], float]()
    for thread, stack, weight in summed(profile, event, "thread", "stack"):
        key = stacks.threads[int(thread)].comm.replace(";", COLON), int(stack)
        sums[key] = sums.get(key, 0.0) + weight
    with path.open("w", encoding="utf-8") as file:
        for (comm, stack), weight in sums.items():
            frames = [names[frame] for frame in reversed(stacks.frames(stack))] or [_NO_STACK]
            file.write(f"{';'.join([comm, *frames] if comm else frames)} {figure(weight)}\n")
    return len(sums)


def perf_script(profile: StackProfile, event: int, path: Path) -> int:
    """Write samples as ``perf script`` does and return their number. Weights take the place of perf's period.

    Addresses are invented: they number the frames. An instant is written if there is one. For an event that is not one
    of perf's clocks a comment states the unit, which our own reader parses.
    """
    rows = profile.frames.select("name", "file", "line", "kind").rows()
    lines = [f"\t{(number + 1) << 4:16x} {_symbol(*row)}\n" for number, row in enumerate(rows)]
    stacks, written_ = Stacks(profile), 0
    name = "_".join(cast("str", profile.events["name"][event]).split()).strip(":") or "samples"
    unit = "_".join(cast("str", profile.events["unit"][event]).split()) or "samples"
    chosen = profile.samples.filter(pl.col("event") == event).sort("at_ns", maintain_order=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(f"# {name}: weights in {unit}\n")
        for at, thread, stack, weight in chosen.select("at_ns", "thread", "stack", "weight").iter_rows():
            sampled = stacks.threads[thread]
            ids = f"{sampled.pid}/{sampled.tid}" if sampled.pid >= 0 else str(max(sampled.tid, 0))
            when = f" {at // 1_000_000_000}.{at % 1_000_000_000:09}:" if at != NO_TIME else ""
            file.write(f"{sampled.comm.strip() or UNKNOWN} {ids}{when} {figure(weight)} {name}: \n")
            file.writelines(lines[frame] for frame in stacks.frames(stack))
            file.write("\n")
            written_ += 1
    return written_


def _symbol(name: str, file: str, line: int, kind: str) -> str:
    if kind == "kernel":
        return f"{name} ({file if file.startswith('[') else '[kernel.kallsyms]'})"
    if kind == "native" and file and not line:
        return f"{name} ({file})"
    return f"{written(name, file, line, kind)} ({UNKNOWN})"
