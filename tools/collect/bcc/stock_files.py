"""Stock tools about files and disks: fileslower, biolatency, cachestat."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

from whystall.tools.collect import proc_parse
from whystall.tools.collect.bcc import parse
from whystall.tools.collect.bcc.running import Running
from whystall.tools.collect.bcc.stock import AGREE, FEW, UNKNOWN, StockMethod, skipped_second, unparsed_lines
from whystall.tools.collect.bcc.threads import process_of
from whystall.tools.collect.options import SyscallOptions
from whystall.tools.collect.tables import BLOCK, PAGE_CACHE, SYSCALLS_WITHOUT_FAILURES, filled
from whystall.tools.recording.collector import Capture

_MS = 1_000_000


class Fileslower(StockMethod):
    """Slow reads and writes. No independent count exists, so that the capture is never proven."""

    collector: ClassVar[str] = "syscalls"
    tools: ClassVar[tuple[str, ...]] = ("fileslower",)
    kprobes: ClassVar[bool] = True

    def _spawn(self) -> None:
        self._calls: list[parse.SlowCall] = []
        self._pids: dict[int, int] = {}
        self._unparsed = 0
        self._start_s = 0.0
        pid = self._only_pid()
        self._min_ms = max(1, SyscallOptions.of(self._wanted, "syscalls").min_ns // _MS)
        self._running = [Running("fileslower", "FILENAME", self._feed, pid=pid, min_ms=self._min_ms)]

    def _feed(self, line: str) -> None:
        call = parse.slow_call(line)
        if call is None:
            self._unparsed += bool(line.strip())
            return
        self._calls.append(call)
        if call.tid not in self._pids:  # at once, before the thread exits
            only = self._only_pid()
            self._pids[call.tid] = process_of(call.tid) if only is None else only

    def _start(self, skip_next: bool) -> None:
        self._start_s = time.monotonic()

    def _capture(self) -> Capture:
        min_ns = SyscallOptions.of(self._wanted, "syscalls").min_ns
        start_ns, zero_ns = int(self._start_s * 1e9), int(self._running[0].ready_at * 1e9)
        files: dict[str, int] = {}
        rows = []
        for call in self._calls:
            end_ns = zero_ns + int(call.end_s * 1e9)
            if end_ns < start_ns or call.latency_ns < min_ns:
                continue
            file = files.setdefault(call.name, len(files))
            rows.append(
                {
                    "start_ns": end_ns - call.latency_ns,
                    "end_ns": end_ns,
                    "pid": self._pids[call.tid],
                    "tid": call.tid,
                    "comm": call.comm,
                    "syscall": call.operation,
                    "file": file,
                    "fd": UNKNOWN,
                    "asked": call.asked,
                    "returned": UNKNOWN,
                    "offset": UNKNOWN,
                    "direct": None,
                    **dict.fromkeys(("oncpu_ns", "blocked_ns", "sleep_ns", "runnable_ns"), UNKNOWN),
                    "in_flight": False,
                    "kstack": UNKNOWN,
                }
            )
        names = [
            {"file": n, "path": name, "dev": "", "ino": UNKNOWN, "fstype": "", "complete": False, "deleted": False}
            for name, n in files.items()
        ]
        not_seen = [("stock_fileslower", "")]
        if self._min_ms * _MS > min_ns:
            not_seen.append(("below_threshold", f"syscalls {self._min_ms} ms"))
        return Capture(
            tables=filled(SYSCALLS_WITHOUT_FAILURES, calls=rows, files=names),
            hooks=[f"{self.name}: kprobe vfs_read, vfs_write"],
            seen=len(rows),
            kept=len(rows),
            lost=0,
            proven=False,
            not_seen=not_seen + unparsed_lines(self._unparsed),
        )


class Biolatency(StockMethod):
    """Latency of requests per disk, from issue to completion; bytes from /proc/diskstats."""

    collector: ClassVar[str] = "block"
    tools: ClassVar[tuple[str, ...]] = ("biolatency",)
    kprobes: ClassVar[bool] = True

    def _spawn(self) -> None:
        self._found = parse.Histograms()
        self._seconds = parse.PerSecond(lambda block: parse.histograms(block, self._found, "disk"))
        self._running = [Running("biolatency", "Ctrl-C", self._seconds.feed)]
        self._before: dict[str, proc_parse.DiskStat] = {}
        self._after: dict[str, proc_parse.DiskStat] = {}

    def _start(self, skip_next: bool) -> None:
        self._seconds.restart(skip_next)
        self._found.counts.clear()
        self._before = _disks()

    def _read_final_counts(self) -> None:
        self._after = _disks()

    def _capture(self) -> Capture:
        self._seconds.end()
        slots, totals, requests = [], [], Counter[str]()
        for device, counts in sorted(self._found.counts.items()):
            requests[device] = sum(counts.values())
            for slot, count in sorted(counts.items()):
                slots.append((device, "", "device", *slot, count))
            totals.append((device, "", requests[device], self._bytes(device), UNKNOWN, UNKNOWN, UNKNOWN))
        not_seen = [("stock_biolatency", "")]
        if self._found.full:
            not_seen.append(("histogram_full", self.name))
        return Capture(
            tables=filled(BLOCK, latency=slots, totals=totals),
            hooks=[f"{self.name}: kprobe blk_mq_start_request, blk_account_io_done", "/proc/diskstats"],
            seen=sum(requests.values()),
            kept=0,
            lost=int(self._found.full),
            proven=not self._found.full and self._agrees(requests),
            not_seen=not_seen + skipped_second(self.name, self._seconds) + unparsed_lines(self._seconds.unparsed),
        )

    def _bytes(self, device: str) -> int:
        before, after = self._before.get(device), self._after.get(device)
        if before is None or after is None:
            return UNKNOWN
        return max(0, after.read_bytes + after.write_bytes - before.read_bytes - before.write_bytes)

    def _agrees(self, requests: Counter[str]) -> bool:
        """Return whether every disk completed about as many as were observed: not none if it completed some, and none
        has requests in flight while it completes nothing."""
        for device, after in self._after.items():
            before = self._before.get(device)
            if before is None:
                continue
            done = after.reads + after.writes - before.reads - before.writes
            few = requests[device] < AGREE * done - FEW or (done > 0 and not requests[device])
            if few or (after.in_flight > 0 and done == 0):
                return False
        return True


class Cachestat(StockMethod):
    """Hits and misses of the whole host's page cache. Never proven: no independent count exists."""

    collector: ClassVar[str] = "page_cache"
    tools: ClassVar[tuple[str, ...]] = ("cachestat",)
    kprobes: ClassVar[bool] = True

    def _spawn(self) -> None:
        self._hits = self._misses = self._unparsed = 0
        self._skip = False
        self._running = [Running("cachestat", "HITRATIO", self._feed)]

    def _feed(self, line: str) -> None:
        counts = parse.cache_counts(line)
        if counts is None:
            self._unparsed += line.strip() not in ("", "Detaching...")
        elif self._skip:
            self._skip = False
        else:
            self._hits, self._misses = self._hits + counts.hits, self._misses + counts.misses

    def _start(self, skip_next: bool) -> None:
        self._hits = self._misses = self._unparsed = 0
        self._skip = skip_next

    def _capture(self) -> Capture:
        row = dict.fromkeys(PAGE_CACHE["use"].names(), UNKNOWN)
        accessed = self._hits + self._misses
        rows = [{**row, "pid": 0, "comm": "", "accessed": accessed, "added": self._misses}] if accessed else []
        return Capture(
            tables=filled(PAGE_CACHE, use=rows),
            hooks=[f"{self.name}: kprobe add_to_page_cache_lru, mark_page_accessed"],
            seen=accessed,
            kept=len(rows),
            lost=0,
            proven=False,
            not_seen=[("stock_cachestat", ""), *unparsed_lines(self._unparsed)],
        )


def _disks() -> dict[str, proc_parse.DiskStat]:
    """Return the counters of disks with request queues; md and dm pass on bios and never reach the hooks."""
    try:
        disks = proc_parse.diskstats(Path("/proc/diskstats").read_bytes())
    except (OSError, ValueError):
        return {}
    return {disk.device: disk for disk in disks if Path("/sys/block", disk.device, "mq").is_dir()}
