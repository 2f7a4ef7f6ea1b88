"""host_snapshot: a first overview of a host from the kernel's own counters, without privilege."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.tools.collect.options import ProcOptions
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.host.common import oom
from whystall.tools.host.host_snapshot import filesystems, io_limits, task_limits
from whystall.tools.host.host_snapshot.data import Data
from whystall.tools.host.host_snapshot.disk_neighbours import contended_disks
from whystall.tools.host.host_snapshot.findings import findings, is_saturated
from whystall.tools.host.host_snapshot.measures import measure
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording


class Params(LiveParams):
    """Parameters of host_snapshot."""

    duration: Annotated[float, Field(ge=0.1, le=600, description="seconds to observe")] = 3.0


def _needs(params: Params) -> list[Need]:
    # At least four readings of the run queue, even in a short window.
    return [Need("proc", ProcOptions(period_ns=int(min(1.0, params.duration / 4) * 1e9)))]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge the growth of counters in `recording`; nothing with fewer than two readings.

    A target that exits is judged up to the last reading of its threads.
    """
    measures = measure(recording, params.top)
    if measures is None:
        blind = [("cut_short", "fewer than two readings")]
        return Judgement(findings=[], data=Data(window_s=0.0), seen=0, not_seen=blind)
    limits = io_limits.findings(recording, {d.device for d in measures.disks if is_saturated(d)})
    limited = {f.subject.device for f in limits if f.polarity is Polarity.ABNORMAL and f.subject.device}
    target, mounted = recording.manifest.target, filesystems.rows(recording)
    return Judgement(
        findings=[
            *oom.findings(recording, oom.kills(recording)),
            *findings(measures, target),
            *filesystems.findings(recording, mounted),
            *limits,
            *contended_disks(measures, limited),
            *task_limits.findings(recording),
        ],
        data=measures.tables.model_copy(update={"filesystems": mounted[: params.top]}),
        seen=recording.table("proc.host").height,
        totals={
            "disks": len(measures.disks),
            "processes": len(measures.processes),
            "threads": len(measures.threads),
            "cgroups": len(measures.cgroups),
            "filesystems": len(mounted),
        },
        not_seen=[("no_target_threads", target.describe())] if target.pids and not measures.threads else [],
    )


TOOL = Tool(
    name="host_snapshot",
    title="Host snapshot",
    description=(
        "First look from /proc, no privilege: pressure (PSI), CPU split, run queue, memory and reclaim, disk use, "
        "top processes by CPU, I/O wait and major faults, time of the target's threads, limits of cgroups."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(
        {
            *("thread.time", "sched.runqueue_delay", "process.system_time", "process.io_wait", "process.major_faults"),
            *("process.minor_faults", "irq.load"),
            *("cpu.saturated", "cpu.neighbour", "cgroup.cpu_throttled", "memory.reclaim", "memory.cgroup_limit"),
            *("memory.swap", "memory.oom_kill", "memory.oom_kills"),
            *("disk.saturated", "disk.neighbour", "disk.contended"),
            *("filesystem.full", "cgroup.io_limit", "cgroup.task_limit"),
        }
    ),
    cost=1.0,
)
