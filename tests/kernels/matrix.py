"""Run the tests of `inside/` under stock kernels and on this host, and collect what they saw.

usage: python -m kernels.matrix [--kernel 5.10 ...] [--all] [--host] [--judge-here PRIVILEGE ...] [--limit S]
       [--results FILE] [PYTEST-ARGUMENTS]

Exit status: 0 if all tests passed under every kernel asked for, 1 if not, 2 if a kernel could not be run here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernels import boot, image, stock
from kernels.stock import Unavailable

INSIDE = Path("tests/kernels/inside")
HOST = "host"
WATCHED_S = 400
SILENT_S = 450
"""A test that hangs is named by pytest's watchdog after `WATCHED_S`: more than the first test needs in an emulated
guest (200 s for three windows), since naming the stacks of running threads may crash Python. A guest without output for
`SILENT_S` hangs: one in some tens did, before its init, or while it attached to tracepoints (see `boot._machine`). It
is booted again, at most twice; a kernel that hangs by our fault hangs again."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="kernels.matrix")
    parser.add_argument("--kernel", action="append", choices=sorted(stock.SERIES), default=[])
    parser.add_argument("--all", action="store_true", help="every stock kernel")
    parser.add_argument("--host", action="store_true", help="this host's own kernel, too")
    parser.add_argument("--limit", type=float, default=900, help="seconds that a guest may take")
    parser.add_argument(
        "--judge-here",
        nargs="+",
        metavar="PRIVILEGE",
        help="take these windows in the guest, judge them here",
    )
    parser.add_argument("--results", type=Path, help="where to write what was seen, as JSON")
    parser.add_argument("--if-possible", action="store_true", help="where no kernel can be fetched, say so and go on")
    parser.add_argument("rest", nargs="*", help="arguments of pytest; without: all tests of inside/")
    asked = parser.parse_args(arguments)
    results = {}
    try:
        for name in list(stock.SERIES) if asked.all else asked.kernel:
            results[name] = in_guest(name, asked.rest, asked.limit, asked.judge_here or ())
    except Unavailable as error:
        print(f"whystall: {error}", file=sys.stderr)
        if not asked.if_possible or expected():
            return 2
        print("whystall: NOT RUN: the tests under a stock kernel", file=sys.stderr)
    if asked.host:
        results[HOST] = on_host(asked.rest, asked.limit)
    if asked.results is not None:
        asked.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name, result in results.items():
        print(f"kernel {name} ({result['release']}): {result['verdict']}, {result['tests']}, {result['seconds']} s")
        for failure in result["failed"]:
            print(f"  {failure}")
    return 0 if all(result["verdict"] == "passed" for result in results.values()) else 1


def expected() -> bool:
    """Whether this machine must be able to run a stock kernel (root on a Debian of amd64): a skip there is a fault."""
    debian = stock.found("apt-get") is not None and stock.KEYRING.exists()
    return os.geteuid() == 0 and platform.machine() == "x86_64" and debian


def in_guest(name: str, rest: list[str], limit_s: float, judge_here: Sequence[str] = ()) -> dict[str, Any]:
    """Boot a series' newest kernel and run pytest there; or take only the windows there of the privileges
    `judge_here`, and run pytest here.

    Raises:
        Unavailable: the kernel, QEMU or what boots it cannot be had here.
    """
    kernel = stock.fetch(name)
    for left in (2, 1, 0):
        with tempfile.TemporaryDirectory(prefix=f"whystall-{name}-") as folder:
            shared = Path(folder)
            lines = shared / "lines.jsonl"
            places = shared / "windows"
            words = _observing(places, judge_here) if judge_here else _pytest(rest, lines, guest=True)
            done = boot.boot(kernel, f"{shlex.join(words)} 2>&1", shared, limit_s, silent_s=SILENT_S, show=_show)
            if done.timed_out or done.code is None:
                why = f"was killed after {done.seconds:.0f} s" if done.timed_out else "died"
                print(f"--- the guest of kernel {name} {why}; the end of its console:\n{done.tail()}", file=sys.stderr)
            if not left or not done.silent:
                code = done.code
                if judge_here and code == 0:
                    words = ["env", f"WHYSTALL_WINDOWS={places}", *_pytest(rest, lines, guest=False)]
                    code = _run(words, limit_s)
                return summary(lines, kernel.release, code, done.seconds)
            print(f"--- no output for {SILENT_S} s: booted again", file=sys.stderr)
    raise AssertionError("the last one returns")


def on_host(rest: list[str], limit_s: float) -> dict[str, Any]:
    """The same tests under the kernel that runs."""
    with tempfile.TemporaryDirectory(prefix="whystall-host-") as folder:
        lines = Path(folder) / "lines.jsonl"
        code = _run(_pytest(rest, lines, guest=False), limit_s)
        return summary(lines, platform.release().partition("-")[0], code, 0)  # whose build it is tells nobody anything


def _run(words: list[str], limit_s: float) -> int | None:
    """Run `words`, which write to our output; return the exit status, None if it took longer than `limit_s`."""
    try:
        return subprocess.run(words, timeout=limit_s, cwd=image.TREE, stdin=subprocess.DEVNULL).returncode
    except subprocess.TimeoutExpired:
        return None


def _show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _pytest(rest: list[str], lines: Path, *, guest: bool) -> list[str]:
    named = [*(image.environment() if guest else ["env"]), f"WHYSTALL_MATRIX={lines}"]
    places = () if any((image.TREE / word.partition("::")[0]).exists() for word in rest) else (str(INSIDE),)
    # a test that hangs is named, and shows its stacks before the limit kills the guest
    told = ("-v", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={WATCHED_S}")
    return [*named, sys.executable, "-m", "pytest", *told, *places, *rest]


def _observing(place: Path, privileges: Sequence[str]) -> list[str]:
    words = [*image.environment(), sys.executable, "-m", "kernels.inside.observing", str(place), *privileges]
    # its paths are those of `image.environment`, and ours
    at = next(n for n, word in enumerate(words) if word.startswith("PYTHONPATH="))
    words[at] += f":{image.TREE / 'tests'}:{image.TREE / 'tests/live/workloads'}"
    return words


def summary(lines: Path, release: str, code: int | None, seconds: float) -> dict[str, Any]:
    """What the lines of `conftest.Matrix` amount to; a guest that died has passed nothing, whatever it wrote before."""
    told = []
    for line in lines.read_text(encoding="utf-8").splitlines() if lines.exists() else ():
        try:
            told.append(json.loads(line))
        except ValueError:  # the last one of a guest that died
            continue
    tests = [line["test"] for line in told if "test" in line]
    outcomes = Counter(test["outcome"] for test in tests)
    seen = {json.dumps(line["seen"], sort_keys=True) for line in told if "seen" in line}
    return {
        "release": release,
        "verdict": "passed" if code == 0 and outcomes["passed"] and not outcomes["failed"] else "failed",
        "seconds": round(seconds),
        "tests": dict(sorted(outcomes.items())),
        "failed": [test["id"] for test in tests if test["outcome"] == "failed"],
        "seen": [json.loads(one) for one in sorted(seen)],
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))  # so that folders are removed
    sys.exit(main(sys.argv[1:]))
