"""Evaluate flamegraph_diff on pairs of known profiles: how often it reports a change without one, and how often the
function that takes twice as long comes first.

    python -m benchmarks.profile_diff_trials [--trials N] [--recordings N] [--out FILE]

Simulated programs are those of ``tests/sampled_programs.py``: 20 functions in a tree, of random shares, either in a
loop or in random order with stays of 0.2 to 200 ms. Recordings are of ``tests/live/workloads/two_versions.c`` (root):
every pair of runs is one trial. The peer is the result of ``difffolded.pl -n``: the largest change of a function's own
share, if it is a point or more. ``--out`` replaces this benchmark's section in a report.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import polars as pl

from benchmarks.common import ROOT, Report, Row, publish, table
from whystall.agent_server.app import App
from whystall.agent_server.inputs.record_params import RecordParams
from whystall.tools.profiles.common.open_stacks import open_stacks
from whystall.tools.profiles.flamegraph_diff.comparison import compare
from whystall.tools.profiles.flamegraph_diff.interrupts import without_interrupts
from whystall.tools.profiles.flamegraph_diff.rows import rows_of
from whystall.tools.stacks.model import NO_TIME, StackProfile
from whystall.tools.stacks.tree import Part, call_tree

sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "live" / "workloads")]

# found through the paths above
from running import HERE, Running
from sampled_programs import Program, random_program, sampled

TITLE = "Differences of profiles: nothing changed, or one function takes twice as long"
POINTS = 1.0
SHORT, USUAL, LONG = {"seconds": 10, "hz": 49}, {"seconds": 30, "hz": 99}, {"seconds": 120, "hz": 199}
VERSIONS = {"encode": ("encode", ""), "digest": ("digest", ""), "calls": ("encode", "digest")}
CPU_MS, HZ = 3000, 499
Pair = tuple[StackProfile, StackProfile]


def ours(pair: Pair) -> tuple[str, str] | None:
    """Return (function, callee) of the first proven row."""
    before, after = (Part(profile) for profile in pair)
    rows = rows_of(compare(before, after), before, after)
    return next(((row.name, row.callee) for row in rows if row.role == "proven"), None)


def peer(pair: Pair) -> tuple[str, str] | None:
    """Return the function whose own share changed most."""
    tree = call_tree(*(Part(profile) for profile in pair), lines=False)
    change = np.diff(100 * tree.frame_own / tree.sums[:, None], axis=0)[0]
    most = int(np.argmax(np.abs(change)))
    return (tree.labels[most], "") if abs(change[most]) >= POINTS else None


def none_changed(what: str, pairs: Sequence[Pair]) -> Row:
    """Return the row for pairs without a change."""
    quiet = [sum(method(pair) is None for pair in pairs) for method in (ours, peer)]
    share = 100 * quiet[0] / len(pairs)
    return Row(
        f"same: {what}",
        f"no change in {quiet[0]}/{len(pairs)} ({share:.1f} %)",
        peer=f"{quiet[1]}/{len(pairs)}",
        goal=">= 95 %",
        met=share >= 95,
    )


def one_slower(what: str, pairs: Sequence[Pair], due: tuple[str, str]) -> Row:
    """Return the row for pairs of which the later has `due` (function, callee) twice as slow."""
    first = [[method(pair) for pair in pairs] for method in (ours, peer)]
    named = [sum(one == due for one in found) for found in first]
    other = sum(one not in (None, due) for one in first[0])
    return Row(
        f"2x: {what}",
        f"first in {named[0]}/{len(pairs)}, another first in {other}",
        peer=f"{named[1]}/{len(pairs)}",
        goal="another <= 5 %",
        met=other <= 0.05 * len(pairs),
    )


def simulated(
    trials: int, share: float, factor: float, before: dict[str, Any], after: dict[str, Any], loop: bool | None = None
) -> list[Pair]:
    """Return pairs of runs of `trials` programs."""
    pairs = []
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        made = random_program(rng, share=share)
        program = made if loop is None else Program(made.stacks, made.shares, made.stays_ms, loop)
        later = program.slower("target", factor) if factor != 1 else program
        pairs.append((sampled(program, rng, **before), sampled(later, rng, **after)))
    return pairs


def counted(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs without timestamps, as in a folded file."""

    def bare(profile: StackProfile) -> StackProfile:
        samples = profile.samples.with_columns(at_ns=pl.lit(NO_TIME, pl.Int64))
        return replace(profile, tables={**profile.tables, "samples": samples})

    return [(bare(before), bare(after)) for before, after in pairs]


def of_simulations(trials: int) -> list[Row]:
    kinds = {"a loop": True, "random order": False}
    rows = []
    spans = {"30 s at 99 Hz": (USUAL, USUAL), "10 s at 49 Hz, 120 s at 199 Hz": (SHORT, LONG)}
    for (kind, loop), (span, how) in product(kinds.items(), spans.items()):
        rows.append(none_changed(f"{kind}, {span}", simulated(trials, 0.1, 1, *how, loop=loop)))
    wobbling = {**LONG, "wobble": 0.04}
    text = "120 s at 199 Hz, each function's speed 4 % off from run to run"
    rows.append(none_changed(text, simulated(trials, 0.1, 1, wobbling, wobbling)))
    for span, how in (("30 s at 99 Hz", USUAL), ("120 s at 199 Hz", LONG)):
        rows.append(none_changed(f"{span}, counts only", counted(simulated(trials, 0.1, 1, how, how))))
    for share, (kind, loop) in product((0.05, 0.1, 0.3), kinds.items()):
        for span, how in (("30 s at 99 Hz", USUAL), ("120 s at 199 Hz", LONG)):
            text = f"{share:.0%} of the time, {kind}, {span}"
            rows.append(one_slower(text, simulated(trials, share, 2, how, how, loop=loop), ("target", "")))
        if loop:
            pairs = counted(simulated(trials, share, 2, LONG, LONG, loop=loop))
            rows.append(one_slower(f"{share:.0%}, {kind}, 120 s at 199 Hz, counts only", pairs, ("target", "")))
    return rows


def of_recordings(runs: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="whystall-trials-") as directory:
        place = Path(directory)
        os.environ["WHYSTALL_HOME"] = str(place / "home")
        program = place / "two_versions"
        options = ["-O1", "-fno-omit-frame-pointer"]
        subprocess.run(["clang", *options, "-o", str(program), str(HERE / "two_versions.c")], check=True)
        made: dict[str, list[StackProfile]] = {version: [] for version in ("plain", *VERSIONS)}
        for run, version in product(range(runs), made):
            made[version].append(_recorded(program, version, place / f"{version}{run}"))
    count = round(float(np.median([profile.samples.height for some in made.values() for profile in some])))
    rows = []
    same = [pair for some in made.values() for pair in combinations(some, 2)]
    rows.append(none_changed(f"two_versions.c, recorded, {count} samples", same))
    for version, due in VERSIONS.items():
        text = f"two_versions.c, recorded, {version} against plain"
        rows.append(one_slower(text, list(product(made["plain"], made[version])), due))
    return rows


def _recorded(program: Path, version: str, out: Path) -> StackProfile:
    with Running(program, version, CPU_MS, wrap=lambda argv: argv[1:]) as running:
        begun = False

        def progress(done: float, total: float, message: str) -> None:
            nonlocal begun
            if not begun:
                begun = True
                running.go()

        params = RecordParams(pid=running.pid, duration=120, samples=True, hz=HZ)
        anyio.run(lambda: App().record(params, out, progress=progress))
        running.until("end")
    return without_interrupts(Part(open_stacks(out)))[0].profile  # as flamegraph_diff does


def trials(count: int, recordings: int, say: Callable[[str], object] = print) -> Report:
    """Return the report; without root it has no recordings."""
    begin = time.monotonic()
    report = Report(TITLE)
    report.rows += of_simulations(count)
    say("\n".join(table(report.rows)))
    if recordings >= 2 and os.geteuid() == 0:
        report.rows += of_recordings(recordings)
        report.notes.append(f"recordings: {recordings} runs a version, {CPU_MS / 1000:g} s of CPU time at {HZ} Hz")
    minutes = (time.monotonic() - begin) / 60
    load = os.getloadavg()[0]
    report.notes.append(f"{count} trials a row of simulations, {minutes:.1f} minutes, load at the end {load:.1f}")
    report.notes.append("`random order`: half of the functions stay for 6 ms or longer, some for 200 ms at a time")
    return report


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0 if every goal was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="simulated pairs a row (default: %(default)s)")
    parser.add_argument("--recordings", type=int, default=6, help="runs of each version (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    return publish(trials(options.trials, options.recordings), options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
