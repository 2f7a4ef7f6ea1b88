"""A Python process that runs given code and logs what it does, for tests that need one of their own making."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PRELUDE = """
import json, os, sys, threading, time
def log(**what): print(json.dumps(what), flush=True)
def timed(what, action, *args):
    start = time.monotonic_ns(); result = action(*args); end = time.monotonic_ns()
    log(what=what, start=start, end=end, result=result if isinstance(result, int) else None)
    return result
def go(): log(what="ready"); sys.stdin.readline()
"""
"""What the code has: ``log`` a line, log how long something took, and say ``ready`` and wait for ``Child.go``."""


class Child:
    """A Python process that waits for ``go`` and logs what it does as JSON lines."""

    def __init__(self, code: str, *arguments: str | bytes, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        self.pid = self.process.pid
        self.until("ready")

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, "the child ended early"
        parsed: dict[str, Any] = json.loads(text)
        return parsed

    def until(self, what: str) -> list[dict[str, Any]]:
        lines = [self.line()]
        while lines[-1]["what"] != what:
            lines.append(self.line())
        return lines

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def child(code: str, *arguments: str | bytes, cwd: Path | None = None) -> Iterator[Child]:
    made = Child(code, *arguments, cwd=cwd)
    try:
        yield made
    finally:
        made.close()
