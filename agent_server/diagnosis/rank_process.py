"""Where the process of a rank is: on this host, and still the one that was traced, or not."""

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

# The kernel tells when it booted in whole seconds, and clocks are slewed meanwhile.
_SLACK_NS = 2_000_000_000
_BOOT_CLOCKS = ("mono", "mono_raw", "boot")
_CLOCKS = {"CLOCK_REALTIME": "real", "CLOCK_MONOTONIC": "mono", "CLOCK_MONOTONIC_RAW": "mono_raw"}


@dataclass(frozen=True)
class RankProcess:
    """`pid`: of the rank's process on this host; None when it is not there, and `why` (a code of `BLIND_SPOTS`) and
    `detail` say so.
    """

    pid: int | None
    why: str = ""
    detail: str = ""


def find_rank_process(recording: Recording, rank: int, proc: Path = Path("/proc")) -> RankProcess:
    """Find the process that `recording` (of the ranks of a job) says was `rank`.

    It is the same process only if it bears the number, lives, and began before the trace did: numbers are used again.
    Traces on a clock that this host does not keep cannot tell that. A job in a container with its host's name (its
    network is the host's) wrote down a number of its own PID namespace: where a container has one, nobody is named.
    """
    rows = recording.table("ranks.ranks").filter(pl.col("rank") == rank).rows(named=True)
    host, pid = (rows[0]["host"], rows[0]["pid"]) if rows else ("", -1)
    who = f"rank {rank}" + (f": process {pid}" if pid > 0 else "") + (f" on {host}" if host else "")
    if pid <= 0 or not host or recording.manifest.redacted:
        return RankProcess(None, "rank_process_unknown", who)
    if not _same_host(host, host_name(proc)):
        return RankProcess(None, "rank_elsewhere", who)
    if shut_in := _inside(pid, proc):
        detail = f"{who}, which is in containers of this host: {', '.join(map(str, shut_in))}"
        return RankProcess(None, "rank_process_unknown", detail)
    if not alive(pid):
        return RankProcess(None, "rank_gone", who)
    manifest, clock = recording.manifest, rows[0]["clock"]
    began = _began_ns(pid, clock, proc) if clock == _CLOCKS.get(manifest.clock, manifest.clock) else None
    if began is None:
        return RankProcess(None, "rank_process_unknown", f"{who}, clock {clock or 'unknown'}")
    if began > manifest.start_ns + rows[0]["start_ns"] + _SLACK_NS:
        return RankProcess(None, "rank_gone", who)
    return RankProcess(pid)


def _inside(pid: int, proc: Path) -> list[int]:
    """The processes of this host that bear the number `pid` in a PID namespace of their own, as the host knows them."""
    others = (int(name) for name in os.listdir(proc) if name.isdigit() and int(name) != pid)
    return sorted(other for other in others if number_inside(proc / str(other)) == pid)[:8]


def _same_host(one: str, other: str) -> bool:
    """Equal, or the same name with and without its domain."""
    short = "." not in one or "." not in other
    return one == other or (short and one.partition(".")[0] == other.partition(".")[0])


def _began_ns(pid: int, clock: str, proc: Path) -> int | None:
    """When process `pid` began, ns on `clock`; None when there is no such process or the clock is not this host's."""
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
