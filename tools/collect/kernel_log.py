"""Read the kernel log, /dev/kmsg, and which processes the kernel killed for lack of memory.

Format of records: Documentation/ABI/testing/dev-kmsg of the kernel. The two lines of a kill (mm/oom_kill.c)::

    6,2032,25320993921,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,
        task_memcg=/job/a,task=python3,pid=19763,uid=0
    3,2033,25320993947,-;Memory cgroup out of memory: Killed process 19763 (python3) total-vm:221368kB,
        anon-rss:32512kB, file-rss:6632kB, shmem-rss:0kB, UID:0 pgtables:124kB oom_score_adj:0

The first one exists since Linux 5.0, and only for the first ten kills in five seconds (``oom_rs``). Records from user
space have a facility other than 0, so processes cannot forge these.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from whystall.tools.contract.text import clean, clean_path

_RECORD_BYTES = 8192
"""Longest record; a shorter buffer is refused (EINVAL)."""
_MOST_RECORDS = 4096
"""Most records read at once; the others follow with the next call."""
_RECORD = re.compile(rb"^(?P<priority>\d+),\d+,(?P<time_us>\d+),[^;]*;(?P<text>[^\n]*)")
_KILL = re.compile(
    # without CONFIG_MEMCG there are no cgroups
    rb"^oom-kill:constraint=[A-Z_]+,.*?(?:(?:,oom_memcg=(?P<limit>/.*?)|,global_oom),task_memcg=(?P<group>/.*))?"
    rb",task=(?P<comm>.{0,64}),pid=(?P<pid>\d{1,10}),uid=\d+$"
)
_KILLED = re.compile(
    rb"^(?P<what>Memory cgroup out of memory|Out of memory).*: Killed process (?P<pid>\d{1,10}) \((?P<comm>.{0,64})\) "
    rb"total-vm:\d+kB, anon-rss:(?P<anon>\d{1,15})kB"
)
_KERNEL = 8
"""Lower priorities are of facility 0, the kernel's."""


class OomKill(NamedTuple):
    """A killed process. `cgroup`: its own, None if it was not logged; `limit_cgroup`: the one whose limit was reached,
    empty for the host's memory, or if not logged. `anon_bytes` -1: unknown. `time_us`: by the log's clock, which may
    differ from CLOCK_MONOTONIC by seconds.
    """

    time_us: int
    pid: int
    comm: str
    cgroup: str | None
    limit_cgroup: str
    anon_bytes: int


def oom_kills(records: list[bytes]) -> list[OomKill]:
    """Return the kills among `records` of /dev/kmsg."""
    read = (record for raw in records if (record := _RECORD.match(raw)) is not None)
    return kills((int(one["time_us"]), one["text"]) for one in read if int(one["priority"]) < _KERNEL)


def kills(messages: Iterable[tuple[int, bytes]]) -> list[OomKill]:
    """Return the kills among `messages` of the kernel: (time in us, text without prefixes)."""
    found: dict[int, OomKill] = {}
    for time_us, text in messages:
        if (kill := _KILL.match(text)) is not None:
            group, limit = (clean_path(kill[name]) if kill[name] else "" for name in ("group", "limit"))
            pid = int(kill["pid"])
            found[pid] = OomKill(time_us, pid, clean(kill["comm"]), group, limit, -1)
        elif (killed := _KILLED.match(text)) is not None:
            pid, of_host = int(killed["pid"]), killed["what"].startswith(b"Out")
            alone = OomKill(time_us, pid, clean(killed["comm"]), "" if of_host else None, "", -1)
            found[pid] = found.get(pid, alone)._replace(anon_bytes=int(killed["anon"]) * 1024)
    return list(found.values())


class KernelLog:
    """Reads the records written after it was opened; without `new` also those that the kernel still has. `denied`: it
    may not be read, or does not exist."""

    def __init__(self, path: Path = Path("/dev/kmsg"), *, new: bool = True) -> None:
        self._descriptor = -1
        self.denied = False
        self.overwritten = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if new:
                os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            self.close()
            self.denied = True

    def read(self, most: int = _MOST_RECORDS) -> list[OomKill]:
        """Return the kills since the last call, among at most `most` records."""
        return oom_kills(self.records(most))

    def records(self, most: int = _MOST_RECORDS) -> list[bytes]:
        """Return at most `most` records since the last call; those overwritten before they were read are counted in
        `overwritten`."""
        records: list[bytes] = []
        while self._descriptor >= 0 and len(records) < most:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.overwritten += 1  # the next one follows
                    continue
                break
            if not record:
                break
            records.append(record)
        return records

    def close(self) -> None:
        """Close the log."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
