#!/usr/bin/env python3
"""Diagnose a training program that stalls, and compare the diagnosis with the program's own log.

Starts the simulator, waits for its first checkpoint, runs ``whystall diagnose`` on its process and
prints the output; then compares verdict, file, latency and period with the simulator's log.

The default scenario writes checkpoints to an artificially slow disk (as root; else to a temporary
directory).  ``--scenario background`` writes them from another thread, which stalls no step: the right
verdict is "healthy".  ``--scenario random`` draws the bytes inside the step, on a fast disk: the right
cause is CPU time in getrandom, not the disk.

With ``--llm`` a language model drives the diagnosis: that of WHYSTALL_LLM_BASE_URL and WHYSTALL_LLM_MODEL,
else the example server in this directory, which follows fixed rules.

Exit status: 0 when the diagnosis is right, 1 when it is not, 2 when the demo could not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import model_server
from _command import Parser, between
from model_policies import POLICIES
from slow_disk import SlowDisk, SlowDiskError

HERE = Path(__file__).resolve().parent
WRITE_MIB_S = 50.0
# An ordinary disk is fast: larger and more frequent checkpoints, with direct I/O where the file system supports it.
NO_SLOW_DISK = ("--size-mib", "300", "--keep", "1", "--every", "2")
SYMPTOM = "training stalls every few steps"
START_TIMEOUT_S = 30.0
LATENCY_TOLERANCE = 0.10
PERIOD_TOLERANCE = 0.20
CHAINED = 3
"""Least number of tools that a model must have used."""
Event = dict[str, Any]
Diagnosis = dict[str, Any]


class DemoError(RuntimeError):
    """The demo cannot continue; one line."""


@dataclass(frozen=True)
class Row:
    """One line of the comparison; ``right`` is None if it cannot be judged."""

    name: str
    logged: str
    diagnosed: str
    right: bool | None


@dataclass(frozen=True)
class Scenario:
    """The simulator's options, and the judgement of the diagnosis."""

    options: tuple[str, ...]
    slow_disk: bool
    stalls: bool
    judge: Callable[[Diagnosis, Sequence[Event]], list[Row]]


def judge_checkpoint(diagnosis: Diagnosis, log: Sequence[Event]) -> list[Row]:
    """Judge cause, file, latency and period of the synchronous checkpoint."""
    checkpoints = [line for line in log if line["event"] == "checkpoint"]
    paths = {line["path"] for line in checkpoints}
    culprit = diagnosis.get("culprit") or {}
    path, latency_ms = culprit.get("path") or "", culprit.get("latency_ms")
    suffered = statistics.median(line["total_s"] for line in checkpoints)
    starts = [line["start_mono_ns"] / 1e9 for line in checkpoints]
    period = statistics.median(later - earlier for earlier, later in pairwise(starts))
    sampled = not sees_everything(diagnosis)
    return [
        verdict_row(diagnosis, "synchronous checkpoint write", "sync_checkpoint_write"),
        # Without a file, since none could be observed, a diagnosis is incomplete but not wrong.
        Row("file", series(paths), path or "none", path in paths if path or not sampled else None),
        near("latency", suffered, None if latency_ms is None else latency_ms / 1e3, LATENCY_TOLERANCE, sampled),
        near("period", period, culprit.get("period_s"), PERIOD_TOLERANCE, sampled),
        ticket_row(diagnosis),
    ]


def judge_background(diagnosis: Diagnosis, log: Sequence[Event]) -> list[Row]:
    """Judge that nothing stalls the training thread, however slow the other thread's writes are."""
    slow = statistics.median(line["total_s"] for line in log if line["event"] == "checkpoint")
    stalled = max(line["stall_s"] for line in log if line["event"] == "step")
    logged = f"healthy: {slow:.2f} s per checkpoint, at most {1e3 * stalled:.1f} ms of a step"
    return [Row("verdict", logged, words(diagnosis), diagnosis["verdict"] == "healthy")]


def judge_random(diagnosis: Diagnosis, log: Sequence[Event]) -> list[Row]:
    """Judge that the stall is CPU time in the system call that returns random bytes."""
    drawn = statistics.median(line["random_s"] for line in log if line.get("random_s"))
    written = statistics.median(line["total_s"] for line in log if line["event"] == "checkpoint")
    syscall = (diagnosis.get("culprit") or {}).get("syscall") or ""
    return [
        verdict_row(diagnosis, "CPU time in a system call", "kernel_cpu_in_syscall"),
        Row("system call", f"getrandom {drawn:.3f} s, write {written:.3f} s", syscall, syscall == "getrandom"),
        ticket_row(diagnosis),
    ]


SCENARIOS = {
    "checkpoint": Scenario((), True, True, judge_checkpoint),
    "background": Scenario(("--background", "--every", "20"), True, False, judge_background),
    "random": Scenario(("--random-in-line",), False, True, judge_random),
}


def verdict_row(diagnosis: Diagnosis, logged: str, cause: str) -> Row:
    """Expect `cause` to be confirmed; with sampled data, likely, or inconclusive with blind spots, is right too.

    Ruling out the real cause is always wrong.
    """
    verdict, named = diagnosis["verdict"], diagnosis.get("cause")
    right = verdict == "confirmed" and named == cause
    if not sees_everything(diagnosis):
        right = (
            right or (verdict == "likely" and named == cause) or (verdict == "inconclusive" and bool(blind(diagnosis)))
        )
    ruled_out = [a["cause"] for a in diagnosis.get("assessments", []) if a["state"] == "ruled_out"]
    if cause in ruled_out:
        return Row("verdict", logged, f"{words(diagnosis)}, rules it out", False)
    return Row("verdict", logged, words(diagnosis), right)


def ticket_row(diagnosis: Diagnosis) -> Row:
    """Judge that a ticket was drafted."""
    ticket = diagnosis.get("ticket")
    return Row("ticket", "drafted", ticket or "none", bool(ticket))


def model_row(diagnosis: Diagnosis) -> Row:
    """Judge that the model used tools and concluded, and that its claims cite existing findings."""
    reasoning = diagnosis.get("reasoning") or {"model": "none", "stopped": "not asked", "claims": []}
    tools = list(dict.fromkeys(tool for step in diagnosis["steps"] for tool in step["tools"]))
    known = {finding["id"] for finding in diagnosis["findings"]}
    cited = [claim["subject"] for claim in reasoning["claims"]]
    right = len(tools) >= CHAINED and reasoning["stopped"] is None and bool(cited) and known.issuperset(cited)
    ended = reasoning["stopped"] or f"concluded, citing {', '.join(dict.fromkeys(cited)) or 'nothing'}"
    return Row("model", f"{reasoning['model']} was asked", f"{' > '.join(tools)}; {ended}", right)


def near(name: str, logged: float, diagnosed: float | None, tolerance: float, sampled: bool) -> Row:
    """Judge that seconds agree within `tolerance`; `sampled` values are shown, not judged."""
    right = diagnosed is not None and abs(diagnosed - logged) <= tolerance * logged
    return Row(
        name, f"{logged:.3f} s", "none" if diagnosed is None else f"{diagnosed:.3f} s", None if sampled else right
    )


def sees_everything(diagnosis: Diagnosis) -> bool:
    """Return whether every collector was served by the kernel, not by sampling /proc."""
    return not {"sampled", "no_engine", "not_permitted"} & set(blind(diagnosis))


def blind(diagnosis: Diagnosis) -> list[str]:
    """Return the codes of the diagnosis' blind spots."""
    return sorted({spot["code"] for tool in diagnosis["coverage"] for spot in tool["not_seen"]})


def words(diagnosis: Diagnosis) -> str:
    return ": ".join(part for part in (diagnosis["verdict"], diagnosis.get("cause")) if part)


def series(paths: set[str]) -> str:
    """Return a path of the series, and their number."""
    return f"{min(paths, key=lambda path: (len(path), path))} (one of {len(paths)})"


def slow_disk(stack: contextlib.ExitStack) -> SlowDisk | None:
    """Return a slow disk, removed with `stack`; None, with the reason printed, if that is impossible."""
    why = "no root"
    if os.geteuid() == 0:
        try:
            return stack.enter_context(SlowDisk(write_mib_s=WRITE_MIB_S))
        except SlowDiskError as error:
            why = str(error)
    print(f"{why}, so no slow disk: larger checkpoints on an ordinary one", flush=True)
    return None


def takes_direct(directory: Path) -> bool:
    """Return whether files in `directory` can be opened for direct I/O."""
    try:
        os.close(os.open(directory / "direct", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def simulator(scenario: Scenario, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the simulator and yield it after its first checkpoint; stop it and remove its files afterwards."""
    with contextlib.ExitStack() as stack:
        wrap: Callable[[list[str]], list[str]] = list
        options = scenario.options
        disk = slow_disk(stack) if scenario.slow_disk else None
        if disk is not None:
            directory, wrap = disk.path, disk.command
            print(f"slow disk: {disk.device} on {disk.path}, {WRITE_MIB_S:g} MiB/s", flush=True)
        else:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whystall-demo-")))
            if scenario.slow_disk:
                options += (*NO_SLOW_DISK, "--direct") if takes_direct(directory) else NO_SLOW_DISK
        argv = [sys.executable, str(HERE / "slow_ai_simulator.py"), *options]
        process = subprocess.Popen(wrap([*argv, "--directory", str(directory), "--log", str(log)]))
        stack.callback(stop, process)
        wait_for("checkpoint", process, log)
        print(f"simulator: pid {process.pid}, {' '.join(options) or 'synchronous checkpoints'}", flush=True)
        yield process


@contextlib.contextmanager
def model(wanted: bool) -> Iterator[dict[str, str]]:
    """Yield the settings of the model; run the example server meanwhile if no other model is configured."""
    if not wanted or os.environ.get("WHYSTALL_LLM_BASE_URL"):
        yield {}
        return
    with model_server.serve(POLICIES["engineer"].make()) as server:
        print(
            f"model: the example server at {server.base_url}, with fixed rules instead of a language model", flush=True
        )
        yield {"WHYSTALL_LLM_BASE_URL": server.base_url, "WHYSTALL_LLM_MODEL": server.model}


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a child after its step in progress."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(event: str, process: subprocess.Popen[bytes], log: Path, count: int = 1) -> list[Event]:
    """Wait until a program has logged `count` lines of a kind, and return them; raise DemoError if it does not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while len(found := [line for line in read_log(log) if line["event"] == event]) < count:
        if process.poll() is not None:
            raise DemoError(f"the program ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise DemoError(f"the program logged no {event!r} within {START_TIMEOUT_S:g} s")
        time.sleep(0.05)
    return found


def read_log(path: Path) -> list[Event]:
    """Return the complete lines of a log that is still being written."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def diagnose(scenario: Scenario, pid: int, options: Namespace, environment: dict[str, str]) -> Diagnosis:
    """Run ``whystall diagnose``, print its output and its ticket, and return the diagnosis.

    It is read from the ticket if one is expected; a healthy job has none.
    """
    command = ["diagnose", "--pid", str(pid), "--duration", f"{options.duration:g}", "--symptom", SYMPTOM]
    command += ["--llm"] if options.llm else []
    if not scenario.stalls:
        found: Diagnosis = json.loads(whystall(*command, "--json", environment=environment))
        return found
    print(whystall(*command, "--ticket", "--lang", options.lang, environment=environment), flush=True)
    tickets = json.loads(whystall("tickets", "list", "--json", environment=environment))
    if not tickets:
        return {"verdict": "healthy", "coverage": []}
    print(whystall("tickets", "show", tickets[0]["id"], "--lang", options.lang, environment=environment), flush=True)
    return {**tickets[0]["diagnosis"], "ticket": tickets[0]["id"]}


def measured_span(diagnosis: Diagnosis, began: int, ended: int) -> tuple[int, int]:
    """Return start and end of the diagnosis' latest window, limited to `began` and `ended`, CLOCK_MONOTONIC ns.

    Earlier steps may have had other lengths.
    """
    ahead = time.time_ns() - time.monotonic_ns()
    windows = [(_nanoseconds(tool["start"]) - ahead, int(tool["window_s"] * 1e9)) for tool in diagnosis["coverage"]]
    start, length = max(windows, default=(began, ended - began))
    return max(start, began), min(start + length, ended)


def _nanoseconds(moment: str) -> int:
    """Return Unix time from ISO 8601."""
    return int(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1e9)


def between_times(log: Sequence[Event], began: int, ended: int) -> list[Event]:
    """Return the steps that start within a span of CLOCK_MONOTONIC nanoseconds, and the checkpoints that overlap it.

    One that is under way when the window begins is observed too.

    Raises DemoError with fewer than two checkpoints.
    """
    within = []
    for line in log:
        step, checkpoint = line["event"] == "step", line["event"] == "checkpoint"
        if step or checkpoint:
            start = line["t_mono_ns"] if step else line["start_mono_ns"]
            end = start if step else start + line["total_s"] * 1e9
            if began < end and start < ended:
                within.append(line)
    if sum(line["event"] == "checkpoint" for line in within) < 2:
        raise DemoError("fewer than two checkpoints in the window; try a longer --duration")
    return within


def whystall(*arguments: str, environment: dict[str, str]) -> str:
    """Return what a whystall command prints; raise DemoError if it fails. Its stderr goes to the terminal."""
    argv = [sys.executable, "-m", "whystall.agent_server", *arguments]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode != 0:
        raise DemoError(f"whystall {arguments[0]} ended with status {done.returncode}")
    return done.stdout


def heading(text: str) -> None:
    """Print the heading of a step."""
    print(f"\n== {text}", flush=True)


def show(rows: Sequence[Row], program: str = "the simulator") -> bool:
    """Print the comparison with the log of `program`; return whether nothing judged is wrong."""
    table = [
        ("", f"{program} logged", "whystall found", ""),
        *((r.name, r.logged, r.diagnosed, mark(r.right)) for r in rows),
    ]
    widths = [max(cells(row[column]) for row in table) for column in range(3)]
    for row in table:
        padded = [cell + " " * (width - cells(cell)) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*padded, row[3]]).rstrip())
    return all(row.right is not False for row in rows)


def cells(text: str) -> int:
    """Return the number of terminal cells of `text`: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def mark(right: bool | None) -> str:
    """Return the word for a judgement."""
    return {True: "right", False: "WRONG", None: "estimate, not judged"}[right]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    command = Parser(description=(__doc__ or "").split("\n\n")[0])
    command.add_argument("--scenario", choices=SCENARIOS, default="checkpoint", help="default: %(default)s")
    command.add_argument("--duration", type=between(float, 5, 60), default=12.0, help="seconds (default: %(default)s)")
    command.add_argument("--lang", choices=("en", "zh"), default="en")
    command.add_argument("--llm", action="store_true", help="let a language model choose the tools and explain")
    return guarded(run, command.parse_args(argv))


def guarded(demo: Callable[[Namespace], int], options: Namespace) -> int:
    """Run a demo; return its exit status, 2 with one line if it cannot run."""
    # Exit by an exception, so that programs and slow disks are removed too.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        return demo(options)
    except (DemoError, SlowDiskError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def run(options: Namespace) -> int:
    """Run one scenario; return the exit status."""
    scenario = SCENARIOS[options.scenario]
    with tempfile.TemporaryDirectory(prefix="whystall-demo-") as home, model(options.llm) as settings:
        log = Path(home) / "simulator.jsonl"
        # A separate knowledge base: the demo's ticket is not an incident of this host.
        environment = {**os.environ, **settings, "WHYSTALL_HOME": home}
        with simulator(scenario, log) as process:
            began = time.monotonic_ns()
            diagnosis = diagnose(scenario, process.pid, options, environment)
            ended = time.monotonic_ns()
        print("\ncompared with the simulator's log:")
        rows = scenario.judge(diagnosis, between_times(read_log(log), *measured_span(diagnosis, began, ended)))
        return 0 if show([*rows, *([model_row(diagnosis)] if options.llm and scenario.stalls else [])]) else 1


if __name__ == "__main__":
    sys.exit(main())
