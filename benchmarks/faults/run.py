"""Run the scenarios: ``python -m benchmarks.faults.run [--only ID,...] [--repeats N]``."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.faults import report
from benchmarks.faults.results import Result, Results
from benchmarks.faults.runner import observe
from benchmarks.faults.scenario import HERE, Scenario, load
from benchmarks.faults.undo import undo_abandoned

ROOT = HERE.parents[1]
RULES = f"{sys.executable} -m benchmarks.faults.adapters.whystall_rules"


def chosen(scenarios: Sequence[Scenario], only: str) -> list[Scenario]:
    """Return the scenarios whose id, or the id's letter, is in the comma-separated `only`; all if it is empty."""
    words = {word.strip() for word in only.split(",") if word.strip()}
    return [one for one in scenarios if not words or words & {one.id, one.id[0]}]


def commit() -> str:
    """Return the commit that is measured, with ``+`` if files were changed since."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, cwd=ROOT)
    return (head.stdout.strip() or "unknown") + ("+" if dirty.stdout.strip() else "")


def _show(result: Result, done: int, total: int) -> None:
    print(f"[{done}/{total}] {report.line(result)}", file=sys.stderr, flush=True)


def run(
    scenarios: Sequence[Scenario], diagnosers: Mapping[str, str], repeats: int, seed: int, results: Results
) -> list[Result]:
    """Run what `results` does not have yet; return all results of these scenarios."""
    version = commit()
    total = len(scenarios) * repeats
    done = 0
    for repeat in range(repeats):
        order = list(scenarios)
        random.Random(seed + repeat).shuffle(order)
        for scenario in order:
            done += 1
            missing = {
                name: shlex.split(command)
                for name, command in diagnosers.items()
                if not results.has(scenario.id, repeat, name, version)
            }
            if not missing:
                continue
            for result in observe(scenario, repeat, seed, missing, version):
                results.add(result)
                _show(result, done, total)
    return results.of({s.id for s in scenarios}, set(diagnosers), repeats, version)


def main(arguments: list[str]) -> int:
    """Run the command line; return 0 if cases were judged, 1 if none was, or without privilege."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=os.environ.get("ONLY", ""), help="ids or their first letters, by commas")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random parameters and the order")
    parser.add_argument(
        "--results", type=Path, default=ROOT / ".setup/faults.jsonl", help="where a stopped run resumes"
    )
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--out", type=Path, default=HERE.parent / "FAULTS.md", help="the report")
    parser.add_argument("--table", type=Path, help="also write one line per case to this file")
    parser.add_argument(
        "--diagnoser", action="append", default=[], metavar="NAME=COMMAND", help="default: whystall's rules"
    )
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("faults: run as root: faults need cgroups, mounts and signals", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clean up as after Ctrl-C
    for line in undo_abandoned():
        print(f"faults: left behind by an earlier run: {line}", file=sys.stderr)
    diagnosers = dict(one.split("=", 1) for one in options.diagnoser) or {"rules": RULES}
    results = Results(options.results, options.fresh)
    found = run(chosen(load(), options.only), diagnosers, options.repeats, options.seed, results)
    if options.table:
        options.table.write_text("\n".join(report.lines(found)) + "\n")
    judged = [result for result in found if result.score]
    if not judged:
        print("faults: no case was judged", file=sys.stderr)
        return 1
    options.out.write_text(report.page(found))
    print("\n".join(report.lines(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
