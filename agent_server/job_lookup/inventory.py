"""Read the processes of this host once.

Cost: four small files per process, some 60 us (measured on a 2-CPU x86_64 virtual machine). A process that ends
meanwhile is counted and left out; one with an unreadable environment is counted and kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from whystall.agent_server.job_lookup import addresses, cmdline
from whystall.agent_server.job_lookup.models import Inventory, Missed, Process
from whystall.tools.collect.proc_parse import NS, PidStat, pid_stat, ticks_ns
from whystall.tools.contract.text import clean_path
from whystall.tools.node import cgroups, environment
from whystall.tools.node.cgroups import Grouped
from whystall.tools.node.environment import Identity
from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.node.pods import Pods
from whystall.tools.node.vantage import host_name, node_process

MOST = 10_000
"""Maximum processes; the youngest are kept."""
_KTHREADD = 2


def read(root: Path = Path("/proc"), *, most: int = MOST, also: Iterable[int] = ()) -> Inventory:
    """Return the processes without kernel threads, zombies, and this process with its launchers.

    `also`: pids that are read regardless of `most`. Blocks; call it in a thread.
    """
    reader = _Reader(str(root))
    pids = sorted((int(name) for name in os.listdir(root) if name.isdigit()), reverse=True)
    wanted = dict.fromkeys([*(pid for pid in also if pid in set(pids)), *pids[:most]])
    found = [process for pid in wanted if (process := reader.process(pid)) is not None]
    missed = Missed(vanished=reader.vanished, denied=len(reader.denied), beyond=max(0, len(pids) - len(wanted)))
    own_pids = _own_ancestors(found)
    name = host_name(root)
    own = next((p.grouped.container for p in found if p.pid == os.getpid()), None)
    kept = sorted((p for p in found if p.pid not in own_pids), key=lambda p: p.pid)
    names = tuple(dict.fromkeys((name, name.partition(".")[0])))
    return Inventory(
        kept, missed, names, own, time.clock_gettime(time.CLOCK_BOOTTIME), addresses.own(node_process(root) or root)
    )


def start_ticks(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since boot; None if it has ended."""
    stat = _Reader("/proc").stat(pid)
    return None if stat is None or stat.state in "ZX" else stat.start_ticks


class _Reader:
    """Reads below `root` and counts unreadable processes."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.vanished = 0
        self.denied: set[int] = set()
        self._view = CgroupView(Path(root))
        self._pods = Pods(Path(root))

    def process(self, pid: int) -> Process | None:
        """Return the process `pid`; None for a kernel thread, a zombie, or one that has ended."""
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
        """Return `identity` with the pod's name from the node, since environments seldom contain it."""
        if grouped.pod_uid is None or identity.pod_name is not None:
            return identity
        namespace, _, name = (self._pods.name(grouped.pod_uid, grouped.container, pid) or "").rpartition("/")
        return replace(identity, pod_name=name or None, namespace=namespace or identity.namespace)

    def stat(self, pid: int) -> PidStat | None:
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


def _own_ancestors(processes: list[Process]) -> set[int]:
    """Return this process and its launchers, whose command lines contain the searched words; also shells with a script,
    which a scheduler may count to the job."""
    by_pid = {process.pid: process for process in processes}
    own_pids = {os.getpid()}
    above = by_pid.get(os.getppid())
    while above is not None and (above.program in cmdline.LAUNCHERS or _executable(above.pid) in cmdline.LAUNCHERS):
        own_pids.add(above.pid)
        above = by_pid.get(above.ppid)
    return own_pids


def _executable(pid: int) -> str:
    """Return the name of the file that an ancestor of this process runs; empty if it may not be read."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""
