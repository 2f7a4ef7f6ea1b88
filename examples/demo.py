#!/usr/bin/env python3
"""Diagnose a training program that stalls, and compare the answer with what the program itself logged.

Starts the simulator, waits for its first checkpoint, runs ``whystall diagnose`` on its process and
prints what that prints; then holds verdict, file, latency and period against the simulator's log.

The default scenario writes its checkpoints to a slow disk made for the purpose (as root; else to a
temporary directory).  ``--scenario background`` writes them from another thread, which stalls nobody:
the right answer is "healthy".  ``--scenario random`` draws the bytes inside the step, on a fast disk:
the right answer is CPU time in getrandom, never the disk.

With ``--llm`` a language model drives the diagnosis: the one that WHYSTALL_LLM_BASE_URL and WHYSTALL_LLM_MODEL
name, else the example server beside this program, which is none and follows fixed rules.

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
# An ordinary disk is fast: bigger and more frequent checkpoints, past the page cache where the file system lets them.
NO_SLOW_DISK = ("--size-mib", "300", "--keep", "1", "--every", "2")
SYMPTOM = "training stalls every few steps"
START_TIMEOUT_S = 30.0
LATENCY_TOLERANCE = 0.10
PERIOD_TOLERANCE = 0.20
CHAINED = 3
"""Tools that a model is to have chained, at least."""
Event = dict[str, Any]
Diagnosis = dict[str, Any]


class DemoError(RuntimeError):
    """The demo cannot go on; one line."""


@dataclass(frozen=True)
class Row:
    """One line of the comparison; ``right`` is None for what is shown but cannot be judged."""

    name: str
    logged: str
    diagnosed: str
    right: bool | None


@dataclass(frozen=True)
class Scenario:
    """What the simulator does, and how the right answer is recognised."""

    options: tuple[str, ...]
    slow_disk: bool
    stalls: bool
    judge: Callable[[Diagnosis, Sequence[Event]], list[Row]]


def judge_checkpoint(diagnosis: Diagnosis, log: Sequence[Event]) -> list[Row]:
    """The stall is the synchronous checkpoint: this file, this long, this often."""
    checkpoints = [line for line in log if line["event"] == "checkpoint"]
    paths = {line["path"] for line in checkpoints}
    culprit = diagnosis.get("culprit") or {}
    path = culprit.get("path") or ""
    suffered = statistics.median(line["total_s"] for line in checkpoints)
    starts = [line["start_mono_ns"] / 1e9 for line in checkpoints]
    period = statistics.median(later - earlier for earlier, later in pairwise(starts))
    sampled = not sees_everything(diagnosis)
    return [
        verdict_row(diagnosis, "synchronous checkpoint write", "sync_checkpoint_write"),
        # An answer that names no file because it could not see one is less, but not wrong.
        Row("file", series(paths), path or "none", path in paths if path or not sampled else None),
        near("latency", suffered, scaled(culprit.get("latency_ms"), 1e-3), LATENCY_TOLERANCE, sampled),
        near("period", period, culprit.get("period_s"), PERIOD_TOLERANCE, sampled),
        ticket_row(diagnosis),
    ]


def judge_background(diagnosis: Diagnosis, log: Sequence[Event]) -> list[Row]:
    """Nothing stalls the training thread, however slow the other thread's writes are."""
    slow = statistics.median(line["total_s"] for line in log if line["event"] == "checkpoint")
    stalled = max(line["stall_s"] for line in log if line["event"] == "step")
    logged = f"healthy: {slow:.2f} s per checkpoint, at most {1e3 * stalled:.1f} ms of a step"
    return [Row("verdict", logged, words(diagnosis), diagnosis["verdict"] == "healthy")]


def judge_random(diagnosis: Diagnosis, log: Sequence[Event]) -> list[Row]:
    """The stall is CPU time in the kernel, in the system call that makes random bytes."""
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
    """Confirmed where the kernel could be asked; else likely, or an inconclusive that says what it lacks.

    Never right is an answer that rules the real cause out.
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
    """A ticket was drafted."""
    ticket = diagnosis.get("ticket")
    return Row("ticket", "drafted", ticket or "none", bool(ticket))


def model_row(diagnosis: Diagnosis) -> Row:
    """A model chained tools and concluded, and every sentence of its story cites findings that are there."""
    reasoning = diagnosis.get("reasoning") or {"model": "none", "stopped": "not asked", "story": []}
    tools = list(dict.fromkeys(tool for step in diagnosis["steps"] for tool in step["tools"]))
    known = {finding["id"] for finding in diagnosis["findings"]}
    cited = [id for claim in reasoning["story"] for id in claim["findings"]]
    right = len(tools) >= CHAINED and reasoning["stopped"] is None and bool(cited) and known.issuperset(cited)
    ended = reasoning["stopped"] or f"concluded, citing {', '.join(dict.fromkeys(cited)) or 'nothing'}"
    return Row("model", f"{reasoning['model']} was asked", f"{' > '.join(tools)}; {ended}", right)


def near(name: str, logged: float, said: float | None, tolerance: float, sampled: bool) -> Row:
    """Seconds that must agree within a share; what was only sampled is shown, not judged."""
    right = said is not None and abs(said - logged) <= tolerance * logged
    return Row(name, f"{logged:.3f} s", "none" if said is None else f"{said:.3f} s", None if sampled else right)


def sees_everything(diagnosis: Diagnosis) -> bool:
    """Whether every collector was served by the kernel and not by sampling /proc."""
    return not {"sampled", "no_engine", "not_permitted"} & set(blind(diagnosis))


def blind(diagnosis: Diagnosis) -> list[str]:
    """Codes of what the diagnosis says it could not see."""
    return sorted({spot["code"] for looked in diagnosis["coverage"] for spot in looked["not_seen"]})


def words(diagnosis: Diagnosis) -> str:
    """Verdict and cause."""
    return ": ".join(part for part in (diagnosis["verdict"], diagnosis.get("cause")) if part)


def series(paths: set[str]) -> str:
    """A path of the series, and how many there were."""
    return f"{min(paths, key=lambda path: (len(path), path))} (one of {len(paths)})"


def scaled(value: float | None, factor: float) -> float | None:
    """``value * factor``, None for none."""
    return None if value is None else value * factor


def slow_disk(stack: contextlib.ExitStack) -> SlowDisk | None:
    """A slow disk, removed with `stack`; None, and a line why, where none can be made."""
    why = "no root"
    if os.geteuid() == 0:
        try:
            return stack.enter_context(SlowDisk(write_mib_s=WRITE_MIB_S))
        except SlowDiskError as error:
            why = str(error)
    print(f"{why}, so no slow disk: bigger checkpoints to an ordinary one", flush=True)
    return None


def takes_direct(directory: Path) -> bool:
    """Whether files in `directory` can be opened for direct I/O."""
    try:
        os.close(os.open(directory / "direct", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def simulator(scenario: Scenario, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The simulator, from its first checkpoint on; stopped and its files removed afterwards."""
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
    """The settings of the model to ask; while the example server runs, where no other is set up."""
    if not wanted or os.environ.get("WHYSTALL_LLM_BASE_URL"):
        yield {}
        return
    with model_server.serve(POLICIES["engineer"].make()) as server:
        print(f"model: the example server at {server.base_url}, fixed rules and no language model", flush=True)
        yield {"WHYSTALL_LLM_BASE_URL": server.base_url, "WHYSTALL_LLM_MODEL": server.model}


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a child after its step in progress."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(event: str, process: subprocess.Popen[bytes], log: Path, count: int = 1) -> list[Event]:
    """Wait until a program has logged so many lines of a kind; returns these. Raises DemoError if it does not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while len(found := [line for line in read_log(log) if line["event"] == event]) < count:
        if process.poll() is not None:
            raise DemoError(f"the program ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise DemoError(f"the program logged no {event!r} within {START_TIMEOUT_S:g} s")
        time.sleep(0.05)
    return found


def read_log(path: Path) -> list[Event]:
    """The complete lines of a log that is still being written."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def diagnose(scenario: Scenario, pid: int, options: Namespace, environment: dict[str, str]) -> Diagnosis:
    """Run ``whystall diagnose`` and print what it prints, with the ticket it drafts; returns the diagnosis.

    Where a ticket is to be expected, the diagnosis is read from it; there is none for a healthy job.
    """
    look = ["diagnose", "--pid", str(pid), "--duration", f"{options.duration:g}", "--symptom", SYMPTOM]
    look += ["--llm"] if options.llm else []
    if not scenario.stalls:
        found: Diagnosis = json.loads(whystall(*look, "--json", environment=environment))
        return found
    print(whystall(*look, "--ticket", "--lang", options.lang, environment=environment), flush=True)
    tickets = json.loads(whystall("tickets", "list", "--json", environment=environment))
    if not tickets:
        return {"verdict": "healthy", "coverage": []}
    print(whystall("tickets", "show", tickets[0]["id"], "--lang", options.lang, environment=environment), flush=True)
    return {**tickets[0]["diagnosis"], "ticket": tickets[0]["id"]}


def watched(diagnosis: Diagnosis, began: int, ended: int) -> tuple[int, int]:
    """When it was measured what the diagnosis says, in CLOCK_MONOTONIC nanoseconds: during its latest look, within
    the time from `began` to `ended`. Steps before that may have been of other lengths.
    """
    ahead = time.time_ns() - time.monotonic_ns()
    looks = [(_nanoseconds(look["start"]) - ahead, int(look["window_s"] * 1e9)) for look in diagnosis["coverage"]]
    start, length = max(looks, default=(began, ended - began))
    return max(start, began), min(start + length, ended)


def _nanoseconds(moment: str) -> int:
    """Of the Unix clock, from ISO 8601."""
    return int(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1e9)


def between_times(log: Sequence[Event], began: int, ended: int) -> list[Event]:
    """The steps and checkpoints that start within a span of CLOCK_MONOTONIC nanoseconds.

    Raises DemoError when there are too few checkpoints to compare with.
    """
    starts = {"step": "t_mono_ns", "checkpoint": "start_mono_ns"}
    within = [line for line in log if line["event"] in starts and began < line[starts[line["event"]]] < ended]
    if sum(line["event"] == "checkpoint" for line in within) < 2:
        raise DemoError("fewer than two checkpoints while it was watched; try a longer --duration")
    return within


def whystall(*arguments: str, environment: dict[str, str]) -> str:
    """What a command of whystall prints; its errors and progress go straight to the terminal.

    Raises DemoError when it fails.
    """
    argv = [sys.executable, "-m", "whystall.agent_server", *arguments]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode != 0:
        raise DemoError(f"whystall {arguments[0]} ended with status {done.returncode}")
    return done.stdout


def tell(text: str) -> None:
    """A step of the story."""
    print(f"\n== {text}", flush=True)


def show(rows: Sequence[Row], program: str = "the simulator") -> bool:
    """Print the comparison with what `program` logged; whether everything that can be judged is right."""
    table = [
        ("", f"{program} logged", "whystall said", ""),
        *((r.name, r.logged, r.diagnosed, mark(r.right)) for r in rows),
    ]
    widths = [max(cells(row[column]) for row in table) for column in range(3)]
    for row in table:
        padded = [cell + " " * (width - cells(cell)) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*padded, row[3]]).rstrip())
    return all(row.right is not False for row in rows)


def cells(text: str) -> int:
    """How many cells of a terminal `text` takes: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def mark(right: bool | None) -> str:
    """A word for a judgement."""
    return {True: "right", False: "WRONG", None: "estimate, not judged"}[right]


def main(argv: list[str] | None = None) -> int:
    """Run one scenario; returns the exit status."""
    command = Parser(description=(__doc__ or "").split("\n\n")[0])
    command.add_argument("--scenario", choices=SCENARIOS, default="checkpoint", help="default: %(default)s")
    command.add_argument("--duration", type=between(float, 5, 60), default=12.0, help="seconds (default: %(default)s)")
    command.add_argument("--lang", choices=("en", "zh"), default="en")
    command.add_argument("--llm", action="store_true", help="let a language model choose the tools, and explain")
    options = command.parse_args(argv)
    scenario = SCENARIOS[options.scenario]
    # Unwind like an exception, so that the simulator and the slow disk go too.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        with tempfile.TemporaryDirectory(prefix="whystall-demo-") as home, model(options.llm) as settings:
            log = Path(home) / "simulator.jsonl"
            # A knowledge base of its own: the demo's ticket is no incident of this host.
            environment = {**os.environ, **settings, "WHYSTALL_HOME": home}
            with simulator(scenario, log) as process:
                began = time.monotonic_ns()
                diagnosis = diagnose(scenario, process.pid, options, environment)
                ended = time.monotonic_ns()
            print("\ncompared with what the simulator logged:")
            rows = scenario.judge(diagnosis, between_times(read_log(log), *watched(diagnosis, began, ended)))
            return 0 if show([*rows, *([model_row(diagnosis)] if options.llm and scenario.stalls else [])]) else 1
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
