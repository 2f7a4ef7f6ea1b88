#!/usr/bin/env python3
"""Diagnose a job whose hot data is evicted from the page cache, fix it by hybrid I/O, and verify the fix.

The job (cache_job.py) runs with a memory limit.  Every step reads the same file again, which fits into memory, and also
streams files that are read once.  These evict the hot file, so that each step waits for the disk.

``whystall diagnose --ticket --calibrate`` diagnoses it.  Then the same job is started by ``whystall hybrid-run``, and
``whystall verify TICKET`` compares before and after.  The results are compared with the job's own log.

Needs root: a memory cgroup, and an artificially slow disk.

Exit status: 0 when all of it is right, 1 when it is not, 2 when the demo could not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import demo
from _cgroups import Cgroup
from _command import Parser, between
from demo import DemoError, Diagnosis, Event, Row
from slow_disk import SlowDisk, mounts

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
READ_MIB_S = 60.0
LIMIT_MIB, HOT_MIB, STREAM_MIB = 80, 24, 128
STEPS = 2000
"""The job ends after so many steps if it is not stopped."""
WARM_STEPS = 3
"""First steps of each run, which show only the start of the job."""
CAUSE = "cache_pollution"
BUSY = {"events_lost", "low_explained_share"}
"""Reasons why a diagnosis is not confirmed on a machine that other programs load."""
WAITS, RETURNS = "file.slow_read", "cache.thrash"
SYMPTOM = "every step is slow, although its data fits into memory"
TOLERANCE = 0.30
"""A window contains parts of steps; the log has whole ones."""
NO_CACHE = {"tmpfs", "ramfs", "devtmpfs"}
"""File systems in memory, without a page cache to evict from."""


@dataclass(frozen=True)
class Part:
    """A part of the job's log: its start line, and the steps of a span of time."""

    start: Event
    steps: Sequence[Event]

    @property
    def step_s(self) -> float:
        """Return the median length of a step."""
        return float(statistics.median(step["latency_s"] for step in self.steps))

    @property
    def waits_pct(self) -> float:
        """Return the share of its time that the job spent reading the hot file, percent."""
        return 100 * self._sum("hot_s") / self._sum("latency_s")

    @property
    def device_mib_s(self) -> float:
        """Return how fast the hot file was read from the disk, MiB/s."""
        return self._sum("hot_device_bytes") / self._sum("latency_s") / MIB

    def _sum(self, fact: str) -> float:
        return float(sum(step[fact] for step in self.steps))


def within(log: Sequence[Event], began: int, ended: int) -> Part:
    """Return the steps entirely within a span of CLOCK_MONOTONIC nanoseconds; raise DemoError if they are too few."""
    (start,) = (line for line in log if line["event"] == "start")
    steps = [line for line in log if line["event"] == "step"]
    kept = [step for step in steps if began <= step["start_mono_ns"] and step["end_mono_ns"] <= ended]
    if len(kept) < WARM_STEPS:
        raise DemoError(f"{len(kept)} steps in the window; try a longer --duration")
    return Part(start, kept)


def judge(diagnosis: Diagnosis, verified: dict[str, Any], before: Part, after: Part) -> list[Row]:
    """Judge that the job's own stream evicted the hot file, and no longer did with direct I/O."""
    start = before.start
    culprit = diagnosis.get("culprit") or {}
    actor = next(iter(culprit.get("actors") or []), {"comm": "unknown", "pid": None, "path": None})
    checks = {check["kind"]: check for check in verified.get("checks", [])}
    shards = f"{start['shards_in']}/shard_*.bin"
    again, once = (
        statistics.median(s[fact] for s in before.steps) / MIB for fact in ("hot_device_bytes", "streamed_bytes")
    )
    sampled = not demo.sees_everything(diagnosis)
    return [
        verdict_row(diagnosis, f"{again:.0f} MiB a step read back, beside {once:.0f} MiB read once"),
        same(diagnosis, "hot file", start["hot"], culprit.get("path")),
        same(diagnosis, "who streams", f"pid {start['pid']}", f"pid {actor['pid']}" if actor["pid"] else None),
        same(diagnosis, "its files", shards, actor["path"]),
        demo.ticket_row(diagnosis),
        halved(
            "waits for the hot file", "% of the time", checks.get(WAITS), (before.waits_pct, after.waits_pct), sampled
        ),
        halved(
            "hot file from the disk", "MiB/s", checks.get(RETURNS), (before.device_mib_s, after.device_mib_s), sampled
        ),
        step_row(verified, before, after),
    ]


def verdict_row(diagnosis: Diagnosis, logged: str) -> Row:
    """Judge the cause; on a machine that other programs load, "likely" is right too."""
    lacks = set(diagnosis.get("missing") or [])
    if lacks and lacks <= BUSY and (diagnosis["verdict"], diagnosis.get("cause")) == ("likely", CAUSE):
        return Row("verdict", logged, f"{demo.words(diagnosis)} ({', '.join(sorted(lacks))})", True)
    return demo.verdict_row(diagnosis, logged, CAUSE)


def step_row(verified: dict[str, Any], before: Part, after: Part) -> Row:
    """Judge the job's own measure, at least half of its waiting gone; not if the verification has no verdict."""
    faster = after.step_s < before.step_s * (1 - before.waits_pct / 200)
    solved = verified.get("solved")
    lacks = ", ".join(verified.get("missing", []))
    found = f"cannot tell: {lacks}" if solved is None else "solved" if solved else "not solved"
    right = None if solved is None and lacks and faster else solved is True and faster
    return Row("a step", f"{before.step_s:.3f} -> {after.step_s:.3f} s", found, right)


def same(diagnosis: Diagnosis, name: str, logged: str, found: str | None) -> Row:
    """Judge that a name equals the logged one; with sampled data it may be missing."""
    missing = found is None and not demo.sees_everything(diagnosis)
    return Row(name, logged, found or "none", None if missing else found == logged)


def halved(name: str, unit: str, check: dict[str, Any] | None, logged: tuple[float, float], sampled: bool) -> Row:
    """Judge a value before and after: check and log agree before, and both have at most half of it afterwards.

    A check without a value afterwards found no problem any more. If `sampled`, the first value is an estimate.
    """
    before, after = logged
    shown = f"{before:.1f} -> {after:.1f} {unit}"
    if check is None or check["before"] is None:
        return Row(name, shown, "none", None if sampled else False)
    per = MIB if check["unit"] == "bytes/s" else 1
    was, now = check["before"] / per, (check["after"] or 0) / per
    halves = after <= before / 2 and now <= was / 2
    right = halves and abs(was - before) <= TOLERANCE * before
    found = f"{was:.1f} {unit}, then no more" if check["after"] is None else f"{was:.1f} -> {now:.1f} {unit}"
    return Row(name, shown, found, None if sampled and halves and not right else right)


def check_means() -> None:
    """Raise DemoError without root or a memory cgroup."""
    if os.geteuid() != 0:
        raise DemoError("a memory cgroup and a slow disk need root; run as root")
    try:
        with Cgroup("memory") as group:
            group.limit_memory(LIMIT_MIB * MIB)
    except (OSError, RuntimeError) as error:
        raise DemoError(f"no memory cgroup can be made: {error}; run on the host itself") from error


def ordinary_disk(stack: contextlib.ExitStack) -> Path:
    """Return a directory for the stream's files, removed with `stack`, with a page cache and direct I/O.

    The files are sparse: they use the page cache like others, but no disk space.
    """
    for parent in dict.fromkeys((tempfile.gettempdir(), "/var/tmp", str(Path.home()))):
        numbers = {mount.number: mount.kind for mount in mounts()}
        with contextlib.suppress(OSError):
            device = os.stat(parent).st_dev
            if numbers.get(f"{os.major(device)}:{os.minor(device)}") in NO_CACHE:
                continue
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whystall-demo-", dir=parent)))
            if demo.takes_direct(directory):
                return directory
    raise DemoError("no disk with direct I/O to stream from; set TMPDIR to a directory on one")


@contextlib.contextmanager
def job(disk: SlowDisk, shards: Path, log: Path, before: Sequence[str] = ()) -> Iterator[Callable[[], list[Event]]]:
    """Start the job with the command prefix `before`; yield a reader of its log after its first steps; then stop it."""
    places = ["--directory", str(disk.path), "--stream-directory", str(shards), "--fixed-names"]
    sizes = [f"--limit-mib={LIMIT_MIB}", f"--hot-mib={HOT_MIB}", f"--stream-mib={STREAM_MIB}", f"--steps={STEPS}"]
    argv = [sys.executable, str(HERE / "cache_job.py"), *places, *sizes]
    with log.open("wb") as out:
        process = subprocess.Popen(disk.command([*before, *argv]), stdout=out)
    try:
        (start,) = demo.wait_for("start", process, log)
        disk.follow(Path(start["cgroup_path"]))
        demo.wait_for("step", process, log, WARM_STEPS)
        yield lambda: demo.read_log(log)
    finally:
        demo.stop(process)


def announced(*arguments: str, environment: dict[str, str]) -> str:
    """Print a whystall command as a heading, run it, and return its output."""
    demo.heading(f"whystall {shlex.join(arguments)}")
    return demo.whystall(*arguments, environment=environment)


def section(page: str, mark: str) -> str:
    """Return the title of a page in Markdown, and its section with `mark`."""
    title, *sections = page.split("\n## ")
    return "\n\n".join([title.splitlines()[0], "...", *(f"## {s}".rstrip() for s in sections if mark in s), "..."])


def ticket(environment: dict[str, str]) -> dict[str, Any] | None:
    """Return the ticket; None if none was drafted."""
    tickets = json.loads(demo.whystall("tickets", "list", "--json", environment=environment))
    return tickets[0] if tickets else None


def run(options: Namespace) -> int:
    """Run the demo; return the exit status."""
    check_means()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whystall-demo-")))
        shards = ordinary_disk(stack)
        disk = stack.enter_context(SlowDisk(write_mib_s=None, read_mib_s=READ_MIB_S, size_mib=256))
        # A separate knowledge base: the demo's ticket is not an incident of this host.
        environment = {**os.environ, "WHYSTALL_HOME": str(home)}
        window = ["--duration", f"{options.duration:g}", "--lang", options.lang]
        demo.heading(
            f"a job limited to {LIMIT_MIB} MiB of memory: each step reads a file of {HOT_MIB} MiB again (on "
            f"{disk.device}, {READ_MIB_S:g} MiB/s), and {STREAM_MIB} MiB that are read once"
        )
        with job(disk, shards, home / "before.jsonl") as log:
            pid = log()[0]["pid"]
            began = time.monotonic_ns()
            words = ("diagnose", "--pid", str(pid), "--ticket", "--calibrate", "--symptom", SYMPTOM, *window)
            print(announced(*words, environment=environment), flush=True)
            recorded, ended = log(), time.monotonic_ns()
        drafted = ticket(environment)
        if drafted is None:
            demo.heading("no ticket: the job was diagnosed as healthy")
            return 1
        diagnosis = {**drafted["diagnosis"], "ticket": drafted["id"]}
        before = within(recorded, *demo.measured_span(diagnosis, began, ended))
        demo.heading(f"the same job, as: whystall hybrid-run -- {Path(sys.executable).name} cache_job.py ...")
        hybrid = [sys.executable, "-m", "whystall.agent_server", "hybrid-run", "--lang", options.lang, "--"]
        with job(disk, shards, home / "after.jsonl", hybrid) as log:
            pid, began = log()[0]["pid"], time.monotonic_ns()
            page = announced("verify", drafted["id"], "--pid", str(pid), *window, environment=environment)
            after = within(log(), began, time.monotonic_ns())
            verified = (ticket(environment) or drafted)["verifications"][-1]
            print(section(page, verified["at"]), flush=True)
            demo.heading("output of hybrid-run when the job ends")
        demo.heading("compared with the job's own log")
        return 0 if demo.show(judge(diagnosis, verified, before, after), "the job") else 1


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    command = Parser(description=(__doc__ or "").split("\n\n")[0])
    command.add_argument("--duration", type=between(float, 4, 60), default=8.0, help="of each window, s (default: 8)")
    command.add_argument("--lang", choices=("en", "zh"), default="en")
    return demo.guarded(run, command.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
