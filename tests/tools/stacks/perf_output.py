"""Write what ``perf script`` prints, by its source (tools/perf/builtin-script.c: `perf_sample__fprintf_start`,
`process_event`; tools/perf/util/evsel_fprintf.c: `sample__fprintf_callchain`) and manual page. Shares no code with the
reader."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

USUAL = ("comm", "tid", "cpu", "time", "period", "event", "ip", "sym", "symoff", "dso")


@dataclass(frozen=True)
class Frame:
    ip: int
    symbol: str
    offset: int
    dso: str
    source: str = ""


@dataclass(frozen=True)
class Sample:
    """`frames`: the innermost first."""

    comm: str
    pid: int
    tid: int
    cpu: int
    at_us: int
    period: int
    event: str
    frames: tuple[Frame, ...]


def written(samples: Collection[Sample], fields: Collection[str] = USUAL, *, chains: bool = True) -> str:
    """Return the output for ``-F`` `fields`; without call chains (``-G``) the frame stands on the sample's line."""
    return "".join(_head(sample, fields, chains) + _below(sample, fields, chains) for sample in samples)


def _head(sample: Sample, fields: Collection[str], chains: bool) -> str:
    text = ""
    if "comm" in fields:
        text += f"{sample.comm} " if chains and "ip" in fields else f"{sample.comm:>16} "
    if "pid" in fields and "tid" in fields:
        text += f"{sample.pid:7}/{sample.tid:<7} "
    elif "pid" in fields or "tid" in fields:
        text += f"{sample.pid if 'pid' in fields else sample.tid:7} "
    if "cpu" in fields:
        text += f"[{sample.cpu:03}] "
    if "misc" in fields:
        text += "U    "
    if "time" in fields:
        text += f"{sample.at_us // 1_000_000:5}.{sample.at_us % 1_000_000:06}: "
    if "period" in fields:
        text += f"{sample.period:10} "
    return text + (f"{sample.event}: " if "event" in fields else "")


def _below(sample: Sample, fields: Collection[str], chains: bool) -> str:
    if "ip" not in fields:
        return "\n"
    lines = [_frame(frame, fields) for frame in sample.frames]
    if not chains:
        return f" {lines[0][1:]}" + (_branches(sample) if "brstack" in fields else "") + "\n"
    branches = _branches(sample) if "brstack" in fields else ""
    return "\n" + "".join(f"{line}\n" for line in lines) + branches + "\n"


def _frame(frame: Frame, fields: Collection[str]) -> str:
    text = f"\t{frame.ip:16x}"
    if "sym" in fields:
        text += f" {frame.symbol}" + (f"+{frame.offset:#x}" if "symoff" in fields else "")
    if "dso" in fields:
        text += f" ({frame.dso})"
    if "srcline" in fields:
        text += f"\n  {frame.source or frame.dso.rpartition('/')[2] + f'[{frame.ip:x}]'}"
    return text


def _branches(sample: Sample) -> str:
    return "".join(f" 0x{frame.ip:x}/0x{frame.ip + 16:x}/P/-/-/{number} " for number, frame in enumerate(sample.frames))


def job(count: int, seed: int = 1) -> list[Sample]:
    """Return samples of two commands that run the same code: 8 to 40 frames, whose innermost address varies."""
    chance = random.Random(seed)
    base = [
        Frame(
            0x7F0000000000 + 4096 * number, f"function_{number}<int, float>", 8 * number, f"/usr/lib/lib{number % 7}.so"
        )
        for number in range(400)
    ]
    paths = [chance.sample(base, chance.randrange(8, 40)) for _ in range(300)]
    samples = []
    for number in range(count):
        path = paths[min(int(chance.expovariate(0.02)), len(paths) - 1)]
        leaf, shift = path[0], 4 * chance.randrange(60)
        frames = (Frame(leaf.ip + shift, leaf.symbol, leaf.offset + shift, leaf.dso), *path[1:])
        comm, pid = (("python3", 4000), ("pt worker", 4100))[number % 2]
        samples.append(
            Sample(
                comm, pid, pid + number % 3, number % 8, 15_000_000_000 + 101 * number, 10_101_010, "cpu-clock", frames
            )
        )
    return samples
