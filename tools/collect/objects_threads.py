"""Read what the threads of a process wait for, and who holds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from whystall.bpf import layout, syscalls
from whystall.bpf.process_groups import ProcessGroup, process_groups
from whystall.bpf.python_stacks import HeldLock, PythonThreads
from whystall.bpf.python_walk import Memory
from whystall.tools.collect import proc_parse as parse
from whystall.tools.collect.objects_frozen import Freezers
from whystall.tools.collect.objects_locks import NONE, Lock, lock_at
from whystall.tools.collect.objects_proc import Proc, waited_descriptors, waited_path
from whystall.tools.collect.objects_python import Interpreters
from whystall.tools.collect.proc_calls import syscall_name
from whystall.tools.contract.text import clean, clean_path

EVENTFD = b"anon_inode:[eventfd]"
ABANDONED = "abandoned"
"""Kind of a mutex that was held by a thread of the parent when its process was forked."""
EVENTPOLL = b"anon_inode:[eventpoll]"
_EVENTFD_ID = re.compile(rb"^eventfd-id:\s*(\d+)", re.MULTILINE)
# tfd:        5 events:       19 data:  5  pos:0 ino:3a4 sdev:9
_EPOLL_MEMBER = re.compile(rb"^tfd:\s*(\d+)", re.MULTILINE)
_MOST_MEMBERS = 256
_FEW_THREADS = 500  # with more threads, kernel stacks are read in state D only: one takes 20 us


@dataclass
class ThreadInfo:
    """A thread; the columns of ``objects.threads``. `objects`: (descriptor, object) of all that it waits for, of an
    epoll set its members; the first is `object`. `members`: the rows of ``objects.members``."""

    pid: int
    tid: int
    comm: str
    state: str
    wchan: str = ""
    syscall: str = ""
    object: str = ""
    fd: int = -1
    word: int = 0
    lock: Lock = NONE
    holds_gil: bool = False
    tracer_pid: int = 0
    frozen: bool = False
    kstack: tuple[str, ...] = ()
    pystack: tuple[str, ...] = ()
    limited: int = -1
    objects: list[tuple[int, str]] = field(default_factory=list)
    members: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Process:
    """The threads of a process, its interpreter locks, and its process groups of torch.distributed. `left`: threads
    that were not read."""

    threads: list[ThreadInfo]
    locks: list[HeldLock]
    groups: list[ProcessGroup] = field(default_factory=list)
    left: int = 0


class ThreadReader:
    """Reads processes; a thread that ends meanwhile is left out."""

    def __init__(self, proc: Proc, interpreters: Interpreters, freezers: Freezers) -> None:
        self._proc = proc
        self._interpreters = interpreters
        self._freezers = freezers

    def read(self, pid: int, most: int, over: Callable[[], bool]) -> Process:
        """Return at most `most` threads of process `pid`. `over`: whether the time is used up."""
        tids = self._proc.tids(pid)
        status = self._proc.read(pid, "status")
        tasks = self._tasks(pid, tids, status)
        traced, frozen = tracer(status), self._freezers.frozen(self._proc.read(pid, "cgroup"))
        found = Process([], [], left=max(0, len(tids) - most))
        try:
            memory: Memory | None = Memory(pid)
        except PermissionError:
            self._proc.deny("mem", pid)
            memory = None
        except OSError:
            memory = None  # it ends
        try:
            python = self._interpreters.threads(pid, memory, tasks) if memory is not None else None
            found.locks = python.locks if python is not None else []
            for at, tid in enumerate(tids[:most]):
                if over():
                    found.left += len(tids[:most]) - at
                    break
                thread = self._thread(pid, tid, memory, tasks, python)
                if thread is not None:
                    thread.frozen = frozen
                    if traced or thread.state == "t":
                        thread.tracer_pid = tracer(self._proc.read(pid, "status", tid))
                    found.threads.append(thread)
            if python is not None:
                _name_owners(python, found.threads, over)
            if memory is not None:
                with suppress(OSError):  # it ends
                    found.groups = process_groups(pid, memory, [thread.tid for thread in found.threads])
        finally:
            if memory is not None:
                memory.close()
        return found

    def _tasks(self, pid: int, tids: list[int], status: bytes) -> dict[int, int]:
        """Return the thread ids on the host by those in the process's own pid namespace."""
        if len(_field(status, b"NSpid").split()) <= 1:
            return {tid: tid for tid in tids}
        found = {}
        for tid in tids:
            inner = _field(self._proc.read(pid, "status", tid), b"NSpid").split()
            if inner:
                found[int(inner[-1])] = tid
        return found

    def _thread(
        self, pid: int, tid: int, memory: Memory | None, tasks: Mapping[int, int], python: PythonThreads | None
    ) -> ThreadInfo | None:
        # the call before the state: a thread that wakes in between is then running, and not in a call that it left
        denied = self._proc.denied
        text = self._proc.read(pid, "syscall", tid) if pid not in denied.get("syscall", ()) else b""
        try:
            call = parse.syscall(text)
            stat = parse.pid_stat(self._proc.read(pid, "stat", tid))
        except ValueError:
            return None  # it ended
        if stat.state in "ZX":
            return None
        thread = ThreadInfo(pid, tid, stat.comm, stat.state)
        if python is not None:
            thread.holds_gil = any(held.holder_tid == tid for held in python.locks)
            thread.pystack = self._interpreters.labels(python.stack(tid))
        if stat.state == "R":
            return thread
        few = len(tasks) <= _FEW_THREADS or stat.state == "D"
        if few and pid not in denied.get("stack", ()):
            thread.kstack = tuple(parse.kernel_stack(self._proc.read(pid, "stack", tid)))
        # wchan is the innermost function outside of the scheduler, with which these stacks begin
        thread.wchan = thread.kstack[0] if thread.kstack else clean(self._proc.read(pid, "wchan", tid)).strip("0")
        if call is not None and call.nr >= 0:
            self._call(thread, call, memory, tasks, python.locks if python is not None else [])
        return thread

    def _call(
        self,
        thread: ThreadInfo,
        call: parse.InSyscall,
        memory: Memory | None,
        tasks: Mapping[int, int],
        locks: list[HeldLock],
    ) -> None:
        """Fill in the system call and what it waits for."""
        thread.syscall = syscall_name(call.nr)
        thread.limited = _limited(call, thread.syscall)
        if syscalls.row(thread.syscall)["flags"] & layout.ROW_FUTEX and len(call.args) >= 3:
            thread.word, operation, expected = call.args[:3]
            interpreter = next((held for held in locks if thread.word in held.lock.words), None)
            if interpreter is not None:
                thread.lock = Lock("gil", interpreter.holder_tid)
            elif memory is not None and 0 < thread.word < 1 << 63:
                thread.lock = self._verified(lock_at(memory, thread.word, operation, expected, tasks), tasks)
            thread.word = thread.word if thread.word < 1 << 63 else 0
            return
        numbers = waited_descriptors(call, thread.syscall, memory)
        waited = [(number, self.name(thread.pid, number)) for number in numbers]
        thread.objects += [(number, name) for number, name in waited if name]
        if thread.objects:
            thread.fd, thread.object = thread.objects[0]
        else:
            thread.object = clean_path(waited_path(call, thread.syscall, memory))
        if thread.object == EVENTPOLL.decode():
            thread.members = self._members(thread.pid, thread.fd)
            thread.objects += [(number, name) for number, name in thread.members if name]
        elif len(waited) > 1:
            thread.members = waited

    def _verified(self, lock: Lock, tasks: Mapping[int, int]) -> Lock:
        """Return a lock whose owner is no thread of the process with its number if that thread has ended.

        If it is a thread of another process, the lock was copied by a fork; in another pid namespace the number is
        unknown.
        """
        if not lock.foreign_owner:
            return lock
        own_namespace = all(inner == outer for inner, outer in tasks.items())
        if own_namespace and not self._proc.exists(lock.foreign_owner):
            return Lock(lock.kind, lock.foreign_owner)
        if lock.shared:
            return lock if own_namespace else Lock(lock.kind)
        return Lock(ABANDONED)

    def name(self, pid: int, number: int) -> str:
        """Return the target of a descriptor as in /proc/PID/fd; an eventfd with its number."""
        link = self._proc.link(pid, f"fd/{number}")
        return self.eventfd(pid, number) if link == EVENTFD else clean_path(link)

    def eventfd(self, pid: int, number: int) -> str:
        """Return the name of an eventfd: ``anon_inode:[eventfd:17]``; without the number before Linux 5.2."""
        found = _EVENTFD_ID.search(self._proc.read(pid, f"fdinfo/{number}"))
        return f"anon_inode:[eventfd:{int(found[1])}]" if found else EVENTFD.decode()

    def _members(self, pid: int, number: int) -> list[tuple[int, str]]:
        """Return the descriptors in an epoll set; -1 stands for those that were left out."""
        numbers = _EPOLL_MEMBER.findall(self._proc.read(pid, f"fdinfo/{number}"))
        found = [(int(member), self.name(pid, int(member))) for member in numbers[:_MOST_MEMBERS]]
        return found if len(numbers) <= _MOST_MEMBERS else [*found, (-1, "")]


def _name_owners(python: PythonThreads, threads: list[ThreadInfo], over: Callable[[], bool]) -> None:
    """Fill in the owners of Python's locks, which do not store them."""
    waiting = [thread for thread in threads if thread.word and thread.lock == NONE]
    owners = python.lock_owners({thread.word for thread in waiting}, over)
    for thread in waiting:
        if thread.word in owners:
            thread.lock = Lock("python", owners[thread.word])


def _limited(call: parse.InSyscall, name: str) -> int:
    """Return 1 if a system call ends after a time by itself, 0 if it does not, -1 if that is unknown."""
    row = syscalls.row(name)
    kind, number = row.get("time_kind", layout.TIME_NONE), row.get("time", 0)
    if name == "restart_syscall" or number >= len(call.args):
        return -1
    if kind == layout.TIME_NONE:
        return 0
    value = call.args[number]
    # a number of milliseconds, negative for no limit, or the address of a structure
    return int(not value & 0x80000000 if kind == layout.TIME_MS else value != 0)


def tracer(status: bytes) -> int:
    """Return the TracerPid of a status file; 0 if there is none."""
    text = _field(status, b"TracerPid")
    return int(text) if text.isdigit() else 0


def _field(status: bytes, name: bytes) -> bytes:
    at = status.find(b"\n" + name + b":")
    return status[at + len(name) + 2 : status.find(b"\n", at + 1)].strip() if at >= 0 else b""
