"""hang on real jobs: a random fault on a random rank, and jobs that are only slow; how often it is right.

    python -m benchmarks.hang_trials [--trials N] [--healthy N] [--ranks N] [--seed N] [--faults F ...] [--out FILE]

The jobs are those of ``tests/live/workloads/hanging_job.py`` (PyTorch on gloo; needs torch, and root to read the memory
of other processes); the expected answers are in ``hanging_table.py`` there. Nothing is prepared in the jobs.
``--out`` replaces this benchmark's section in a report.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Report, Row, publish

sys.path.append(str(ROOT / "tests" / "live" / "workloads"))

# found through the path above
from hanging_table import DUE, HEALTHY, Score, score
from running import Running

TITLE = "Hang: live jobs that stand still (PyTorch on gloo), a random fault on a random rank"
TRIALS, SLOW_JOBS, RANKS, SEED = 20, 10, 8, 1
GOAL_S = 15.0
WINDOW_S = 2.0
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
SLOW = "is_slow"
_JOB_S = 180


@dataclass(frozen=True)
class Trial:
    """A job: its fault (or `SLOW`), of which rank at which step, and how gradients are averaged. `settle_s`: how long
    after the fault it is asked."""

    fault: str
    rank: int
    step: int
    ddp: bool
    settle_s: float

    def __str__(self) -> str:
        return f"{self.fault}, rank {self.rank}, step {self.step}{', ddp' if self.ddp else ''}"


@dataclass
class Tally:
    """The answers on jobs with faults, or on slow ones. `wrong`: descriptions; `seconds`: that answers took."""

    scores: list[Score] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def drawn(faults: Sequence[str], trials: int, ranks: int, seed: int) -> list[Trial]:
    """Return random trials; every fault occurs about equally often."""
    chance = random.Random(seed)
    order = [fault for _ in range(-(-trials // len(faults))) for fault in chance.sample(faults, len(faults))]
    return [
        Trial(
            fault,
            chance.randrange(ranks),
            chance.randrange(1, 12),
            (DUE[fault].ddp if fault in DUE else True) and chance.random() < 0.5,
            chance.uniform(0.5, 3),
        )
        for fault in order[:trials]
    ]


def attempt(trial: Trial, ranks: int, tally: Tally) -> None:
    """Run one job, ask, and count the answer. Raises RuntimeError or EOFError if the job or the command fails."""
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        options: list[object] = ["--directory", name, "--ranks", ranks, "--rank", trial.rank, "--step", trial.step]
        options += ["--ddp"] if trial.ddp else []
        with Running("hanging_job.py", *options, trial.fault) as program:
            event, count = ("step", 3) if trial.fault == SLOW else ("fault", 1)
            truth = program.until(event, count, _JOB_S)
            time.sleep(trial.settle_s)
            began = time.monotonic()
            data = answer(program.pid, name)
            tally.seconds.append(time.monotonic() - began)
    found = score(trial.fault, truth, data)
    tally.scores.append(found)
    if not found.right:
        named = [
            (row["rank"], row.get("how") or row.get("doing"), row["line"]) for row in data["failed"] + data["late"]
        ]
        tally.wrong.append(f"{trial}: {data['verdict']} {named}")
    print(
        f"{trial}: {'right' if found.right else tally.wrong[-1]}, {tally.seconds[-1]:.1f} s",
        file=sys.stderr,
        flush=True,
    )


def answer(pid: int, home: str) -> dict[str, Any]:
    """Return the data of hang's answer on the job of `pid`, which is its launcher."""
    command = [WHYSTALL, "run", "hang", "--pid", str(pid), "--children", "--duration", str(WINDOW_S), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "WHYSTALL_HOME": home})
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    data: dict[str, Any] = json.loads(done.stdout)["data"]
    return data


def trials(faults: Sequence[str], count: int, slow_jobs: int, ranks: int, seed: int) -> Report:
    """Run and judge the jobs."""
    hung, slow = Tally(), Tally()
    failed: list[str] = []
    for tally, one in [
        *((hung, one) for one in drawn(faults, count, ranks, seed)),
        *((slow, one) for one in drawn([SLOW], slow_jobs, ranks, seed)),
    ]:
        try:
            attempt(one, ranks, tally)
        except (RuntimeError, EOFError, TimeoutError) as error:
            failed.append(f"job failed: {one}: {error}")
    of, right = len(hung.scores), sum(one.right for one in hung.scores)
    parts = ", ".join(
        f"{name} {sum(getattr(one, name) for one in hung.scores)}/{of}" for name in ("rank", "line", "cause")
    )
    calm = sum(one.right for one in slow.scores)
    took = [*hung.seconds, *slow.seconds]
    rows = [
        Row(
            f"{of} jobs of {ranks} ranks with a fault",
            f"all right {right}; {parts}",
            goal="19 of 20",
            met=20 * right >= 19 * of,
        ),
        Row(
            f"{len(slow.scores)} slow jobs",
            f"{HEALTHY.verdict} {calm}/{len(slow.scores)}",
            goal="all",
            met=calm == len(slow.scores),
        ),
        Row(
            f"time of an answer (window {WINDOW_S:.0f} s)",
            f"at most {max(took, default=0):.1f} s",
            goal=f"{GOAL_S:.0f} s",
            met=max(took, default=0) <= GOAL_S,
        ),
    ]
    wrong = [f"wrong: {text}" for text in hung.wrong + slow.wrong]
    load = f"seed {seed}; load at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    return Report(TITLE, rows, [load, *wrong, *failed])


def run(rounds: int) -> Report:
    """Run all trials; `rounds` is ignored."""
    del rounds
    return trials(list(DUE), TRIALS, SLOW_JOBS, RANKS, SEED)


def main(arguments: list[str]) -> int:
    """Run the command line; return 0 if all goals were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=DUE, default=list(DUE), metavar="FAULT")
    parser.add_argument("--trials", type=int, default=TRIALS, help="jobs with a fault (default: %(default)s)")
    parser.add_argument("--healthy", type=int, default=SLOW_JOBS, help="jobs that are only slow (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=RANKS, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, help="a report whose section is replaced")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("benchmarks: run as root: it reads the memory of other processes", file=sys.stderr)
        return 1
    report = trials(options.faults, options.trials, options.healthy, options.ranks, options.seed)
    publish(report, options.out)
    return 0 if all(row.met for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
