"""Measure converting text of tracers, from start to end of the process: ``perf script`` to folded stacks, compared with
stackcollapse-perf.pl of FlameGraph (or a Perl program that does the same, where it is not installed), and ftrace's text
to Chrome's JSON, compared with a regular expression per line."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import ftrace_sample
from benchmarks.common import PYTHON, ROOT, SOURCES, Metrics, Report, Row, Samples, child_command, interleave, no_tracer

_MB = 1_000_000
_SIZE = 200 * _MB
_MOST_MEMORY = 1.5
_WHYSTALL = str(Path(PYTHON).with_name("whystall"))


def write_perf_script(path: Path, size: int) -> int:
    """Write at least `size` bytes as ``perf script`` prints them and return the number of samples.

    300 call paths of 8 to 40 frames, whose innermost address varies.
    """
    chance = random.Random(1)
    frames = [
        f"\t{0x7F0000000000 + 4096 * n:16x} function_{n}<int, float>+{8 * n:#x} (/usr/lib/lib{n % 7}.so)\n"
        for n in range(400)
    ]
    paths = ["".join(chance.sample(frames, chance.randrange(7, 40))) for _ in range(300)]
    samples = 0
    with path.open("w") as file:
        while file.tell() < size:
            for _ in range(1000):
                path_ = paths[min(int(chance.expovariate(0.02)), 299)]
                leaf = 0x7E0000000000 + 4 * chance.randrange(60)
                head = f"python3 {4000 + samples % 3} [{samples % 8:03}] {15000 + samples / 5000:.6f}:"
                file.write(
                    f"{head} 10101010 cpu-clock: \n\t{leaf:16x} leaf+{leaf % 256:#x} (/usr/lib/leaf.so)\n{path_}\n"
                )
                samples += 1
    return samples


def _measure(commands: dict[str, list[str]], name: str, _: Sequence[int]) -> Metrics:
    nothing = os.open(os.devnull, os.O_WRONLY)
    pid = os.posix_spawnp(
        "setpriv", child_command(commands[name]), os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, nothing, 1)]
    )
    os.close(nothing)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{commands[name][0]} failed")
    return {"cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1000}


def _rows(what: str, peer: str, samples: Samples, most_memory: float | None) -> list[Row]:
    rows = []
    for metric, label, unit, goal in (("cpu", "CPU time", "s", 1.0), ("peak", "peak memory", "MB", most_memory)):
        ratio = samples.ratio("ours", metric, "peer")
        ours, others = (samples.spread(name, metric).text(unit, 2 if unit == "s" else 0) for name in ("ours", "peer"))
        met = ratio.median <= goal if goal else None
        rows.append(
            Row(f"{what}: {label}", ours, f"{peer}: {others}", ratio.text("", 2), f"<= {goal}" if goal else "", met)
        )
    return rows


def run(rounds: int) -> Report:
    """Measure a third of the rounds, as each takes many seconds."""
    report = Report("Converting text: `whystall stacks convert`, `whystall ftrace convert`")
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        directory = Path(name)
        stacks, trace = directory / "x.perf.txt", directory / "trace.txt"
        write_perf_script(stacks, _SIZE)
        ftrace_sample.write(trace, _SIZE // 2)
        original = shutil.which("stackcollapse-perf.pl")
        collapse = [original or "perl", *([] if original else [str(SOURCES / "collapse_perf.pl")]), str(stacks)]
        line_regex = [
            PYTHON,
            str(ROOT / "benchmarks" / "ftrace_line_json.py"),
            str(trace),
            str(directory / "peer.json"),
        ]
        folded = [_WHYSTALL, "stacks", "convert", "-i", str(stacks), "-o", str(directory / "o.folded"), "--overwrite"]
        json = [_WHYSTALL, "ftrace", "convert", "-i", str(trace), "-o", str(directory / "o.json"), "--overwrite"]
        for what, peer, most_memory, commands in (
            (f"{_SIZE // _MB} MB of perf script", original or "Perl", None, {"ours": folded, "peer": collapse}),
            (f"{_SIZE // 2 // _MB} MB of ftrace", "line by line", _MOST_MEMORY, {"ours": json, "peer": line_regex}),
        ):
            samples = interleave(dict.fromkeys(commands, no_tracer), max(rounds // 3, 2), partial(_measure, commands))
            report.rows += _rows(what, peer, samples, most_memory)
    report.notes.append("of whole processes, their start included; ours may use two CPUs, the peers one")
    return report
