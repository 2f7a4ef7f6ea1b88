"""Look at a process as an engineer does with ``py-spy dump``, ``top`` and ``ps``: twenty times within five seconds."""

from __future__ import annotations

import json
import linecache
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.scenario import HERE

DUMPS = 20
_SECONDS = 5.0
_BETWEEN_S = 0.05  # between two readings of the states, of which there are several for each dump
_LIMIT_S = 3.0
_REAL_TIME = (1, 2, 6)  # SCHED_FIFO, SCHED_RR, SCHED_DEADLINE
_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_CANNOT_RUN = "Tt"  # stopped, traced: py-spy would wait until the process continues
_OWN_TOOLS = HERE.parents[1] / ".setup/py-spy/bin"


@dataclass(frozen=True)
class Frame:
    """A Python frame with the text of its line."""

    function: str
    file: str
    line: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


@dataclass(frozen=True)
class ThreadSample:
    """A thread at one instant. `frames`: innermost first. `state`, `wchan`: as ``ps -o state,wchan``."""

    pid: int
    tid: int
    state: str
    wchan: str = ""
    frames: tuple[Frame, ...] = ()
    gil: bool = False
    file: str = ""


@dataclass(frozen=True)
class Stat:
    """A line of ``/proc/PID/stat``; CPU times in seconds."""

    comm: str
    state: str
    user_s: float
    system_s: float
    rss_mib: float
    policy: int


@dataclass
class Look:
    """What was seen. CPU in percent of one CPU, by thread (`user`, `system`) or by process (`others`).

    `ready`: by thread, how often its state was R, of all readings. `idle_pct`, `iowait_pct`: of all CPUs. `others`:
    processes outside the job by pid; `real_time`, `stopped`: which of them.
    """

    pid: int
    dumps: list[list[ThreadSample]] = field(default_factory=list)
    user_pct: dict[int, float] = field(default_factory=dict)
    system_pct: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)
    owner: dict[int, int] = field(default_factory=dict)
    others: dict[int, float] = field(default_factory=dict)
    real_time: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    idle_pct: float = 0.0
    iowait_pct: float = 0.0
    cpus: int = 1
    allowed: int = 1
    rss_mib: list[float] = field(default_factory=list)
    swap_mib: float = 0.0
    error: str = ""


def program() -> str:
    """Return the path of py-spy. Raises FileNotFoundError."""
    found = shutil.which("py-spy") or shutil.which("py-spy", path=f"{_OWN_TOOLS}:{Path(sys.executable).parent}")
    if found is None:
        raise FileNotFoundError("py-spy is not installed: pip install py-spy")
    return found


def stat(path: Path) -> Stat | None:
    """Return the state of a process or thread, None if it ended."""
    try:
        text = (path / "stat").read_text()
    except OSError:
        return None
    words = text[text.rindex(")") + 2 :].split()
    return Stat(
        comm=text[text.index("(") + 1 : text.rindex(")")],
        state=words[0],
        user_s=int(words[11]) / _TICKS,
        system_s=int(words[12]) / _TICKS,
        rss_mib=int(words[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
        policy=int(words[38]),
    )


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for one in found:
        for task in _tasks(one):
            found += [int(text) for text in _text(task / "children").split()]
    return found


def look(pid: int, spy: str) -> Look:
    """Observe a process and its descendants."""
    seen = Look(pid, cpus=os.cpu_count() or 1, allowed=_allowed(pid))
    own = family(pid)
    start, host, threads = _processes(), _host(), _threads(own)
    began = time.monotonic()
    ready: dict[int, list[bool]] = {}
    for number in range(DUMPS):
        own = family(pid)
        seen.dumps.append(_dump(spy, pid, own, seen))
        seen.rss_mib.append(sum(one.rss_mib for p in own if (one := stat(_PROC / str(p)))))
        while (now := time.monotonic()) < began + (number + 1) * _SECONDS / DUMPS:
            for task in (task for one in own for task in _tasks(one)):
                if found := stat(task):
                    ready.setdefault(int(task.name), []).append(found.state == "R")
            time.sleep(min(_BETWEEN_S, max(0.0, began + (number + 1) * _SECONDS / DUMPS - now)))
    seconds = time.monotonic() - began
    _usage(seen, seconds, threads, _threads(own))
    end = _processes()
    beside = {p: one for p, one in end.items() if p not in own and p not in (os.getpid(), os.getppid())}
    seen.others = {p: round(_cpu_pct(one, start.get(p), seconds), 1) for p, one in beside.items()}
    seen.real_time = [p for p, one in beside.items() if one.policy in _REAL_TIME]
    seen.stopped = [p for p, one in beside.items() if one.state in _CANNOT_RUN]
    seen.swap_mib = _swap_mib(pid)
    spent = [b - a for a, b in zip(host, _host(), strict=True)]
    seen.idle_pct, seen.iowait_pct = (100 * one / max(1, sum(spent)) for one in spent[3:5])
    seen.ready = {tid: sum(states) / len(states) for tid, states in ready.items() if states}
    return seen


def _usage(seen: Look, seconds: float, before: dict[int, tuple[int, Stat]], after: dict[int, tuple[int, Stat]]) -> None:
    for tid, (pid, now) in after.items():
        then = before.get(tid, (pid, None))[1]
        seen.owner[tid] = pid
        seen.user_pct[tid] = 100 * (now.user_s - (then.user_s if then else 0.0)) / seconds
        seen.system_pct[tid] = 100 * (now.system_s - (then.system_s if then else 0.0)) / seconds


def _dump(spy: str, pid: int, own: list[int], seen: Look) -> list[ThreadSample]:
    """Return all threads now, with the frames of those that run Python."""
    samples = {}
    for task in (task for one in own for task in _tasks(one)):
        if found := stat(task):
            tid = int(task.name)
            wchan = _text(task / "wchan").strip()
            samples[tid] = ThreadSample(int(task.parts[2]), tid, found.state, wchan, file=_file(task))
    waits = any(one.state in _CANNOT_RUN + "D" or "freez" in one.wchan for one in samples.values())
    options = ["--json", "--full-filenames", *(["--nonblocking"] if waits else []), *(["-s"] if len(own) > 1 else [])]
    try:
        done = subprocess.run([spy, "dump", *options, "--pid", str(pid)], capture_output=True, timeout=_LIMIT_S)
        threads = json.loads(done.stdout or b"[]")
        seen.error = done.stderr.decode(errors="replace").strip()[-200:] if done.returncode else seen.error
    except (subprocess.TimeoutExpired, ValueError) as error:
        threads, seen.error = [], str(error)[:200]
    for one in threads:
        if (sample := samples.get(one["os_thread_id"] or 0)) is not None:
            frames = tuple(_frames(one["pid"], one["frames"]))
            samples[sample.tid] = ThreadSample(
                sample.pid, sample.tid, sample.state, sample.wchan, frames, bool(one["owns_gil"]), sample.file
            )
    return list(samples.values())


def _frames(pid: int, frames: Iterable[dict[str, object]]) -> Iterator[Frame]:
    for one in frames:
        file, line = str(one["filename"]), int(str(one["line"]))
        source = linecache.getline(file, line) or linecache.getline(f"/proc/{pid}/root{file}", line)
        yield Frame(str(one["name"]).rpartition(".")[2], file, line, source.strip())


def _file(task: Path) -> str:
    """Return the file that the first argument of the system call in progress names, if that is a descriptor."""
    words = _text(task / "syscall").split()
    try:
        number = int(words[1], 16)
        return str((task / "fd" / str(number)).readlink()) if number < 1 << 16 else ""
    except (IndexError, ValueError, OSError):
        return ""


def _tasks(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _threads(pids: Iterable[int]) -> dict[int, tuple[int, Stat]]:
    tasks = [(pid, task) for pid in pids for task in _tasks(pid)]
    return {int(task.name): (pid, found) for pid, task in tasks if (found := stat(task))}


def _processes() -> dict[int, Stat]:
    return {int(path.name): found for path in _PROC.glob("[0-9]*") if (found := stat(path))}


def _cpu_pct(now: Stat, then: Stat | None, seconds: float) -> float:
    used = now.user_s + now.system_s - (then.user_s + then.system_s if then else 0.0)
    return 100 * max(0.0, used) / seconds


def _host() -> list[int]:
    return [int(word) for word in _text(_PROC / "stat").split("\n", 1)[0].split()[1:9]]


def _status(pid: int, key: str) -> str:
    lines = _text(_PROC / str(pid) / "status").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:")), "")


def _allowed(pid: int) -> int:
    """Return the number of CPUs that the process may use, from ``0-1,4``."""
    ends = [part.split("-") for part in _status(pid, "Cpus_allowed_list").split(",") if part]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ends) or 1


def _swap_mib(pid: int) -> float:
    words = _status(pid, "VmSwap").split()
    return int(words[0]) / 1024 if words else 0.0
