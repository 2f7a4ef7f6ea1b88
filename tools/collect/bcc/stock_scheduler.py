"""Stock tools about the scheduler and interrupts: offcputime, runqlat, softirqs and hardirqs."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import ClassVar

import polars as pl

from whystall.tools.collect.bcc import parse
from whystall.tools.collect.bcc.running import Running
from whystall.tools.collect.bcc.stock import AGREE, FEW, UNTOLD, StockMethod, late, odd
from whystall.tools.collect.bcc.threads import Switches
from whystall.tools.collect.proc_interrupts import HARD, SOFT, Counts, InterruptCounts
from whystall.tools.collect.proc_run_queue import ThreadWaits
from whystall.tools.collect.tables import FILES, INTERRUPTS, RUN_QUEUE, STACKS, SWITCHES
from whystall.tools.recording.collector import Capture


class Offcputime(StockMethod):
    """Sums of waits per stack of one process."""

    collector: ClassVar[str] = "switches"
    tools: ClassVar[tuple[str, ...]] = ("offcputime",)
    kprobes: ClassVar[bool] = True
    late: ClassVar[bool] = True
    _STACKS = 16384

    def _spawn(self) -> None:
        pid = self._only_pid()
        if pid is None:
            # it would name the stacks of everybody, for minutes, when it is to end
            self._refuse("follows one process")
        self._waits = parse.Waits()
        self._switches = Switches(pid or 0)
        self._running = [Running("offcputime", "Ctrl-C", self._waits.feed, pid=pid, stacks=self._STACKS)]

    def _begin(self, skip_next: bool) -> None:
        # It adds up from when it attached, and prints once: it is started last, when all others are ready.
        self._switches.look()

    def _last_look(self) -> None:
        self._switches.finish()

    def _capture(self) -> Capture:
        stacks: dict[tuple[bool, tuple[str, ...]], int] = {}
        rows = []
        for wait in self._waits.found:
            kernel = stacks.setdefault((True, wait.kernel), len(stacks)) if wait.kernel else UNTOLD
            user = stacks.setdefault((False, wait.user), len(stacks)) if wait.user else UNTOLD
            rows.append(
                {
                    "pid": self._only_pid(),
                    "tid": wait.tid,
                    "comm": wait.comm,
                    "state": parse.state(wait.kernel),
                    "syscall": parse.system_call(wait.kernel),
                    "file": UNTOLD,
                    "kstack": kernel,
                    "ustack": user,
                    "count": UNTOLD,
                    "total_ns": wait.total_ns,
                    "max_ns": UNTOLD,
                }
            )
        named = [{"stack": n, "kernel": kernel, "frames": list(frames)} for (kernel, frames), n in stacks.items()]
        not_seen = [("stock_offcputime", "")]
        return Capture(
            tables={
                "segments": pl.DataFrame([], SWITCHES["segments"]),
                "totals": pl.DataFrame(rows, SWITCHES["totals"]),
                "files": pl.DataFrame([], FILES),
                "stacks": pl.DataFrame(named, STACKS),
            },
            hooks=[f"{self.name}: kprobe finish_task_switch"],
            seen=len(rows),
            kept=len(rows),
            lost=self._waits.missed,
            # it says nothing of a wait that lasts: its silence is no proof that nobody waits
            proven=False if self._switches.waiting else self._switches.all_in({wait.tid for wait in self._waits.found}),
            not_seen=not_seen + odd(self._waits.odd),
        )


class Interrupts(StockMethod):
    """Time in handlers from softirqs and hardirqs; how often they ran, by the kernel's own count."""

    collector: ClassVar[str] = "interrupts"
    tools: ClassVar[tuple[str, ...]] = ("softirqs", "hardirqs")

    def _spawn(self) -> None:
        self._counts = InterruptCounts()
        if self._counts.denied:
            self._refuse(f"/proc/{self._counts.denied[0]} is hidden here, which counts beside it")
        self._found = {SOFT: parse.Totals(), HARD: parse.Totals()}
        self._seconds = {kind: parse.Seconds(partial(parse.totals, into=found)) for kind, found in self._found.items()}
        self._running.append(Running("softirqs", "Ctrl-C", self._seconds[SOFT].feed))
        self._running.append(Running("hardirqs", "Ctrl-C", self._seconds[HARD].feed))

    def _begin(self, skip_next: bool) -> None:
        for kind, seconds in self._seconds.items():
            seconds.forget(skip_next)
            self._found[kind].total_ns.clear()
        self._counts = InterruptCounts()

    def _last_look(self) -> None:
        self._counts.finish()

    def _capture(self) -> Capture:
        for seconds in self._seconds.values():
            seconds.end()
        grown = self._counts.grown()
        rows, silent = self._rows(grown)
        full = any(found.full for found in self._found.values())
        return Capture(
            tables={
                "totals": pl.DataFrame(rows, INTERRUPTS["totals"], orient="row"),
                "latency": pl.DataFrame([], INTERRUPTS["latency"]),
                "stolen": pl.DataFrame([], INTERRUPTS["stolen"]),
                "cpus": pl.DataFrame(self._counts.cpu_rows(), INTERRUPTS["cpus"], orient="row"),
            },
            hooks=[f"{self.name}: tracepoint irq", "/proc/interrupts", "/proc/softirqs"],
            seen=sum(sum(counts.values()) for counts in grown.values()),
            kept=0,
            lost=int(full),
            proven=not silent and not full and not self._counts.denied,
            not_seen=[("stock_interrupts", "")]
            + ([("histogram_full", self.name)] if full else [])
            + late(self.name, *self._seconds.values())
            + odd(sum(seconds.odd for seconds in self._seconds.values())),
        )

    def _rows(self, grown: Counts) -> tuple[list[tuple[str, str, int, int, int, int]], bool]:
        """One row per handler, all CPUs together, and whether one that ran often was not told at all."""
        rows, silent = [], False
        architecture = {row[1] for row in self._counts.architecture_rows()}
        for (kind, name), by_cpu in sorted(grown.items()):
            count = sum(by_cpu.values())
            if kind == HARD and name in architecture:  # no tracepoint of handlers tells these
                rows.append((kind, name, UNTOLD, count, UNTOLD, UNTOLD))
                continue
            total_ns = self._time(kind, name)
            silent |= total_ns == 0 and count >= FEW
            rows.append((kind, name, UNTOLD, count, total_ns or UNTOLD, UNTOLD))
        return rows, silent

    def _time(self, kind: str, name: str) -> int:
        """Nanoseconds told of a handler. Several drivers may share an interrupt: their time is one."""
        told = self._found[kind].total_ns
        if kind == SOFT:
            return told[name.lower()]
        return sum(told[one.strip()[:31]] for one in name.split(", "))  # `char name[32]` in hardirqs


class Runqlat(StockMethod):
    """A histogram of waits for a CPU, of one process or of all together; who waited how long, by the kernel's own
    account."""

    collector: ClassVar[str] = "run_queue"
    tools: ClassVar[tuple[str, ...]] = ("runqlat",)

    def _spawn(self) -> None:
        self._pid = self._only_pid()
        self._found = parse.Histograms()
        self._seconds = parse.Seconds(lambda block: parse.histograms(block, self._found))
        self._threads = ThreadWaits()
        self._slices = 0
        self._running = [Running("runqlat", "Ctrl-C", self._seconds.feed, pid=self._pid)]

    def _begin(self, skip_next: bool) -> None:
        self._seconds.forget(skip_next)
        self._found.counts.clear()
        self._threads = ThreadWaits()
        self._look()
        self._slices = _slices()

    def _last_look(self) -> None:
        self._look()
        self._slices = _slices() - self._slices

    def _look(self) -> None:
        if self._pid is not None:
            self._threads.look([self._pid])

    def _capture(self) -> Capture:
        self._seconds.end()
        counts = self._found.counts.get("", Counter())
        told = sum(counts.values())
        whom = UNTOLD if self._pid is None else self._pid
        comm = "" if self._pid is None else self._target.comm or ""
        if self._pid is None:
            totals = pl.DataFrame(
                [(UNTOLD, UNTOLD, "", told, UNTOLD, UNTOLD)] if told else [], RUN_QUEUE["totals"], orient="row"
            )
            expected, lost, kept = self._slices, 0, self._slices > 0
        else:
            account = self._threads.finish()
            totals, lost = account.tables["totals"], account.lost
            expected, kept = account.seen, account.proven
        return Capture(
            tables={
                "latency": pl.DataFrame(
                    [(whom, comm, *slot, count) for slot, count in sorted(counts.items())],
                    RUN_QUEUE["latency"],
                    orient="row",
                ),
                "totals": totals,
            },
            hooks=[f"{self.name}: raw_tracepoint sched_wakeup, sched_switch", "/proc/PID/task/TID/schedstat"],
            seen=told,
            kept=0,
            lost=lost,
            proven=kept and told >= AGREE * expected - FEW and (told > 0 or expected == 0),
            not_seen=[
                ("stock_runqlat", "" if self._pid is not None else "host"),
                *late(self.name, self._seconds),
                *odd(self._seconds.odd),
            ],
        )


def _slices() -> int:
    """How often anybody was put on a CPU, or at least how often; 0 where the kernel does not say.

    The ninth number of each CPU (Documentation/scheduler/sched-stats.rst), where that is kept. Else half of all
    switches: one to the idle task comes after one to another.
    """
    try:
        lines = Path("/proc/schedstat").read_text().splitlines()
        return sum(int(line.split()[9]) for line in lines if line.startswith("cpu"))
    except (OSError, ValueError, IndexError):
        pass
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        return next(int(line.split()[1]) // 2 for line in lines if line.startswith("ctxt "))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
