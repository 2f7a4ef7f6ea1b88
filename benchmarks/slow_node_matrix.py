"""slow_node_check on real jobs with known faults: every variant, five seeds, 4 and 8 ranks; how often it is right.

    python -m benchmarks.slow_node_matrix [--variants V ...] [--seeds N] [--ranks N ...] [--minutes M] [--out FILE]

The jobs are those of ``tests/live/workloads/ranks_job.py`` (PyTorch on gloo; needs torch, and root for cgroups and
network namespaces); the expected answers are in ``ranks_table.py`` there. Seeds come one after the other, so that a run
that reaches its time limit has the same seeds of all variants.
``--out`` replaces this benchmark's section in a report.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Report, Row, publish
from whystall.tools.contract.errors import ToolError
from whystall.tools.ranks.slow_node_check.tool import TOOL, Params
from whystall.tools.ranks.traces.gather import gather
from whystall.tools.recording.judging import judge

sys.path.append(str(ROOT / "tests" / "live" / "workloads"))

# found through the path above
from ranks_table import ALL, VARIANTS, Score, score
from running import Running

SIZES = (4, 8)
SEEDS = 5
MINUTES = 15.0
TITLE = "Slow-node check on real jobs: PyTorch on gloo, a fault in each"
_JOB_S = 120


@dataclass
class Tally:
    """The answers on one variant at one size; `wrong`: descriptions of the wrong ones."""

    scores: list[Score] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def row(self, variant: str, size: int) -> Row:
        """Return a line of the report."""
        count = len(self.scores)
        due = ALL[variant]
        asked = {"verdict": True, "ranks": due.named, "class": bool(due.slow_class)}
        right = {
            "verdict": sum(one.verdict and one.unseen for one in self.scores),
            "ranks": sum(one.ranks for one in self.scores),
            "class": sum(one.slow_class for one in self.scores),
        }
        counts = ", ".join(f"{what} {right[what]}/{count}" for what, of in asked.items() if of)
        accused = sum(bool(one.accused) for one in self.scores)
        wanted = "/".join(due.verdicts) + (f", {due.slow_class}" if due.slow_class else "")
        return Row(
            f"{variant}, {size} ranks: {wanted}",
            f"{counts}; innocent accused in {accused}",
            goal="all right",
            met=all(one.right for one in self.scores) if count else None,
        )


def matrix(
    variants: Sequence[str], seeds: int, sizes: Sequence[int], minutes: float, kept: Path | None = None
) -> Report:
    """Run and judge the jobs until `minutes` are over; keep their files in `kept` if given."""
    report = Report(TITLE)
    tallies = {(variant, size): Tally() for size in sizes for variant in variants}
    begin = time.monotonic()
    failed: list[str] = []
    asked = done = 0
    for seed in range(1, seeds + 1):
        for size in sizes:
            for variant in variants:
                asked += 1
                if time.monotonic() - begin > 60 * minutes:
                    continue
                try:
                    one(variant, size, seed, tallies[variant, size], kept)
                    done += 1
                except (RuntimeError, ToolError, EOFError) as error:
                    failed.append(f"{variant}, {size} ranks, seed {seed}: {error}")
    report.rows = [tally.row(*key) for key, tally in tallies.items()]
    scores = [each for tally in tallies.values() for each in tally.scores]
    report.notes = [
        f"{done} of {asked} jobs in {(time.monotonic() - begin) / 60:.1f} minutes, load at the end "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs",
        f"all right: {sum(each.right for each in scores)} of {len(scores)}; innocent ranks accused in "
        f"{sum(bool(each.accused) for each in scores)}",
        *(f"wrong: {text}" for tally in tallies.values() for text in tally.wrong),
        *(f"job failed: {text}" for text in failed),
    ]
    return report


def one(variant: str, size: int, seed: int, tally: Tally, kept: Path | None) -> None:
    """Run one job, judge it, and count the answer. Raises RuntimeError when the job fails."""
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        out = kept / f"{size}-{seed}" if kept else Path(name)
        with Running("ranks_job.py", "--out", out, "--ranks", size, "--seed", seed, variant) as program:
            program.wait(_JOB_S)
        result: dict[str, Any] = judge(TOOL, gather(out / variant / "traces"), Params()).model_dump(mode="json")
        slow = json.loads((out / variant / "truth.json").read_text())["slow_ranks"]
    found = score(variant, slow, result)
    tally.scores.append(found)
    if not found.right:
        data = result["data"]
        accused = ", ".join(f"{row['rank']} {row['slow_class']}" for row in data["accused"])
        answer = f"{data['verdict']} {data['reasons']} accused [{accused}]"
        tally.wrong.append(f"{variant}, {size} ranks, seed {seed} (slow {slow}): {answer}")
    print(f"{variant} {size} {seed}: {'right' if found.right else tally.wrong[-1]}", file=sys.stderr, flush=True)


def run(rounds: int) -> Report:
    """Run the whole matrix; `rounds` is ignored."""
    del rounds
    return matrix(list(VARIANTS), SEEDS, SIZES, MINUTES)


def main(arguments: list[str]) -> int:
    """Run the command line; return 0 if all answers were right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=ALL, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds, from 1 on (default: %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES), help="sizes of the jobs, even numbers")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="start no job after these")
    parser.add_argument("--keep", type=Path, help="keep the jobs' traces and logs here")
    parser.add_argument("--out", type=Path, help="a report whose section is replaced")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("benchmarks: run as root: jobs get cgroups and network namespaces", file=sys.stderr)
        return 1
    # A temporary state directory, since judging may write artifacts.
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as home:
        os.environ["WHYSTALL_HOME"] = home
        report = matrix(options.variants, options.seeds, options.ranks, options.minutes, options.keep)
    publish(report, options.out)
    return 0 if all(row.met for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
