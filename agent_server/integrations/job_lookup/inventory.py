"""Reads the processes of this host once, for who asks after a job.

Cost: four small files per process, some 60 us (measured on a 2-CPU x86_64 virtual machine). A process that ends
meanwhile is counted and left out; one whose environment may not be read is kept, and counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from whystall.agent_server.integrations.job_lookup import addresses, cmdline, environment
from whystall.agent_server.integrations.job_lookup.models import Identity, Inventory, Missed, Process
from whystall.tools.collect.proc_parse import NS, PidStat, pid_stat, ticks_ns
from whystall.tools.contract.text import clean_path
from whystall.tools.node import cgroups
from whystall.tools.node.cgroups import Grouped
from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.node.pods import Pods
from whystall.tools.node.vantage import host_name, node_process

MOST = 10_000
"""Processes that are read; of more, the youngest."""
_KTHREADD = 2


def read(root: Path = Path("/proc"), *, most: int = MOST, also: Iterable[int] = ()) -> Inventory:
    """The processes that live now, without kernel threads, zombies, and this one with what only started it.

    `also`: processes that are read whatever the bound. Blocks; call it in a thread.
    """
    reader = _Reader(str(root))
    pids = sorted((int(name) for name in os.listdir(root) if name.isdigit()), reverse=True)
    wanted = dict.fromkeys([*(pid for pid in also if pid in set(pids)), *pids[:most]])
    found = [process for pid in wanted if (process := reader.process(pid)) is not None]
    missed = Missed(vanished=reader.vanished, denied=len(reader.denied), beyond=max(0, len(pids) - len(wanted)))
    mine = _mine(found)
    name = host_name(root)
    own = next((p.grouped.container for p in found if p.pid == os.getpid()), None)
    kept = sorted((p for p in found if p.pid not in mine), key=lambda p: p.pid)
    called = tuple(dict.fromkeys((name, name.partition(".")[0])))
    return Inventory(kept, missed, called, own, _now(), addresses.own(node_process(root) or root))


def start_ticks(pid: int) -> int | None:
    """When process `pid` began, in clock ticks since the start of the host; None where it has ended."""
    stat = _Reader("/proc").stat(pid)
    return None if stat is None or stat.state in "ZX" else stat.start_ticks


class _Reader:
    """Reads below `root`, and counts what it could not."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.vanished = 0
        self.denied: set[int] = set()
        self._view = CgroupView(Path(root))
        self._pods = Pods(Path(root))

    def process(self, pid: int) -> Process | None:
        """The process `pid`; None for one that is none of ours to tell of, or gone."""
        stat = self.stat(pid)
        if stat is None or stat.state in "ZX" or _KTHREADD in (pid, stat.ppid):
            return None
        arguments = cmdline.argv(self._file(pid, "cmdline", cmdline.LIMIT) or b"")
        groups = self._view.lines(self._file(pid, "cgroup", 64 << 10) or b"")
        variables = self._file(pid, "environ", environment.LIMIT)
        text = "\n".join(clean_path(line) for line in groups.splitlines())
        grouped = cgroups.grouped(text)
        return Process(
            pid=pid,
            ppid=stat.ppid,
            comm=stat.comm,
            state=stat.state,
            start_ticks=stat.start_ticks,
            started_s=ticks_ns(stat.start_ticks) / NS,
            program=cmdline.program(arguments, stat.comm),
            words=cmdline.words(arguments),
            cgroup=cgroups.path_of(text),
            identity=self._named(environment.identity(variables) if variables else Identity(), grouped, pid),
            grouped=grouped,
        )

    def _named(self, identity: Identity, grouped: Grouped, pid: int) -> Identity:
        """`identity` with the name of the pod, which an environment seldom holds, as the node tells it."""
        if grouped.pod_uid is None or identity.pod_name is not None:
            return identity
        namespace, _, name = (self._pods.name(grouped.pod_uid, grouped.container, pid) or "").rpartition("/")
        return replace(identity, pod_name=name or None, namespace=namespace or identity.namespace)

    def stat(self, pid: int) -> PidStat | None:
        """The stat file of `pid`; None where it is gone."""
        raw = self._file(pid, "stat", 4096)
        try:
            return None if raw is None else pid_stat(raw)
        except ValueError:  # an exiting process gives an empty file
            self.vanished += 1
            return None

    def _file(self, pid: int, name: str, limit: int) -> bytes | None:
        try:
            descriptor = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                content = b""
                while len(content) < limit and (chunk := os.read(descriptor, min(limit - len(content), 1 << 16))):
                    content += chunk
                return content
            finally:
                os.close(descriptor)
        except PermissionError:
            self.denied.add(pid)
        except (FileNotFoundError, ProcessLookupError):
            self.vanished += name == "stat"
        return None


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _mine(processes: list[Process]) -> set[int]:
    """This process, and those above it that only started it: their command lines hold the words that are looked for."""
    by_pid = {process.pid: process for process in processes}
    mine = {os.getpid()}
    above = by_pid.get(os.getppid())
    while above is not None and above.program in cmdline.LAUNCHERS:
        mine.add(above.pid)
        above = by_pid.get(above.ppid)
    return mine
