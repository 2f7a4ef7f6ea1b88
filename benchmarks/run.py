"""Run the benchmarks and write the report: ``python -m benchmarks.run [--rounds N] [--out FILE] [NAME ...]``."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from pathlib import Path

from benchmarks.common import Report, machine, table

NAMES = (
    *("whole_process", "attach", "per_call", "switches", "diagnosis", "profile_read", "ftrace_read", "ranks_read"),
    "text_convert",
    *("flame_render", "cpu_sampling", "python_frames", "page_cache_cost", "collective_cost", "slowdown"),
    *("fleet_scale", "watch_cost", "accelerator_cost"),
)
_HEAD = """\
# Measurements

Made by `make bench`. Medians, in parentheses the quartiles; conditions are interleaved round by round, added costs
and ratios are computed within a round. CPU time unless a row is labelled wall: wall time on a shared machine is noise.
"""


def _write(path: Path, reports: list[Report], rounds: int, seconds: float) -> None:
    lines = [_HEAD, *(f"* {line}" for line in machine()), f"* {rounds} rounds, {seconds:.0f} s", ""]
    for report in reports:
        lines += [f"## {report.title}", "", *table(report.rows), ""]
        lines += [*(f"* {note}" for note in report.notes), *([""] if report.notes else [])]
    path.write_text("\n".join(lines).rstrip() + "\n")


def main(arguments: list[str]) -> int:
    """Run the command line; return 0 if all was measured, whatever the goals, 1 without privilege."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"benchmarks (default: all of {', '.join(NAMES)})")
    parser.add_argument("--rounds", type=int, default=15, help="per condition (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(NAMES)
    if unknown or options.rounds < 2:
        parser.error(f"unknown: {', '.join(sorted(unknown))}" if unknown else "at least 2 rounds")
    if os.geteuid() != 0:
        print("benchmarks: run as root: they attach BPF programs", file=sys.stderr)
        return 1
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if it was ignored: it stops the peers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clean up as after Ctrl-C
    begin = time.monotonic()
    reports = []
    for name in options.names or NAMES:
        print(f"benchmarks: {name}", file=sys.stderr)
        # Imported when it runs: the parent's memory counts in its children's peak.
        reports.append(importlib.import_module(f"benchmarks.{name}").run(options.rounds))
        print("\n".join([*table(reports[-1].rows), *reports[-1].notes]), flush=True)
    _write(options.out, reports, options.rounds, time.monotonic() - begin)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
