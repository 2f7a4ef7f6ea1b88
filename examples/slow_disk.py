#!/usr/bin/env python3
"""Make a slow disk: an ext4 image on a loop device, throttled for one cgroup, removed afterwards.

As a library::

    with SlowDisk(write_mib_s=50) as disk:
        subprocess.run(disk.command(["cp", "big.bin", str(disk.path)]))

As a command, with ``{dir}`` replaced by the mounted directory::

    slow_disk.py --write-mib-s 50 -- cp big.bin {dir}

The limit is blkio.throttle (cgroup v1) or io.max (v2) of a new cgroup, and applies to the processes in
it.  On v1 the kernel's flusher threads are outside of it: fsync and O_DIRECT are slow, because the
caller submits the blocks; a buffered write without fsync is not.

All names contain the creator's process id and start time: the next start removes what a killed process
left behind, and nothing that a running one uses.  Needs root, mount(8), mkfs.ext4.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from _command import Parser, between

MIB = 1 << 20
PREFIX = "whystall-slow"
NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-\d+")
GRACE_S = 2.0
GONE_TIMEOUT_S = 10.0
_counter = itertools.count()


class SlowDiskError(RuntimeError):
    """The disk cannot be created; the message is one line and states what to do."""


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo: device number ("7:0"), directory, file system, source and options."""

    number: str
    path: Path
    kind: str
    source: str
    options: frozenset[str]


def mounts() -> Iterator[Mount]:
    """Yield the mounts of this mount namespace, oldest first."""
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, source, options) = left.split(" "), right.split(" ")[:3]
        path = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        yield Mount(fields[2], Path(path), kind, source, frozenset(options.split(",")))


class Throttle:
    """A cgroup whose processes are limited on one block device: v1 if blkio is mounted there, else v2.

    Raises SlowDiskError if neither can be used.
    """

    def __init__(self, name: str, device_number: str) -> None:
        self._number = device_number
        self._legacy, root = self._controller()
        self.path = root / name
        try:
            if not self._legacy and "io" not in (root / "cgroup.subtree_control").read_text().split():
                (root / "cgroup.subtree_control").write_text("+io")
            self.path.mkdir()
        except OSError as error:
            raise SlowDiskError(f"no I/O cgroup below {root}: {error.strerror}; run on the host itself") from error

    @staticmethod
    def _controller() -> tuple[bool, Path]:
        listed = list(mounts())
        for mount in listed:
            if mount.kind == "cgroup" and "blkio" in mount.options:
                return True, mount.path
        for mount in listed:
            if mount.kind == "cgroup2" and "io" in (mount.path / "cgroup.controllers").read_text().split():
                return False, mount.path
        raise SlowDiskError("no blkio (v1) or io (v2) cgroup controller is mounted; mount one or use another disk")

    @property
    def procs(self) -> Path:
        """Return the file to which process ids are written."""
        return self.path / "cgroup.procs"

    def limit(self, write_bps: int, read_bps: int) -> None:
        """Set both limits in bytes per second; 0: no limit."""
        if self._legacy:
            (self.path / "blkio.throttle.write_bps_device").write_text(f"{self._number} {write_bps}")
            (self.path / "blkio.throttle.read_bps_device").write_text(f"{self._number} {read_bps}")
        else:
            line = f"{self._number} wbps={write_bps or 'max'} rbps={read_bps or 'max'}"
            (self.path / "io.max").write_text(line)

    def follow(self, cgroup: Path) -> None:
        """Set the limits for another cgroup too, if needed (see `SlowDisk.follow`)."""
        if not self._legacy and (cgroup / "io.max").exists():
            (cgroup / "io.max").write_text((self.path / "io.max").read_text())


class SlowDisk:
    """A mounted ext4 file system of ``size_mib`` MiB, limited for the processes enrolled.

    ``write_mib_s`` and ``read_mib_s`` are MiB per second; None: no limit.  The image is in ``directory``,
    by default in memory (/dev/shm) if there is space, so that only the limit makes it slow.  Leaving the
    context kills the enrolled processes and removes everything.  Raises SlowDiskError.
    """

    def __init__(
        self,
        *,
        write_mib_s: float | None,
        read_mib_s: float | None = None,
        size_mib: int = 512,
        directory: Path | None = None,
    ) -> None:
        self._rates = (write_mib_s, read_mib_s)
        self._size = size_mib * MIB
        self._parent = directory
        self._stack = contextlib.ExitStack()
        self._mount: Mount | None = None
        self._throttle: Throttle | None = None

    @property
    def path(self) -> Path:
        """Return the mounted directory."""
        return self._parts()[0].path

    @property
    def device(self) -> str:
        """Return the loop device, such as ``/dev/loop0``."""
        return self._parts()[0].source

    @property
    def device_number(self) -> str:
        """Return the device as ``major:minor``."""
        return self._parts()[0].number

    @property
    def cgroup(self) -> Path:
        """Return the directory of the limited cgroup."""
        return self._parts()[1].path

    def enroll(self, pid: int) -> None:
        """Limit a running process and its future children."""
        self._parts()[1].procs.write_text(str(pid))

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ``argv`` with the limit from its first instruction."""
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._parts()[1].procs), *argv]

    def follow(self, cgroup: Path) -> None:
        """Limit the processes of another cgroup too, such as one with a memory limit.

        On v2 processes that entered it have left this one; on v1 they are in both.
        """
        self._parts()[1].follow(cgroup)

    def limit(self, *, write_mib_s: float | None, read_mib_s: float | None = None) -> None:
        """Change the limits (MiB per second; None: no limit), also for running processes."""
        self._parts()[1].limit(int((write_mib_s or 0) * MIB), int((read_mib_s or 0) * MIB))

    def __enter__(self) -> SlowDisk:
        if os.geteuid() != 0:
            raise SlowDiskError("a slow disk needs root (loop device, mount, cgroup); run as root or use --directory")
        self._stack.enter_context(_exit_on_sigterm())
        try:
            self._make()
        except OSError as error:
            self._stack.close()
            raise SlowDiskError(f"cannot make the slow disk: {error.strerror}: {error.filename}") from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._mount = self._throttle = None

    def _make(self) -> None:
        _reap()
        pid = os.getpid()
        name = f"{PREFIX}-{pid}-{_start_time(pid)}-{next(_counter)}"
        image = (self._parent or _roomy_directory(self._size)).resolve() / f"{name}.image"
        target = Path(tempfile.gettempdir()).resolve() / name
        self._stack.callback(_remove, name)
        target.mkdir(mode=0o755)
        with image.open("xb") as file:
            file.truncate(self._size)
        self._stack.callback(image.unlink, missing_ok=True)
        # No lazy initialisation: a kernel thread would write to the disk during measurements.
        _call("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        # The loop device of `mount -o loop` is released on unmount, and with it the unlinked image.
        _call("mount", "-t", "ext4", "-o", "loop,noatime,nodev,nosuid", str(image), str(target))
        image.unlink()
        self._mount = next(mount for mount in reversed(list(mounts())) if mount.path == target)
        self._throttle = Throttle(name, self._mount.number)
        self.limit(write_mib_s=self._rates[0], read_mib_s=self._rates[1])

    def _parts(self) -> tuple[Mount, Throttle]:
        if self._mount is None or self._throttle is None:
            raise SlowDiskError("the slow disk is not mounted: use it in a with block")
        return self._mount, self._throttle


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that the clean-up runs; main thread only."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def unwind(signum: int, _frame: object) -> NoReturn:
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGTERM and SIGINT until the block ends: an interrupted clean-up would leave a mount behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _call(*argv: str) -> None:
    """Run a system command; raise SlowDiskError with its message if it fails."""
    program = shutil.which(argv[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise SlowDiskError(f"{argv[0]} is missing; install e2fsprogs and mount")
    done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        message = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise SlowDiskError(f"{argv[0]} failed: {message}")


def _start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _places() -> list[Path]:
    """Return the directories for images, preferred first."""
    return [path for path in (Path("/dev/shm"), Path(tempfile.gettempdir())) if path.is_dir()]


def _roomy_directory(size: int) -> Path:
    for place in _places():
        if shutil.disk_usage(place).free > 2 * size:
            return place
    raise SlowDiskError(f"no space for an image of {size // MIB} MiB; ask for a smaller one")


def _cgroups() -> Iterator[Path]:
    """Yield the cgroups of slow disks in all hierarchies."""
    for mount in mounts():
        if mount.kind in ("cgroup", "cgroup2"):
            yield from mount.path.glob(f"{PREFIX}-*")


def _reap() -> None:
    """Remove what killed creators left behind, unless another process is doing so."""
    fd = os.open("/sys/fs/cgroup", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in _leftovers():
            _remove(name)
    except BlockingIOError:
        return
    finally:
        os.close(fd)


def _leftovers() -> list[str]:
    """Return the names of slow disks whose creator has ended.

    In world-writable directories only root's files count, so that other users cannot choose what root
    unmounts or deletes.
    """
    paths = [*_cgroups(), *(mount.path for mount in mounts())]
    paths += [path for place in _places() for path in place.glob(f"{PREFIX}-*") if path.lstat().st_uid == 0]
    found = {path.stem: NAME.fullmatch(path.stem) for path in paths}
    return sorted(name for name, match in found.items() if match and _start_time(int(match[1])) != int(match[2]))


def _remove(name: str) -> None:
    """Remove all existing parts of one slow disk; idempotent."""
    with _signals_blocked():
        for cgroup in {path for path in _cgroups() if path.name == name}:
            _empty(cgroup)
            _retry(cgroup.rmdir)
        for mount in [mount for mount in mounts() if mount.path.name == name]:
            _unmount(mount)
        for place in _places():
            (place / f"{name}.image").unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (place / name).rmdir()


def _empty(cgroup: Path) -> None:
    """Stop the processes of a cgroup with SIGTERM, then SIGKILL; move the calling process out of it."""
    procs = cgroup / "cgroup.procs"
    deadline = time.monotonic() + GRACE_S
    signum = signal.SIGTERM
    signalled: set[tuple[int, signal.Signals]] = set()
    while pids := [int(word) for word in procs.read_text().split()]:
        if time.monotonic() > deadline:
            signum = signal.SIGKILL
        if time.monotonic() > deadline + GONE_TIMEOUT_S:
            raise SlowDiskError(f"processes {pids} do not end; they keep {cgroup} in use")
        for pid in pids:
            if pid == os.getpid():
                (cgroup.parent / "cgroup.procs").write_text(str(pid))
            elif (pid, signum) not in signalled:
                signalled.add((pid, signum))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
        _remove_limits(cgroup)  # after the signal: processes that wait for the disk then end instead of continuing
        time.sleep(0.02)


def _remove_limits(cgroup: Path) -> None:
    """Remove the limits, so that processes waiting for the disk can end at once."""
    for name, none in (
        ("blkio.throttle.write_bps_device", "0"),
        ("blkio.throttle.read_bps_device", "0"),
        ("io.max", "wbps=max rbps=max"),
    ):
        if (limits := cgroup / name).exists():
            for line in limits.read_text().splitlines():
                limits.write_text(f"{line.split()[0]} {none}")


def _unmount(mount: Mount) -> None:
    """Unmount, after `GRACE_S` lazily if it is still in use."""
    try:
        _retry(lambda: _call("umount", str(mount.path)))
    except SlowDiskError:
        _call("umount", "--lazy", str(mount.path))
        return
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while Path(f"/sys/dev/block/{mount.number}/loop").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def _retry(action: Callable[[], None]) -> None:
    """Repeat an action that fails while something is busy, for `GRACE_S`; raise the last error."""
    deadline = time.monotonic() + GRACE_S
    while True:
        try:
            return action()
        except (OSError, SlowDiskError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def parser() -> Parser:
    """The command line."""
    out = Parser(description=(__doc__ or "").split("\n\n")[0], usage="%(prog)s [options] -- COMMAND [ARGUMENT ...]")
    option = out.add_argument
    option("--write-mib-s", type=between(float, 0, 1e6), default=50.0, help="default %(default)s; 0: no limit")
    option("--read-mib-s", type=between(float, 0, 1e6), default=0.0, help="default: no limit")
    option("--size-mib", type=between(int, 16, 65536), default=512, help="of the image (default %(default)s)")
    option("--directory", type=Path, help="for the image (default: in memory if there is space)")
    option("command", nargs="+", help="to run; {dir} becomes the slow directory")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run a command with a slow disk; return its exit status, or 2 if the disk cannot be created."""
    options = parser().parse_args(argv)
    try:
        with SlowDisk(
            write_mib_s=options.write_mib_s,
            read_mib_s=options.read_mib_s,
            size_mib=options.size_mib,
            directory=options.directory,
        ) as disk:
            command = disk.command([word.replace("{dir}", str(disk.path)) for word in options.command])
            status = subprocess.run(command).returncode
    except SlowDiskError as error:
        print(f"slow_disk.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
