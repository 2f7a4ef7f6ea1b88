"""Run the tests of `inside/` under stock kernels and collect what they saw.

usage: python -m kernels.matrix [--kernel 5.10 ...] [--host] [--limit S] [--results FILE] [-- PYTEST-ARGUMENTS]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernels import boot, stock

INSIDE = Path("tests/kernels/inside")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="kernels.matrix", description=__doc__)
    parser.add_argument("--kernel", action="append", choices=sorted(stock.SERIES), default=[])
    parser.add_argument("--host", action="store_true", help="this host's own kernel, too")
    parser.add_argument("--limit", type=float, default=900, help="seconds that a guest may take")
    parser.add_argument("--results", type=Path, help="where to write what was seen, as JSON")
    parser.add_argument("rest", nargs="*", help="arguments of pytest; without: all tests of inside/")
    asked = parser.parse_args(arguments)
    results = {}
    for name in asked.kernel:
        results[name] = in_guest(name, asked.rest, asked.limit)
    if asked.host:
        results["host"] = on_host(asked.rest, asked.limit)
    if asked.results is not None:
        asked.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    for name, result in results.items():
        print(f"kernel {name} ({result['release']}): {result['verdict']}")
    return 0 if all(result["verdict"] == "passed" for result in results.values()) else 1


def _pytest(python: Path, rest: list[str], lines: Path) -> list[str]:
    told = rest or [str(INSIDE)]
    return ["env", f"WHYSTALL_MATRIX={lines}", str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *told]


def in_guest(name: str, rest: list[str], limit_s: float) -> dict[str, Any]:
    """Boot a series' newest kernel and run pytest there."""
    kernel = stock.fetch(name)
    with tempfile.TemporaryDirectory(prefix=f"whystall-{name}-") as folder:
        shared = Path(folder)
        lines = shared / "lines.jsonl"
        command = shlex.join(_pytest(Path(sys.executable), rest, lines)) + " 2>&1"
        done = boot.boot(kernel, command, shared, limit_s, show=lambda data: os.write(1, data))
        if not done.fine and done.code != 1:
            why = f"after its {limit_s:.0f} s" if done.timed_out else f"with status {done.code}"
            print(f"--- kernel {name} ended {why}; its console:\n{done.tail()}", file=sys.stderr)
        return _result(lines, kernel.release, done.code, done.seconds)


def on_host(rest: list[str], limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="whystall-host-") as folder:
        lines = Path(folder) / "lines.jsonl"
        done = subprocess.run(_pytest(Path(sys.executable), rest, lines), timeout=limit_s, cwd=boot.TREE)
        return _result(lines, os.uname().release, done.returncode, 0)


def _result(lines: Path, release: str, code: int | None, seconds: float) -> dict[str, Any]:
    told = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    tests = [line["test"] for line in told if "test" in line]
    return {
        "release": release,
        "verdict": "passed" if code == 0 and tests else "failed",
        "code": code,
        "seconds": round(seconds),
        "seen": [line["seen"] for line in told if "seen" in line],
        "tests": tests,
    }


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except stock.Unavailable as error:
        sys.exit(f"whystall: {error}")
