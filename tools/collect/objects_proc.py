"""Read the files of processes in /proc, and record which may not be read."""

from __future__ import annotations

import os
from typing import NamedTuple

from whystall.bpf import layout, syscalls
from whystall.bpf.python_walk import Reader
from whystall.tools.collect import proc_parse as parse

_MOST_DESCRIPTORS = 4096
_MOST_POLLED = 64
_MOST_SELECTED = 1024
_PATH_BYTES = 4096
_POLLS = frozenset({"poll", "ppoll"})
_SELECTS = frozenset({"select", "pselect6"})


class Descriptor(NamedTuple):
    """A descriptor of a process: its number, and where its link in /proc/PID/fd leads."""

    number: int
    link: bytes


class Proc:
    """Reads files below `root`. `denied`: processes by the name of the file that may not be read."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = root
        self.denied: dict[str, set[int]] = {}

    def read(self, pid: int, name: str, tid: int = 0, most: int = 1 << 16) -> bytes:
        """Return at most `most` bytes of a file of a process, or of its thread `tid`; empty if there is none."""
        path = f"{self.root}/{pid}/task/{tid}/{name}" if tid else f"{self.root}/{pid}/{name}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                content = os.read(descriptor, min(most, 1 << 16))
                # the kernel returns at most a few pages at a time of longer files
                while most > 1 << 16 and len(content) < most and (more := os.read(descriptor, 1 << 16)):
                    content += more
                return content
            finally:
                os.close(descriptor)
        except PermissionError:
            self.deny(name.partition("/")[0], pid)
        except OSError:
            pass  # it has ended
        return b""

    def deny(self, what: str, pid: int) -> None:
        """Record a file that may not be read."""
        self.denied.setdefault(what, set()).add(pid)

    def tids(self, pid: int) -> list[int]:
        """Return the threads of a process, its main thread first; empty if it has ended."""
        try:
            found = (int(name) for name in os.listdir(f"{self.root}/{pid}/task"))
            return sorted(found, key=lambda tid: (tid != pid, tid))
        except OSError:
            return []

    def pids(self) -> list[int]:
        """Return all processes, the newest first, without our own."""
        own = os.getpid()
        found = (int(name) for name in os.listdir(self.root) if name.isdigit())
        return sorted((pid for pid in found if pid != own), reverse=True)

    def exists(self, tid: int) -> bool:
        """Return whether a process or thread has this number."""
        return os.path.exists(f"{self.root}/{tid}")

    def link(self, pid: int, name: str) -> bytes:
        """Return where a link of a process leads; empty if it cannot be read."""
        try:
            return os.readlink(f"{self.root}/{pid}/{name}".encode())
        except PermissionError:
            self.deny(name.partition("/")[0], pid)
        except OSError:
            pass  # it has ended
        return b""

    def descriptors(self, pid: int) -> list[Descriptor]:
        """Return the open descriptors of a process, at most `_MOST_DESCRIPTORS`."""
        base = f"{self.root}/{pid}/fd"
        try:
            numbers = sorted(int(name) for name in os.listdir(base))[:_MOST_DESCRIPTORS]
        except PermissionError:
            self.deny("fd", pid)
            return []
        except OSError:
            return []
        found = []
        for number in numbers:
            try:
                found.append(Descriptor(number, os.readlink(f"{base}/{number}".encode())))
            except OSError:
                continue  # closed meanwhile
        return found

    def access(self, pid: int, number: int) -> tuple[bool, bool]:
        """Return whether a descriptor may be read, and written: the permissions of its link; False if it is closed."""
        try:
            mode = os.lstat(f"{self.root}/{pid}/fd/{number}").st_mode
        except OSError:
            return False, False
        return bool(mode & 0o400), bool(mode & 0o200)

    def comm(self, pid: int) -> bytes:
        """Return the name of a process; empty if it has ended."""
        return self.read(pid, "comm").removesuffix(b"\n")

    def state(self, pid: int) -> parse.PidStat | None:
        """Return /proc/PID/stat; None if it has ended."""
        try:
            return parse.pid_stat(self.read(pid, "stat"))
        except ValueError:
            return None


def waited_descriptors(call: parse.InSyscall, name: str, memory: Reader | None) -> list[int]:
    """Return the descriptors that a system call waits for, in the order of its arguments; of poll and select those in
    its memory."""
    args = call.args
    if name in _POLLS and len(args) >= 2:
        return _polled(memory, args[0], args[1])
    if name in _SELECTS and len(args) >= 4:
        return _selected(memory, args[0], args[1:4])
    position = syscalls.row(name)["fd"]
    if position == layout.NO_ARG or position >= len(args):
        return []
    number = args[position] & 0xFFFFFFFF
    return [number] if number < 1 << 31 else []


def waited_path(call: parse.InSyscall, name: str, memory: Reader | None) -> bytes:
    """Return the absolute path among the arguments of a system call; empty without one."""
    position = syscalls.row(name)["path"]
    if memory is None or position == layout.NO_ARG or position >= len(call.args):
        return b""
    address = call.args[position]
    for size in (_PATH_BYTES, -address % _PATH_BYTES):  # the path may end with the mapped memory
        try:
            path, end, _ = memory.read(address, size).partition(b"\0")
        except (OSError, OverflowError):
            continue
        return path if end and path.startswith(b"/") else b""
    return b""


def _polled(memory: Reader | None, address: int, count: int) -> list[int]:
    """Return the descriptors of an array of struct pollfd (descriptor, events, returned events: 4, 2, 2 bytes)."""
    try:
        raw = memory.read(address, 8 * min(count, _MOST_POLLED)) if memory is not None and count else b""
    except (OSError, OverflowError):
        return []
    numbers = (int.from_bytes(raw[at : at + 4], "little", signed=True) for at in range(0, len(raw), 8))
    return [number for number in numbers if number >= 0]


def _selected(memory: Reader | None, limit: int, sets: tuple[int, ...]) -> list[int]:
    """Return the descriptors below `limit` whose bits are set in one of the `sets` at these addresses."""
    size = -(-min(limit, _MOST_SELECTED) // 64) * 8
    found: set[int] = set()
    for address in sets:
        try:
            raw = memory.read(address, size) if memory is not None and address and size else b""
        except (OSError, OverflowError):
            continue
        bits = int.from_bytes(raw, "little")
        found.update(bit for bit in range(8 * len(raw)) if bits >> bit & 1)
    return sorted(found)
