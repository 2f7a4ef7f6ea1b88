"""The named counters of the ``proc.host`` table.

========================  =====================================================================================
``cpu_<state>_ns``        all CPUs together, by state of /proc/stat: user nice system idle iowait irq softirq steal
``cpu_count``             CPUs online
``target_cpu_count``      CPUs that the target's threads may run on (all of them without a target)
``target_cpu_busy_ns``    time that these CPUs were busy (not idle, not idle for I/O)
``runnable``              tasks running or waiting for a CPU at that instant, without the reader itself
``blocked``               tasks blocked for I/O at that instant
``context_switches``, ``forks``   since boot
``load1`` ``load5`` ``load15``    load averages
``mem_<name>_bytes``      total free available cached dirty writeback anon shmem swap_total swap_free; page: of a page
``vm_<name>``             /proc/vmstat, pages or events since boot; counters split by zone are summed
``psi_<resource>_<kind>_us``      total stall time, resource cpu io memory irq, kind some full
========================  =====================================================================================

A counter that the kernel does not have has no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from whystall.tools.collect import proc_parse as parse

PRESSURES = ("cpu", "io", "memory", "irq")
_MEMORY = {
    "MemTotal": "total",
    "MemFree": "free",
    "MemAvailable": "available",
    "Cached": "cached",
    "Dirty": "dirty",
    "Writeback": "writeback",
    "AnonPages": "anon",
    "Shmem": "shmem",
    "SwapTotal": "swap_total",
    "SwapFree": "swap_free",
}
VMSTAT = (
    *("pgscan_kswapd", "pgscan_direct", "pgsteal_kswapd", "pgsteal_direct", "pgsteal_file", "allocstall"),
    *("workingset_refault_file", "workingset_refault_anon", "workingset_activate_file", "pgmajfault"),
    *("pswpin", "pswpout", "oom_kill", "nr_dirty", "nr_writeback", "nr_dirtied", "nr_written"),
    *("nr_dirty_threshold", "nr_dirty_background_threshold", "nr_active_file", "nr_inactive_file", "compact_stall"),
)


def stat_counters(stat: parse.HostStat, allowed: Iterable[int]) -> dict[str, float]:
    """Return the counters of /proc/stat; `allowed`: the target's CPUs, empty for all."""
    target_cpus = [stat.cpus[cpu] for cpu in allowed if cpu in stat.cpus] or list(stat.cpus.values())
    found = {f"cpu_{state}_ns": float(value) for state, value in stat.all._asdict().items()}
    found |= {
        "cpu_count": len(stat.cpus),
        "target_cpu_count": len(target_cpus),
        "target_cpu_busy_ns": float(sum(cpu.busy for cpu in target_cpus)),
    }
    counters = {
        "context_switches": stat.context_switches,
        "forks": stat.forks,
        "blocked": stat.blocked,
        "runnable": max(0, stat.runnable - 1) if stat.runnable >= 0 else parse.UNKNOWN,
    }
    return found | {name: float(value) for name, value in counters.items() if value >= 0}


def memory_counters(meminfo: Mapping[str, int]) -> dict[str, float]:
    """Return the counters of /proc/meminfo in bytes."""
    return {f"mem_{short}_bytes": float(meminfo[name]) for name, short in _MEMORY.items() if name in meminfo}


def vm_counters(vmstat: Mapping[str, int]) -> dict[str, float]:
    """Return the counters of /proc/vmstat, summed if split by zone (``allocstall_normal``, ``pgscan_direct_dma``)."""
    found: dict[str, float] = {}
    for name in VMSTAT:
        parts = [v for key, v in vmstat.items() if key == name]
        if not parts:
            # pgscan_direct_throttle counts waits, not scanned pages
            parts = [v for k, v in vmstat.items() if k.startswith(name + "_") and not k.endswith("_throttle")]
        if parts:
            found[f"vm_{name}"] = float(sum(parts))
    return found


def pressure_counters(resource: str, totals: Mapping[str, int]) -> dict[str, float]:
    """Return the counters of one PSI file."""
    return {f"psi_{resource}_{kind}_us": float(value) for kind, value in totals.items()}
