"""Run the scenarios: ``python -m benchmarks.faults.run [--only ID,...] [--repeats N] [--vm SERIES]``."""

from __future__ import annotations

import argparse
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from benchmarks.faults import diagnosers, guest, needs, report
from benchmarks.faults.adapters import homes
from benchmarks.faults.results import Result, Results
from benchmarks.faults.runner import LIMIT_S, blank, observe
from benchmarks.faults.scenario import HERE, Scenario, load
from benchmarks.faults.undo import UndoError, undo_abandoned

ROOT = HERE.parents[1]
INJECTIONS = 3  # of a case at most: a fault may end before all diagnosers have answered
REPORTS = ("benchmarks/FAULTS.md", "benchmarks/FAULTS.json")


def chosen(scenarios: Sequence[Scenario], only: str) -> list[Scenario]:
    """Return the scenarios whose id, or the id's letter, is in the comma-separated `only`; all if it is empty."""
    words = {word.strip() for word in only.split(",") if word.strip()}
    return [one for one in scenarios if not words or words & {one.id, one.id[0]}]


def commit() -> str:
    """Return the commit that is measured, with ``+`` if files were changed since."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    # the reports of the run before are no change of what is measured
    others = ["--", ".", *(f":!{report}" for report in REPORTS)]
    dirty = subprocess.run(["git", "status", "--porcelain", "-uno", *others], capture_output=True, text=True, cwd=ROOT)
    return (head.stdout.strip() or "unknown") + ("+" if dirty.stdout.strip() else "")


class Progress:
    """Shows each result, and the time left at the mean time of a diagnosis so far, with its share of the setup.

    `diagnoses`: how many each case has; those in a guest are not part of it.
    """

    def __init__(self, diagnoses: Sequence[int]) -> None:
        self._diagnoses = diagnoses
        self._done = 0
        self._start = time.monotonic()

    def show(self, result: Result) -> None:
        """Show a result of the case that runs now."""
        print(f"[{self._done + 1}/{len(self._diagnoses)}] {report.line(result)}", file=sys.stderr, flush=True)

    def end_case(self) -> None:
        """Count a case, and show the time left."""
        self._done += 1
        done, left = sum(self._diagnoses[: self._done]), sum(self._diagnoses[self._done :])
        if left:
            seconds = (time.monotonic() - self._start) / done * left
            print(f"faults: about {timedelta(seconds=round(seconds))} left", file=sys.stderr, flush=True)


def run(
    scenarios: Sequence[Scenario],
    commands: Mapping[str, str],
    repeats: int,
    seed: int,
    results: Results,
    version: str = "",
    vm: str = "",
    limit_s: float = LIMIT_S,
) -> list[Result]:
    """Run what `results` does not have yet; return all results of these scenarios. `commands`: of diagnosers.

    A void case is injected again, with other parameters, for the diagnosers whose results are void. The results of a
    case are stored when it has ended: after an interruption the whole case runs again.
    Scenarios whose `needs` this kernel lacks run in a guest with a kernel of the series `vm`, otherwise they are void.
    """
    version = version or commit()
    here = [scenario for scenario in scenarios if not needs.lacking(scenario.needs)]
    there = [scenario for scenario in scenarios if scenario not in here]
    cases = []
    for repeat in range(repeats):
        order = list(here)
        random.Random(seed + repeat).shuffle(order)
        for scenario in order:
            names = [name for name in commands if not results.has(scenario.id, repeat, name, version)]
            if names:
                cases.append((scenario, repeat, {name: shlex.split(commands[name]) for name in names}))
    progress = Progress([len(missing) for *_, missing in cases])
    for scenario, repeat, missing in cases:
        found: dict[str, Result] = {}
        try:
            for injection in range(INJECTIONS):
                for result in observe(scenario, repeat, seed + injection, missing, version, limit_s):
                    found[result.diagnoser] = result
                    progress.show(result)
                missing = {name: command for name, command in missing.items() if found[name].void}
                if not missing:
                    break
        except UndoError:
            results.add(*found.values())
            raise
        results.add(*found.values())
        progress.end_case()
    why = ""
    if there and vm:
        try:
            guest.run(vm, [s.id for s in there], commands, repeats, seed, version, results)
        except guest.NoGuest as error:
            why = f"; {error}"
    # Not stored: another run may have a kernel for them.
    void = [
        blank(one, repeat, name, seed, version).model_copy(update={"void": f"{_lacks(one)}{why}"})
        for one in there
        for repeat in range(repeats)
        for name in commands
        if not results.has(one.id, repeat, name, version)
    ]
    return results.of({s.id for s in scenarios}, set(commands), repeats, version) + void


def _lacks(scenario: Scenario) -> str:
    return f"kernel {platform.release()} has no {', '.join(needs.lacking(scenario.needs))}"


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
    parser.add_argument("--out", type=Path, default=ROOT / REPORTS[0], help="the report")
    parser.add_argument("--json", type=Path, help="the same as JSON; default: beside the report")
    parser.add_argument("--table", type=Path, help="also write one line per case to this file")
    parser.add_argument(
        "--diagnoser",
        action="append",
        default=[],
        metavar="NAME,...|NAME=COMMAND",
        help=f"may be repeated; known: {', '.join(diagnosers.NAMED)}; default: rules",
    )
    parser.add_argument("--vm", default="", metavar="SERIES", help="boot this kernel (6.1) for what this one lacks")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one diagnosis")
    parser.add_argument("--commit", default="", help="what is measured; default: what git says")
    options = parser.parse_args(arguments)
    try:
        commands = diagnosers.chosen(options.diagnoser)
    except ValueError as error:
        parser.error(str(error))
    if os.geteuid() != 0:
        print("faults: run as root: faults need cgroups, mounts and signals", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clean up as after Ctrl-C
    for line in undo_abandoned():
        print(f"faults: left behind by an earlier run: {line}", file=sys.stderr)
    results = Results(options.results, options.fresh)
    with homes.prepared():
        found = run(
            *(chosen(load(), options.only), commands, options.repeats, options.seed, results),
            *(options.commit, options.vm, options.limit),
        )
    if options.table:
        options.table.write_text("\n".join(report.lines(found)) + "\n")
    judged = [result for result in found if result.score]
    if not judged:
        print("faults: no case was judged", file=sys.stderr)
        return 1
    report.write(found, options.out, options.json or options.out.with_suffix(".json"))
    print("\n".join(report.lines(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
