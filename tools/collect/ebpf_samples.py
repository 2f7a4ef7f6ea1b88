"""The collector ``samples`` of the ``ebpf`` engine: CPU samples, their proof, and py-spy for the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from whystall.bpf.capture import Capture as BpfCapture
from whystall.bpf.collectors.python_frames import PythonFrames
from whystall.bpf.collectors.samples import CpuSamples
from whystall.bpf.samples import Samples
from whystall.bpf.session import Session
from whystall.bpf.symbols import kernel as kernel_symbols
from whystall.tools.collect.ebpf_collector import EbpfCollector, SessionResult, capture_of
from whystall.tools.collect.ebpf_symbols import Processes
from whystall.tools.collect.options import SampleOptions
from whystall.tools.collect.py_spy import FoldedStack, PySpy, installed
from whystall.tools.collect.python_notes import python_notes
from whystall.tools.collect.samples_decode import sample_tables
from whystall.tools.recording.collector import Capture, Options
from whystall.tools.recording.target import Target

_PROOF_TICKS, _PROOF_S = 4, 4.0
_FEW_TICKS = 50
# Share of missing ticks that is reported: the kernel's own count of busy time is sampled, too.
_MISSING = 0.2


class TickCheck:
    """Compares the timers' ticks with the kernel's own count of busy time."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._begin = self._end = busy_ns()
        self._since = self._until = time.monotonic_ns()

    def prove(self, session: Session) -> None:
        """If no tick found a busy CPU, burn CPU time until one does, for a limited time."""
        self._until = time.monotonic_ns()
        end = time.monotonic() + min(_PROOF_TICKS * self._period_ns / 1e9, _PROOF_S)
        while not _ticks(session.counters()) and time.monotonic() < end:
            _burn(0.001)
        self._end = busy_ns()

    @property
    def due(self) -> bool:
        """Whether the window was long enough to contain a tick."""
        return self._until - self._since >= self._period_ns

    def missing(self, raw: BpfCapture) -> int:
        """Return how many ticks of busy CPUs are missing, as when the kernel throttles the timers; 0 if few."""
        ticks = raw.seen["ticks"] - raw.seen["idle_ticks"]
        due = (self._end - self._begin) // self._period_ns
        missing = due - ticks
        return missing if missing > max(_FEW_TICKS, _MISSING * due) else 0


def _ticks(counters: dict[str, list[int]]) -> int:
    return sum(counters.get("seen_ticks", ())) - sum(counters.get("seen_idle_ticks", ()))


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def busy_ns(source: Path = Path("/proc/stat")) -> int:
    """Return the busy time of all CPUs in ns: not idle, not iowait, not stolen."""
    try:
        user, nice, system, _idle, _wait, hard, soft = map(int, source.read_text().split(None, 8)[1:8])
    except (OSError, ValueError):
        return 0
    return (user + nice + system + hard + soft) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


class SampleCollector(EbpfCollector):
    """The collector ``samples``: a timer on every CPU; py-spy for Python processes whose frames cannot be walked."""

    name = "samples"
    losses = frozenset({"ring_sample", "recursion_on_tick"})

    def __init__(self, wanted: Mapping[str, Options]) -> None:
        options = SampleOptions.of(wanted, self.name)
        self.python = options.python
        self.kernel = self._samples = CpuSamples(options.period_ns)
        self._period_ns = options.period_ns
        self._processes = Processes()
        self._ticking: TickCheck | None = None
        self._spy: PySpy | None = None
        self._py_spy_samples: list[FoldedStack] = []

    def loaded(self, target: Target, processes: Processes, frames: PythonFrames | None) -> None:
        """Start py-spy if it is installed and needed."""
        self._processes = processes
        refused = frames.refused if frames is not None else []
        program = installed() if refused and not target.everything else None
        if program:
            self._spy = PySpy(program, refused, max(1, 1_000_000_000 // self._period_ns))

    def started(self, session: Session) -> None:
        """Read the kernel's own count of busy time."""
        self._ticking = TickCheck(self._period_ns)

    def poll(self) -> None:
        """Read the symbols of new processes while they live."""
        self._processes.add(self._samples.new_places())

    def stopping(self, session: Session) -> None:
        """Make sure that at least one tick found a busy CPU."""
        if self._ticking is not None:
            self._ticking.prove(session)

    def stopped(self) -> None:
        """Read the samples of py-spy."""
        self._py_spy_samples = self._spy.stop() if self._spy is not None else []

    def capture(self, result: SessionResult) -> Capture:
        """Return the tables; proven by a tick on a busy CPU."""
        raw, ticking = result.raw, self._ticking
        if ticking is None:
            raise ValueError("not started")
        kernel_symbols().prepare(
            a - bool(at) for s in raw.stacks.values() if not s.kind for at, a in enumerate(s.addresses)
        )
        tables = sample_tables(raw.of(Samples), raw.threads, result.calls, self._period_ns, self._py_spy_samples)
        proven = raw.seen["ticks"] > raw.seen["idle_ticks"] and ticking.due
        capture = capture_of(raw, self.name, tables, raw.seen["samples"], proven, "samples")
        capture.lost += ticking.missing(raw)
        capture.events = frozenset({"samples"})
        if (tables["frames"]["kind"] == "kernel").any() and kernel_symbols().hidden:
            capture.not_seen.append(("kernel_symbols", ""))
        if self.python:
            capture.not_seen += python_notes(raw, switches=False)
        if self._py_spy_samples:
            pids = sorted({one.pid for one in self._py_spy_samples})
            capture.not_seen.append(("python_beside", f"pid {', '.join(map(str, pids))}"))
        return capture

    def close(self) -> None:
        """End py-spy."""
        if self._spy is not None:
            self._spy.close()
