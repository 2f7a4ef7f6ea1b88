"""whystall watch on live jobs: one stall of 2.2 s at a random time, of a random kind; how often it is explained.

    python -m benchmarks.watch_trials [--trials N] [--kinds K ...] [--together N] [--seed N] [--json FILE] [--out FILE]

The jobs are those of ``src/watch_job.py``; their own logs say how long each step took. In every batch one job more is
healthy. One watcher follows all jobs of a batch. Needs root, control groups v1 and loop devices. ``--out`` replaces
this benchmark's section in a report.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Report, Row, publish

TITLE = "Watch: jobs that stall once for 2.2 s, of eleven kinds, and healthy jobs beside them"
STALL_S = 2.2
LEARN_S, QUIET_S, SPREAD_S, TAIL_S, PATIENCE_S = 20.0, 30.0, 20.0, 30.0, 150.0
HEALTHY = "healthy"
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
CGROUPS = Path("/sys/fs/cgroup")
ACCEPTED = {
    "lock": {"file_lock_held"},
    "gil": {"interpreter_lock_contention"},
    "hogs": {"real_time_hog", "cpu_contention", "low_cpu_weight", "wrong_affinity"},
    "quota": {"cgroup_cpu_throttling"},
    "stop": {"stopped_process"},
    "freezer": {"frozen_cgroup"},
    "loader": {"data_loader_slow", "data_loader_stuck", "stopped_process", "worker_waiting", "data_loader_waiting"},
    "service": {"slow_peer", "silent_peer"},
    "rank": {"slow_rank_on_path", "slow_peer", "absent_rank"},
    "fsfreeze": {"frozen_file_system"},
    "read": {"io_limit", "slow_file_read", "slow_device"},
}
"""The causes that name each kind of stall rightly."""


@dataclass
class Job:
    """A running job. `due`: when its stall began, CLOCK_MONOTONIC, s."""

    kind: str
    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    due: float = 0.0

    @property
    def pids(self) -> set[int]:
        return {one.pid for one in self.processes}

    def steps(self) -> list[dict[str, Any]]:
        """Return what its ranks logged; a line that was being written is left out."""
        rows = []
        for path in self.directory.glob("steps*.jsonl"):
            rows += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return [row for row in rows if "step" in row]

    def trains(self) -> bool:
        """Return whether all its ranks have just made a step."""
        return time.time() - self.last_step() < 0.3

    def last_step(self) -> float:
        """Return when the rank that is furthest behind last logged a step or evaluation, Unix time; 0 before that."""
        return min((path.stat().st_mtime for path in self.directory.glob("steps*.jsonl")), default=0.0)


# --- stalls -----------------------------------------------------------------------------------------------------------


def _lock(job: Job) -> None:
    holder = "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f,2); time.sleep(2.2)"
    subprocess.run([sys.executable, "-c", holder, str(job.directory / "cache.lock")], check=True)


def _asked(name: str) -> Callable[[Job], None]:
    return lambda job: (job.directory / name).touch()


def _hogs(job: Job) -> None:
    """Compete for the job's CPU at nice -20: a real-time hog leaves it 5 %, enough for a step a second."""
    command = ["nice", "-n", "-20", "taskset", "-c", "1", sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(command, start_new_session=True) for _ in range(3)]
    for hog in hogs:
        group = Path(f"/proc/{hog.pid}/autogroup")
        if group.exists():  # then a nice value counts only against tasks of the same session
            group.write_text("-20")
    _until_stalled(job)
    for hog in hogs:
        hog.kill()
        hog.wait()


def _quota(job: Job) -> None:
    limit = _group(job, "cpu") / "cpu.cfs_quota_us"
    limit.write_text("1000")
    _until_stalled(job)
    limit.write_text("-1")


def _stop(job: Job) -> None:
    _stopped(job, job.processes[0].pid)


def _loader(job: Job) -> None:
    _stopped(job, int((job.directory / "loader.pid").read_text()))


def _stopped(job: Job, pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    _until_stalled(job)
    os.kill(pid, signal.SIGCONT)


def _until_stalled(job: Job) -> None:
    """Wait until the job has made no step for the time of a stall; it may first use up what it has in its queue."""
    end = time.monotonic() + 4 * STALL_S
    while time.monotonic() < end and time.time() - job.last_step() < STALL_S:
        time.sleep(0.02)


def _freezer(job: Job) -> None:
    state = _group(job, "freezer") / "freezer.state"
    state.write_text("FROZEN")
    _until_stalled(job)
    state.write_text("THAWED")


def _fsfreeze(job: Job) -> None:
    disk = str(job.directory / "disk")
    subprocess.run(["fsfreeze", "-f", disk], check=True)
    _until_stalled(job)
    subprocess.run(["fsfreeze", "-u", disk], check=True)


def _read(job: Job) -> None:
    device = os.stat(job.directory / "disk").st_dev
    limit = _group(job, "blkio") / "blkio.throttle.read_bps_device"
    limit.write_text(f"{os.major(device)}:{os.minor(device)} 30000")
    _until_stalled(job)
    limit.write_text(f"{os.major(device)}:{os.minor(device)} 0")


INJECT: dict[str, Callable[[Job], None]] = {
    "lock": _lock,
    "gil": _asked("do_gil"),
    "hogs": _hogs,
    "quota": _quota,
    "stop": _stop,
    "freezer": _freezer,
    "loader": _loader,
    "service": _asked("do_service"),
    "rank": _asked("do_rank"),
    "fsfreeze": _fsfreeze,
    "read": _read,
}
_GROUPS = {"quota": "cpu", "freezer": "freezer", "read": "blkio"}
_DISKS = ("fsfreeze", "read")


def _group(job: Job, controller: str) -> Path:
    return CGROUPS / controller / f"whystall-trial-{job.directory.name}"


# --- jobs -------------------------------------------------------------------------------------------------------------


@contextmanager
def _disk(job: Job) -> Iterator[None]:
    """Mount a small ext4 of its own, with a file of features."""
    image, place = job.directory / "image", job.directory / "disk"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        (place / "features").write_bytes(os.urandom(4 << 20))
        os.sync()
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@contextmanager
def _in_group(job: Job, controller: str) -> Iterator[list[str]]:
    place = _group(job, controller)
    place.mkdir()
    try:
        yield ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(place / "cgroup.procs")]
    finally:
        for _ in range(50):
            try:
                place.rmdir()
                break
            except OSError:
                time.sleep(0.1)


@contextmanager
def _running(job: Job) -> Iterator[None]:
    with ExitStack() as stack:
        (job.directory / "disk").mkdir(parents=True)
        if job.kind in _DISKS:
            stack.enter_context(_disk(job))
        prefix = stack.enter_context(_in_group(job, _GROUPS[job.kind])) if job.kind in _GROUPS else []
        prefix = ["taskset", "-c", "1", *prefix] if job.kind == "hogs" else prefix
        program = [sys.executable, str(ROOT / "benchmarks/src/watch_job.py"), str(job.directory)]
        ranks: list[tuple[list[str], dict[str, str]]] = [([], {})]
        if job.kind == "rank":
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = str(probe.getsockname()[1])
            shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks = [([str(rank), port], {**shared, "RANK": str(rank)}) for rank in range(2)]
        try:
            for arguments, extra in ranks:
                environment = {**os.environ, **extra}
                job.processes.append(
                    subprocess.Popen([*prefix, *program, *arguments], env=environment, start_new_session=True)
                )
            yield
        finally:
            for process in job.processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def batch(kinds: list[str], chance: random.Random, base: Path) -> list[dict[str, Any]]:
    """Run jobs that stall in the ways `kinds` together, and return what became of each."""
    home = base / "home"
    home.mkdir(parents=True)
    jobs = [Job(kind, base / f"{number}-{kind}-{base.name}") for number, kind in enumerate(kinds)]
    with ExitStack() as stack:
        for job in jobs:
            stack.enter_context(_running(job))
        time.sleep(3)
        named = [f"--pid={pid}" for job in jobs for pid in sorted(job.pids)]
        command = [WHYSTALL, "watch", *named, "--learn", str(LEARN_S), "--min-age", "2"]
        watcher = subprocess.Popen(command, env={**os.environ, "WHYSTALL_HOME": str(home)})
        began = time.monotonic()
        threads = []
        for job in jobs:
            if job.kind != HEALTHY:
                at = began + QUIET_S + chance.uniform(0, SPREAD_S)
                threads.append(threading.Thread(target=_stall_at, args=(job, at)))
        for thread in threads:
            thread.start()
        time.sleep(QUIET_S + SPREAD_S + TAIL_S)
        _wait_for_answers(home)
        watcher.send_signal(signal.SIGTERM)
        watcher.wait()
        for thread in threads:
            thread.join()
    return [_judged(job, home) for job in jobs]


def _wait_for_answers(home: Path) -> None:
    """Wait until no stall is left to investigate: on a busy host that takes a while."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        time.sleep(11)  # the status is written every 10 s
        if not json.loads((home / "watch" / "status.json").read_text()).get("pending"):
            return


def _stall_at(job: Job, at: float) -> None:
    """Stall `job` at `at`, or soon after, when it trains: during an evaluation it would do nothing that can stall."""
    time.sleep(max(0.0, at - time.monotonic()))
    while time.monotonic() < at + PATIENCE_S / 3 and not job.trains():
        time.sleep(0.05)
    job.due = time.monotonic()
    INJECT[job.kind](job)


def _judged(job: Job, home: Path) -> dict[str, Any]:
    log = home / "watch" / "stalls.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    ours = [one for one in entries if one.get("pid") in job.pids]
    ticketed = [one for one in ours if one.get("answer", {}).get("ticket")]
    steps = job.steps()
    longest = max((one for one in steps if not job.due or one["at"] > job.due), key=lambda one: one["s"], default={})
    row: dict[str, Any] = {
        "kind": job.kind,
        "longest_step_s": round(longest.get("s", 0.0), 2),
        "median_step_s": round(sorted(one["s"] for one in steps)[len(steps) // 2], 3) if steps else 0.0,
        "entries": [
            {
                "why": one["why"],
                "stall": one.get("stall", {}).get("kind"),
                "s": _length(one),
                "cause": one.get("answer", {}).get("cause", ""),
                "verdict": one.get("answer", {}).get("verdict", ""),
                "error": one.get("answer", {}).get("error", ""),
                "after_s": round(one["noticed_ns"] / 1e9 - job.due, 1) if job.due else None,
            }
            for one in ours
        ],
    }
    due = [one for one in ticketed if job.due and _overlaps(one, job.due)]
    others = [one for one in ticketed if one not in due]
    right = [one for one in due if one["answer"]["cause"] in ACCEPTED.get(job.kind, set())]
    row["named"] = bool(right)
    row["stalled_step_s"] = round(_stalled_step_s(steps, job.due), 2) if job.due else 0.0
    row["ticket"] = bool(due)
    row["verdict"] = due[0]["answer"]["verdict"] if due else ""
    row["cause"] = due[0]["answer"]["cause"] if due else ""
    row["others"] = len(others)
    row["wrong_confirmed"] = sum(
        one["answer"]["verdict"] == "confirmed" and one not in right for one in [*due, *others]
    )
    row["evidence_before"] = bool(due) and all(one["stall"]["start_ns"] < one["noticed_ns"] for one in due)
    return row


def _stalled_step_s(steps: list[dict[str, Any]], due: float) -> float:
    """Return the time of the longest step that was in progress when the stall began or soon after; on a busy host a job
    may be elsewhere at that time, and hardly be stalled."""
    return max((one["s"] for one in steps if one["at"] > due and one["at"] - one["s"] < due + 1), default=0.0)


def _length(entry: dict[str, Any]) -> float | None:
    stall = entry.get("stall")
    return round((stall["end_ns"] - stall["start_ns"]) / 1e9, 2) if stall and stall["end_ns"] else None


def _overlaps(entry: dict[str, Any], due: float) -> bool:
    stall = entry["stall"]
    end = stall["end_ns"] or stall["start_ns"] + 60e9
    return bool(stall["start_ns"] / 1e9 <= due + STALL_S + 2 and end / 1e9 >= due)


def drawn(kinds: list[str], trials: int, together: int, chance: random.Random) -> list[list[str]]:
    """Return batches of kinds, every kind about equally often, with a healthy job in each."""
    order = [kind for _ in range(-(-trials // len(kinds))) for kind in chance.sample(kinds, len(kinds))][:trials]
    return [[*order[at : at + together], HEALTHY] for at in range(0, len(order), together)]


def summary(rows: list[dict[str, Any]]) -> list[Row]:
    """Return the lines of the report."""
    stalled = [row for row in rows if row["kind"] != HEALTHY]
    healthy = [row for row in rows if row["kind"] == HEALTHY]
    count = len(stalled)
    wrong = Counter(f"{row['kind']}: {row['cause'] or 'no ticket'}" for row in stalled if not row["named"])
    return [
        Row("stalls named rightly", f"{sum(row['named'] for row in stalled)} of {count}"),
        Row(
            "whose jobs logged a step of at least 1.8 s then",
            f"{sum(row['stalled_step_s'] >= 1.8 for row in stalled)} of {count}",
        ),
        Row("with a ticket", f"{sum(row['ticket'] for row in stalled)} of {count}"),
        Row("evidence from before it was noticed", f"{sum(row['evidence_before'] for row in stalled)} of {count}"),
        Row("confirmed", str(sum(row["verdict"] == "confirmed" for row in stalled))),
        Row("wrongly confirmed", str(sum(row["wrong_confirmed"] for row in rows))),
        Row("other tickets on stalled jobs", str(sum(row["others"] for row in stalled))),
        Row("tickets on healthy jobs", f"{sum(row['others'] for row in healthy)} of {len(healthy)} jobs"),
        Row("not named", "; ".join(f"{n} x {what}" for what, n in wrong.most_common()) or "none"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=33)
    parser.add_argument("--kinds", nargs="+", choices=list(INJECT), default=list(INJECT))
    parser.add_argument("--together", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append one line per job")
    parser.add_argument("--keep", type=Path, help="keep the files of the trials below this directory")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    rows: list[dict[str, Any]] = []
    base = arguments.keep or Path(tempfile.mkdtemp(prefix="watch-trials-"))
    for number, kinds in enumerate(drawn(arguments.kinds, arguments.trials, arguments.together, chance)):
        found = batch(kinds, chance, base / f"{os.getpid()}-{number}")
        rows += found
        for row in found:
            print(json.dumps(row), flush=True)
        if arguments.json:
            with arguments.json.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
    if not arguments.keep:
        shutil.rmtree(base, ignore_errors=True)
    for row in summary(rows):
        print(f"{row.what}: {row.ours}")
    if arguments.out:
        publish(Report(TITLE, summary(rows)), arguments.out)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
