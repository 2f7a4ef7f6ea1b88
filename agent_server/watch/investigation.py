"""The investigation of one stall, in a process of its own."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from whystall.agent_server.watch.cases import Case
from whystall.agent_server.watch.progress import Stall
from whystall.agent_server.watch.requests import Answer, Request
from whystall.agent_server.watch.rhythm import NS

# Before the last sign of progress and after the next, in the recording of a stall: ordinary waits are no part of it.
_BEFORE_NS, _AFTER_NS = NS // 50, NS // 20
_SLOW_NS = 10 * NS  # of a slowdown, this much is judged
_LOOK_S = 6.0
_LONGEST_S, _END_S = 300.0, 5.0
_RECORDINGS = 50


@dataclass(frozen=True)
class Investigation:
    """A running investigation of a stall of the process `pid`. `final`: its answer is that of the case."""

    case: Case
    pid: int
    stall: Stall
    final: bool
    process: subprocess.Popen[str]
    since: float

    @classmethod
    def start(cls, request: Request, case: Case, stall: Stall, *, final: bool, errors: IO[str] | int) -> Investigation:
        """Start the process. `errors`: receives what it writes to standard error. Raises OSError."""
        process = subprocess.Popen(
            [sys.executable, "-m", "whystall.agent_server.watch.investigate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(request.to_json())
        process.stdin.close()
        process.stdin = None  # else communicate() flushes it
        return cls(case, request.pid, stall, final, process, time.monotonic())

    def poll(self) -> Answer | None:
        """Return the answer; None while it is being looked for. It is ended after 5 minutes."""
        if self.process.poll() is None:
            if time.monotonic() - self.since < _LONGEST_S:
                return None
            self.process.kill()
        output = self.process.communicate()[0] if self.process.stdout else ""
        try:
            return Answer.from_json(output.splitlines()[-1])
        except (ValueError, TypeError, IndexError):
            return Answer(error=f"the investigation ended with status {self.process.returncode}")

    def end(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:  # what it attached ends with it
            self.process.kill()


def request_of(case: Case, directory: Path, now: int, *, final: bool, tickets: bool) -> tuple[Request, Stall]:
    """Return what is to be investigated of `case`, and its main stall. `directory`: of the watcher; `now`:
    CLOCK_MONOTONIC, ns; `tickets`: a ticket may be opened."""
    pid, stall = case.main()
    name = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    start, end = case.start_ns - _BEFORE_NS, (case.end_ns or now) + _AFTER_NS
    if stall.kind in ("slowdown", "drift"):
        start = max(start, end - _SLOW_NS)
    request = Request(
        job=case.job.id,
        name=case.job.name,
        pid=pid,
        pids=(pid,),  # its main thread is accounted for; whom it waits for is recorded, too
        rank=case.job.ranks.get(pid),
        stall=replace(stall, end_ns=None if case.end_ns is None else stall.end_ns),
        start_ns=start,
        end_ns=min(end, now),
        noticed_ns=case.noticed_ns,
        slices=str(directory),
        recording=str(recordings(directory) / name),
        live_pid=pid if case.end_ns is None and not case.looked else None,
        live_s=_LOOK_S,
        earlier=case.looked if case.looked not in ("", "-") else "",
        tickets=tickets and final,
    )
    return request, stall


def recordings(directory: Path) -> Path:
    """Return where the recordings of stalls are kept."""
    return directory / "recordings"


def tidy(directory: Path) -> None:
    """Keep the latest recordings of stalls."""
    with suppress(OSError):  # the directory is gone, or its disk
        for old in sorted(recordings(directory).iterdir(), reverse=True)[_RECORDINGS:]:
            shutil.rmtree(old, ignore_errors=True)
