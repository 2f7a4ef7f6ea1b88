"""Find the process of a rank on this host, if it is still the one that was traced."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from whystall.tools.collect.proc_parse import pid_stat, ticks_ns
from whystall.tools.node.containers import number_inside
from whystall.tools.node.vantage import host_name
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import alive

# The kernel reports its boot time in whole seconds, and clocks are slewed meanwhile.
_SLACK_NS = 2_000_000_000
_BOOT_CLOCKS = ("mono", "mono_raw", "boot")
_CLOCKS = {"CLOCK_REALTIME": "real", "CLOCK_MONOTONIC": "mono", "CLOCK_MONOTONIC_RAW": "mono_raw"}


@dataclass(frozen=True)
class RankProcess:
    """`pid` of the rank's process on this host; if None, `why` (a code of `BLIND_SPOTS`) and `detail` explain it."""

    pid: int | None
    why: str = ""
    detail: str = ""


def find_rank_process(recording: Recording, rank: int, proc: Path = Path("/proc")) -> RankProcess:
    """Find the process that was `rank` in `recording` (of the ranks of a job).

    PIDs are reused: it is the same process only if it is alive and started before the trace did, which only clocks of
    this host can show. A container that shares its host's network, and so its name, records PIDs of its own namespace:
    if one has a process with that PID inside, no process is returned.
    """
    rows = recording.table("ranks.ranks").filter(pl.col("rank") == rank).rows(named=True)
    host, pid = (rows[0]["host"], rows[0]["pid"]) if rows else ("", -1)
    who = f"rank {rank}" + (f": process {pid}" if pid > 0 else "") + (f" on {host}" if host else "")
    if pid <= 0 or not host or recording.manifest.redacted:
        return RankProcess(None, "rank_process_unknown", who)
    if not _same_host(host, host_name(proc)):
        return RankProcess(None, "rank_elsewhere", who)
    if contained := _inside(pid, proc):
        detail = f"{who}, which is in containers of this host: {', '.join(map(str, contained))}"
        return RankProcess(None, "rank_process_unknown", detail)
    if not alive(pid):
        return RankProcess(None, "rank_gone", who)
    manifest, clock = recording.manifest, rows[0]["clock"]
    started = _started_ns(pid, clock, proc) if clock == _CLOCKS.get(manifest.clock, manifest.clock) else None
    if started is None:
        return RankProcess(None, "rank_process_unknown", f"{who}, clock {clock or 'unknown'}")
    if started > manifest.start_ns + rows[0]["start_ns"] + _SLACK_NS:
        return RankProcess(None, "rank_gone", who)
    return RankProcess(pid)


def _inside(pid: int, proc: Path) -> list[int]:
    """Return the host's PIDs of processes that have `pid` in a PID namespace of their own."""
    others = (int(name) for name in os.listdir(proc) if name.isdigit() and int(name) != pid)
    return sorted(other for other in others if number_inside(proc / str(other)) == pid)[:8]


def _same_host(one: str, other: str) -> bool:
    """Return whether two host names are equal, with or without their domains."""
    short = "." not in one or "." not in other
    return one == other or (short and one.partition(".")[0] == other.partition(".")[0])


def _started_ns(pid: int, clock: str, proc: Path) -> int | None:
    """Return the start of process `pid` in ns on `clock`; None if it has exited or the clock is not this host's."""
    try:
        since_boot = ticks_ns(pid_stat((proc / str(pid) / "stat").read_bytes()).start_ticks)
        if clock in _BOOT_CLOCKS:
            return since_boot
        if clock != "real":
            return None
        for line in (proc / "stat").read_bytes().splitlines():
            if line.startswith(b"btime "):
                return int(line.split()[1]) * 1_000_000_000 + since_boot
    except (OSError, ValueError, IndexError):
        return None
    return None
