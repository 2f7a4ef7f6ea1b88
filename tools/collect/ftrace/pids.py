"""Resolve a PID filter to threads: of processes, of their children, and of PIDs inside a container.

Standard library only. The kernel's filter takes numbers of the initial PID namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from whystall.tools.collect.ftrace.options import RecordOptions
from whystall.tools.contract.errors import ErrorCode, ToolError

_INITIAL_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO: the inode of the first PID namespace is fixed
_LIST = "list processes with `ps -e`"


@dataclass(frozen=True)
class Followed:
    """What to follow, by the host's PIDs: `asked` for by the caller, whole `processes`, and all their `threads` now.
    `inside`: the container's PIDs by the host's.
    """

    asked: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    inside: dict[int, int] = field(default_factory=dict)


def in_initial_namespace() -> bool:
    """Return whether our PIDs are the host's; in another namespace the kernel's numbers are unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_NAMESPACE
    except OSError:
        return True  # a kernel without PID namespaces


def followed(options: RecordOptions) -> Followed:
    """Return the processes and threads of `options` now; all empty if they name none.

    Raises `ToolError`: no_such_process; bad_argument if a container's PID is not unique; no_privilege inside a
    container, where the host's PIDs are unknown.
    """
    if not options.pids:
        return Followed()
    if not in_initial_namespace():
        raise ToolError(
            ErrorCode.NO_PRIVILEGE,
            "the kernel filters by the host's PIDs, which are not known inside a container",
            "run on the host, or record everything",
        )
    inside: dict[int, int] = {}
    if options.in_namespace:
        inside = {_on_host(pid, options.namespace_of): pid for pid in options.pids}
    asked = list(inside) or list(options.pids)
    for pid in asked:
        if not lives(pid):
            raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"no process or thread has PID {pid}", _LIST)
    wholes = [pid for pid in asked if _status(pid, "Tgid") == [str(pid)]]
    if options.children:
        wholes = _with_children(wholes)
    threads = {*asked, *threads_of(wholes)}
    return Followed(tuple(asked), tuple(wholes), tuple(sorted(threads)), inside)


def threads_of(processes: Iterable[int]) -> list[int]:
    """Return all threads that `processes` have now."""
    return [thread for pid in processes for thread in _numbers(f"/proc/{pid}/task")]


def lives(pid: int) -> bool:
    """Return False for a process that has exited or is a zombie."""
    return _status(pid, "State")[:1] not in ([], ["Z"], ["X"])


def _with_children(pids: list[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in _numbers("/proc"):
        for parent in _status(pid, "PPid"):
            children.setdefault(int(parent), []).append(pid)
    found, queue = set(pids), list(pids)
    while queue:
        new = [pid for pid in children.get(queue.pop(), ()) if pid not in found]
        found.update(new)
        queue += new
    return sorted(found)


def _on_host(pid: int, of: int | None) -> int:
    """Return the host's PID of `pid` inside the container of process `of`, or inside the only one that has it."""
    wanted = _namespace(of) if of is not None else None
    if of is not None and wanted is None:
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"no process has PID {of}", _LIST)
    found = []
    for thread in _all_threads():
        numbers = _status(thread, "NSpid")
        if len(numbers) > 1 and int(numbers[-1]) == pid and wanted in (None, _namespace(thread)):
            found.append(thread)
    if not found:
        raise ToolError(
            ErrorCode.NO_SUCH_PROCESS,
            f"no container has a process or thread {pid}" if of is None else f"the container of {of} has no {pid}",
            "list a container's processes with `ps -e` inside it",
        )
    if len(found) > 1:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"{len(found)} containers have a {pid}, for the host {', '.join(map(str, found[:8]))}",
            "name the container by one of its processes as the host sees it",
        )
    return found[0]


def _all_threads() -> Iterator[int]:
    """Yield every thread of the host, main threads first, as those are usually meant."""
    processes = _numbers("/proc")
    yield from processes
    for pid in processes:
        yield from (thread for thread in _numbers(f"/proc/{pid}/task") if thread != pid)


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _numbers(directory: str) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(directory) if name.isdigit())
    except OSError:
        return []  # exited


def _status(pid: int, name: str) -> list[str]:
    """Return the words of one line of /proc/PID/status; empty if the process or the line does not exist."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return []
    prefix = name.encode() + b":"
    return next((line.decode("utf-8", "replace").split()[1:] for line in lines if line.startswith(prefix)), [])
