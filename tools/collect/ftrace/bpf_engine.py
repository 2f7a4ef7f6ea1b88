"""The ``ebpf`` engine of the collector ``ftrace``: the scheduler's events through BTF tracepoints and a ring buffer.

Besides the fields of tracefs it records `prev_arrived_ns`, so that a missing switch event leaves no unknown start.
It needs no tracefs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import polars as pl

from whystall.bpf.errors import BpfError
from whystall.bpf.trace import GROUPS, MAX_CPUS, RECORD_BYTES, Trace, TraceConfig, TraceSession
from whystall.tools.collect.ebpf_collector import disk_name
from whystall.tools.collect.ebpf_engine import tool_error, why_unavailable
from whystall.tools.collect.ftrace.bpf_decode import Named, tables
from whystall.tools.collect.options import FtraceOptions
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target
from whystall.tools.timeline import clocks
from whystall.tools.timeline.ftrace.holes import unseen_holes
from whystall.tools.timeline.sched import TABLES

EVENT_TABLES = frozenset(TABLES) - {"holes", "names", "clocks"}
# Bytes of the ring buffer: per CPU, and limits of the total. 16 MiB hold 300,000 events.
_RING_CPU, _RING_LEAST, _RING_MOST = 1 << 21, 1 << 24, 1 << 27


class FtraceBpfEngine(Engine):
    """See the module; options: `FtraceOptions`."""

    name = "ebpf"
    serves = frozenset({"ftrace"})
    period_s = 0.1

    def __init__(self) -> None:
        self._session: TraceSession | None = None
        self._config = TraceConfig()
        self._clock: clocks.ClockPoint | None = None

    def unavailable(self) -> str | None:
        """Return why BPF cannot work here, without trying."""
        return why_unavailable("trace")

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Load and attach; then sleep once, to prove the hooks."""
        options = FtraceOptions.of(wanted, "ftrace")
        bits = options.cpus
        if not 0 <= bits < 1 << MAX_CPUS:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "no such CPUs", f"give CPUs below {MAX_CPUS}")
        only = options.only_target and not target.everything
        self._config = TraceConfig(
            groups=options.groups & set(GROUPS),
            cpus=frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1) or None,
            targets=frozenset(target.pids) if only else None,
            follow=target.follow,
            ring_bytes=_ring_bytes(options.buffer_kb << 10),
        )
        self._session = TraceSession(self._config)
        try:
            self._session.load()
        except BpfError as error:
            self._session = None
            raise tool_error(error) from error
        self._clock = clocks.now()
        time.sleep(0.002)

    def fileno(self) -> int | None:
        """Return None: it would be readable at every event, and the ring buffer is large enough for a period."""
        return None

    def poll(self) -> None:
        """Read records."""
        if self._session is not None:
            self._session.poll()

    def read(self) -> dict[str, Capture]:
        """Detach; return the capture."""
        session, self._session = self._session, None
        if session is None or self._clock is None:
            return {}
        points = [self._clock, clocks.now()]
        try:
            trace = session.read()
        except BpfError as error:
            raise tool_error(error) from error
        finally:
            session.close()
        found = self._tables(trace)
        found["clocks"] = pl.DataFrame([vars(point) for point in points], schema=TABLES["clocks"])
        lost = int(found["holes"].filter(pl.col("why") == "lost")["lost"].sum()) + trace.compat_calls
        capture = Capture(
            tables=found,
            hooks=list(trace.hooks),
            seen=sum(map(len, trace.records)) // RECORD_BYTES + lost,
            kept=sum(found[name].height for name in EVENT_TABLES),
            lost=lost,
            proven=trace.self_switches > 0,
            not_seen=self._blind_spots(trace),
            events=EVENT_TABLES,
        )
        return {"ftrace": capture}

    def close(self) -> None:
        """Detach; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _tables(self, trace: Trace) -> dict[str, pl.DataFrame]:
        known = [Named(at, tid, pid, clean(comm)) for at, tid, pid, comm in trace.threads]
        found = tables(trace.records, trace.losses, known, disk_name, self._config.cpus)
        holes = [found["holes"]]
        if self._config.targets is None:  # else other threads' switches are left out on purpose
            holes.append(unseen_holes(found["switches"]))
        if trace.stopped:
            stopped = [(trace.stopped, trace.end, -1, -1, "stopped")]
            holes.append(pl.DataFrame(stopped, schema=TABLES["holes"], orient="row"))
        found["holes"] = pl.concat(holes).sort("start_ns", maintain_order=True)
        return found

    def _blind_spots(self, trace: Trace) -> list[tuple[str, str]]:
        spots = [("event_absent", hook) for hook in trace.missing]
        if self._config.targets is not None:
            spots.append(("target_only", ""))
        if trace.stopped:
            spots.append(("cut_short", ""))
        if trace.compat_calls:
            spots.append(("events_lost", f"{trace.compat_calls} system calls of 32-bit programs"))
        if trace.targets_full:
            spots.append(("events_lost", "processes that the target started"))
        return spots


def _ring_bytes(per_cpu: int) -> int:
    """Return the size of the ring buffer, a power of two, for `per_cpu` bytes per CPU; 0: the default."""
    total = (per_cpu or _RING_CPU) * (os.cpu_count() or 1)
    least = 1 << 12 if per_cpu else _RING_LEAST
    return 1 << (min(max(total, least), _RING_MOST) - 1).bit_length()
