"""Stock tools about the scheduler and interrupts: offcputime, runqlat, softirqs and hardirqs."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import ClassVar

from whystall.tools.collect.bcc import parse
from whystall.tools.collect.bcc.running import Running
from whystall.tools.collect.bcc.stock import AGREE, FEW, UNKNOWN, StockMethod, skipped_second, unparsed_lines
from whystall.tools.collect.bcc.threads import Switches
from whystall.tools.collect.proc_interrupts import HARD, SOFT, Counts, InterruptCounts
from whystall.tools.collect.proc_run_queue import ThreadWaits
from whystall.tools.collect.tables import INTERRUPTS, RUN_QUEUE, SWITCHES, filled
from whystall.tools.recording.collector import Capture


class Offcputime(StockMethod):
    """Sums of waits per stack of one process."""

    collector: ClassVar[str] = "switches"
    tools: ClassVar[tuple[str, ...]] = ("offcputime",)
    kprobes: ClassVar[bool] = True
    loads_last: ClassVar[bool] = True
    _STACKS = 16384

    def _spawn(self) -> None:
        pid = self._only_pid()
        if pid is None:
            # for the whole host it resolves all processes' stacks at its end, which takes minutes
            self._refuse("follows one process")
        self._waits = parse.Waits()
        self._switches = Switches(pid or 0)
        self._running = [Running("offcputime", "Ctrl-C", self._waits.feed, pid=pid, stacks=self._STACKS)]

    def _start(self, skip_next: bool) -> None:
        self._switches.start()

    def _read_final_counts(self) -> None:
        self._switches.stop()

    def _capture(self) -> Capture:
        stacks: dict[tuple[bool, tuple[str, ...]], int] = {}
        rows = []
        for wait in self._waits.found:
            kernel = stacks.setdefault((True, wait.kernel), len(stacks)) if wait.kernel else UNKNOWN
            user = stacks.setdefault((False, wait.user), len(stacks)) if wait.user else UNKNOWN
            rows.append(
                {
                    "pid": self._only_pid(),
                    "tid": wait.tid,
                    "comm": wait.comm,
                    "state": parse.state(wait.kernel),
                    "syscall": parse.system_call(wait.kernel),
                    "file": UNKNOWN,
                    "kstack": kernel,
                    "ustack": user,
                    "count": UNKNOWN,
                    "total_ns": wait.total_ns,
                    "max_ns": UNKNOWN,
                }
            )
        named = [{"stack": n, "kernel": kernel, "frames": list(frames)} for (kernel, frames), n in stacks.items()]
        not_seen = [("stock_offcputime", "")]
        return Capture(
            tables=filled(SWITCHES, totals=rows, stacks=named),
            hooks=[f"{self.name}: kprobe finish_task_switch"],
            seen=len(rows),
            kept=len(rows),
            lost=self._waits.missed,
            # it omits waits that have not ended: an empty result does not prove that no thread waits
            proven=False if self._switches.waiting else self._switches.all_in({wait.tid for wait in self._waits.found}),
            not_seen=not_seen + unparsed_lines(self._waits.unparsed),
        )


class Interrupts(StockMethod):
    """Time in handlers from softirqs and hardirqs; their counts from /proc/interrupts and /proc/softirqs."""

    collector: ClassVar[str] = "interrupts"
    tools: ClassVar[tuple[str, ...]] = ("softirqs", "hardirqs")

    def _spawn(self) -> None:
        self._counts = InterruptCounts()
        if self._counts.denied:
            self._refuse(f"/proc/{self._counts.denied[0]} is hidden here, which counts beside it")
        self._found = {SOFT: parse.Totals(), HARD: parse.Totals()}
        self._seconds = {
            kind: parse.PerSecond(partial(parse.totals, into=found)) for kind, found in self._found.items()
        }
        self._running.append(Running("softirqs", "Ctrl-C", self._seconds[SOFT].feed))
        self._running.append(Running("hardirqs", "Ctrl-C", self._seconds[HARD].feed))

    def _start(self, skip_next: bool) -> None:
        for kind, seconds in self._seconds.items():
            seconds.restart(skip_next)
            self._found[kind].total_ns.clear()
        self._counts = InterruptCounts()

    def _read_final_counts(self) -> None:
        self._counts.stop()

    def _capture(self) -> Capture:
        for seconds in self._seconds.values():
            seconds.end()
        grown = self._counts.grown()
        rows, silent = self._rows(grown)
        full = any(found.full for found in self._found.values())
        return Capture(
            tables=filled(INTERRUPTS, totals=rows, cpus=self._counts.cpu_rows()),
            hooks=[f"{self.name}: tracepoint irq", "/proc/interrupts", "/proc/softirqs"],
            seen=sum(sum(counts.values()) for counts in grown.values()),
            kept=0,
            lost=int(full),
            proven=not silent and not full and not self._counts.denied,
            not_seen=[("stock_interrupts", "")]
            + ([("histogram_full", self.name)] if full else [])
            + skipped_second(self.name, *self._seconds.values())
            + unparsed_lines(sum(seconds.unparsed for seconds in self._seconds.values())),
        )

    def _rows(self, grown: Counts) -> tuple[list[tuple[str, str, int, int, int, int]], bool]:
        """Return one row per handler, all CPUs together, and whether the tool missed one that ran often."""
        rows, silent = [], False
        architecture = {row[1] for row in self._counts.architecture_rows()}
        for (kind, name), by_cpu in sorted(grown.items()):
            count = sum(by_cpu.values())
            if kind == HARD and name in architecture:  # these have no irq tracepoint
                rows.append((kind, name, UNKNOWN, count, UNKNOWN, UNKNOWN))
                continue
            total_ns = self._time(kind, name)
            silent |= total_ns == 0 and count >= FEW
            rows.append((kind, name, UNKNOWN, count, total_ns or UNKNOWN, UNKNOWN))
        return rows, silent

    def _time(self, kind: str, name: str) -> int:
        """Return the nanoseconds in a handler. Drivers that share an interrupt line are added up."""
        total_ns = self._found[kind].total_ns
        if kind == SOFT:
            return total_ns[name.lower()]
        return sum(total_ns[one.strip()[:31]] for one in name.split(", "))  # `char name[32]` in hardirqs


class Runqlat(StockMethod):
    """A histogram of waits for a CPU, of one process or all together; totals per thread from its schedstat."""

    collector: ClassVar[str] = "run_queue"
    tools: ClassVar[tuple[str, ...]] = ("runqlat",)

    def _spawn(self) -> None:
        self._pid = self._only_pid()
        self._found = parse.Histograms()
        self._seconds = parse.PerSecond(lambda block: parse.histograms(block, self._found))
        self._threads = ThreadWaits()
        self._slices = 0
        self._running = [Running("runqlat", "Ctrl-C", self._seconds.feed, pid=self._pid)]

    def _start(self, skip_next: bool) -> None:
        self._seconds.restart(skip_next)
        self._found.counts.clear()
        self._threads = ThreadWaits()
        self._read_threads()
        self._slices = _slices()

    def _read_final_counts(self) -> None:
        self._read_threads()
        self._slices = _slices() - self._slices

    def _read_threads(self) -> None:
        if self._pid is not None:
            self._threads.sample([self._pid])

    def _capture(self) -> Capture:
        self._seconds.end()
        counts = self._found.counts.get("", Counter())
        waits = sum(counts.values())
        pid = UNKNOWN if self._pid is None else self._pid
        comm = "" if self._pid is None else self._target.comm or ""
        totals = [(UNKNOWN, UNKNOWN, "", waits, UNKNOWN, UNKNOWN)] if waits else []
        slots = [(pid, comm, *slot, count) for slot, count in sorted(counts.items())]
        tables = filled(RUN_QUEUE, latency=slots, totals=totals)
        expected, lost, checked = self._slices, 0, self._slices > 0
        if self._pid is not None:
            account = self._threads.read()
            tables["totals"], lost = account.tables["totals"], account.lost
            expected, checked = account.seen, account.proven
        return Capture(
            tables=tables,
            hooks=[f"{self.name}: raw_tracepoint sched_wakeup, sched_switch", "/proc/PID/task/TID/schedstat"],
            seen=waits,
            kept=0,
            lost=lost,
            proven=checked and waits >= AGREE * expected - FEW and (waits > 0 or expected == 0),
            not_seen=[
                ("stock_runqlat", "" if self._pid is not None else "host"),
                *skipped_second(self.name, self._seconds),
                *unparsed_lines(self._seconds.unparsed),
            ],
        )


def _slices() -> int:
    """Return how often a thread was given a CPU, or a lower bound; 0 if unknown.

    The ninth number of each CPU in /proc/schedstat (Documentation/scheduler/sched-stats.rst)::

        cpu0 0 0 0 0 0 0 41852177036 1303361830 1530612

    Without it half of all context switches, since at most every second one is to the idle task::

        ctxt 3172381
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
