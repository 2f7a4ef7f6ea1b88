"""Undo the changes of a case to the host, also if the runner is killed.

Every action that outlives a process is written to a journal before it happens. A *cleanup process* reads from a pipe
whose other end the runner holds. When the runner ends, for any reason, it reads end-of-file and undoes the remaining
actions of the journal, newest first. If it was killed too, the next start of the runner does this (`undo_abandoned`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_JOURNALS = Path("/run") if os.access("/run", os.W_OK) else Path("/tmp")
_PREFIX = "job-journal-"
_GONE_S = 5.0


class UndoError(OSError):
    """A change to the host could not be undone: further cases would not be valid."""


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _kill_group(pid: int, started: int | None) -> None:
    """Kill the process group of leader `pid`, unless the pid was reused."""
    now = start_time(pid)
    if now is not None and now != started:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int, started: int | None) -> None:
    """Kill a process with its descendants and all processes of their sessions, unless the pid was reused.

    `started`: when it started, by `start_time`; None if it has just ended, and only what it left is killed.
    """
    if start_time(pid) != started:
        return
    tree: set[int] = set()
    found = _descendants({pid}) if started is None else {pid}
    while found:
        for one in found:  # a stopped process cannot start another one before it is killed
            _signal(one, signal.SIGSTOP)
        tree |= found
        found = _descendants({pid, *tree})
    for one in tree:
        _signal(one, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants(pids: set[int]) -> set[int]:
    """Return the other processes whose parent or session is one of `pids`, without those that have ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if state not in "ZX" and pids & {int(parent), int(session)}:
                found.add(int(path.parent.name))
    return found - pids


def _remove_cgroup(path: str) -> None:
    """Thaw, kill what is in the cgroup, and remove it."""
    place = Path(path)
    if not place.exists():
        return
    for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        if (place / name).exists():
            (place / name).write_text(value)
    deadline = time.monotonic() + _GONE_S
    while pids := [int(word) for word in (place / "cgroup.procs").read_text().split()]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path}: processes {pids} do not end")
        time.sleep(0.02)
    _retry(place.rmdir)


def _unmount(path: str) -> None:
    _retry(lambda: _call("umount", path, absent=("not mounted", "no mount point", "not found")))


def _abort_fuse(connection: str) -> None:
    """Abort the calls that wait for a FUSE server that no longer responds."""
    with contextlib.suppress(FileNotFoundError):
        Path(f"/sys/fs/fuse/connections/{connection}/abort").write_text("1")


def _remove_tree(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if Path(path).is_file():
        Path(path).unlink()


def _write(path: str, value: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        Path(path).write_text(value)


def _run(argv: list[str]) -> None:
    _call(*argv, absent=("No such", "not exist", "Cannot find"))


def _call(*argv: str, absent: tuple[str, ...] = ()) -> None:
    """Run a command; raise OSError if it fails, except because its object is `absent`."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode and not any(word in done.stderr for word in absent):
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _retry(action: Callable[[], object]) -> None:
    """Retry an action that fails while processes are still ending."""
    deadline = time.monotonic() + _GONE_S
    while True:
        try:
            action()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


_ACTIONS: dict[str, Callable[..., None]] = {
    "kill_group": _kill_group,
    "kill_tree": kill_tree,
    "remove_cgroup": _remove_cgroup,
    "unmount": _unmount,
    "abort_fuse": _abort_fuse,
    "remove_tree": _remove_tree,
    "write": _write,
    "run": _run,
}


class Journal:
    """The actions to undo, in a file that survives this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, action: str, *arguments: Any) -> None:
        """Append an undo action, before the change is made."""
        if action not in _ACTIONS:
            raise ValueError(f"unknown action {action!r}")
        with self.path.open("a") as file:
            file.write(json.dumps([action, *arguments]) + "\n")

    def undo_all(self) -> list[str]:
        """Run all actions, newest first; return those that failed. Idempotent."""
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return []
        failed = []
        for line in reversed(lines):
            action, *arguments = json.loads(line)
            try:
                _ACTIONS[action](*arguments)
            except OSError as error:
                failed.append(f"{action} {arguments}: {error}")
        self.path.unlink(missing_ok=True)
        return failed


def undo_abandoned() -> list[str]:
    """Run the journals whose runner and cleanup process have both ended; return the actions that failed."""
    failed = []
    for path in _JOURNALS.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by the cleanup process while it lives
            failed += Journal(path).undo_all()
    return failed


@contextmanager
def journal() -> Iterator[Journal]:
    """Yield a journal that is run on leaving, or by the cleanup process if this process is killed.

    Raises UndoError on leaving if something could not be undone.
    """
    path = _JOURNALS / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    # Locked before it gets its name, so that another runner never considers it abandoned.
    part = path.with_name(f"part-{path.name}")
    lock = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    part.rename(path)
    read_end, write_end = os.pipe()  # the cleanup process reads; end-of-file means that this process ended
    cleaner = subprocess.Popen(
        [sys.executable, "-m", __name__, str(path), str(read_end)],
        pass_fds=(read_end, lock),
        start_new_session=True,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    os.close(read_end)
    os.close(lock)  # inherited by the cleanup process
    assert cleaner.stdout is not None
    cleaner.stdout.read(1)
    failed: list[str] = []
    try:
        yield Journal(path)
    finally:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            failed = Journal(path).undo_all()
            os.close(write_end)
            cleaner.wait()
            cleaner.stdout.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if failed:
        raise UndoError("; ".join(failed))


def _clean_up_after(path: Path, fd: int) -> None:
    """Wait until the runner ends, then run the journal."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b".")
    os.close(1)
    while os.read(fd, 1):
        pass
    for line in Journal(path).undo_all():
        print(line, file=sys.stderr)


if __name__ == "__main__":
    _clean_up_after(Path(sys.argv[1]), int(sys.argv[2]))
