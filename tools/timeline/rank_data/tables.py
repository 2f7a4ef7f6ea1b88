"""Tables of each rank of a job: the collector ``ranks`` (and ``ranks_before``, an earlier run).

Small compared with the traces: they grow with steps, collectives and distinct names, not with kernels or operators.
Instants are nanoseconds since the start of the recording, on the clock of *each rank's own file*: clocks of hosts
differ, and `whystall.tools.ranks.matching.clock_offsets` estimates the difference.
"""

from __future__ import annotations

import re

import polars as pl

from whystall.tools.timeline.collectives import COLLECTIVES, GROUPS, LINKS, PROGRESS

_I, _N, _S, _B = pl.Int64, pl.Int32, pl.String, pl.Boolean


def _of_rank(schema: pl.Schema) -> pl.Schema:
    return pl.Schema([("rank", _N), *schema.items()])


SEVERAL = "#"


def file_of(path: str) -> tuple[str, int | None]:
    """Return the file of a path in the table ``ranks``; of one with several ranks also the number that chooses this
    one."""
    file, _, number = path.rpartition(SEVERAL)
    return (file, int(number)) if file and re.fullmatch("[0-9]{1,9}", number) else (path, None)


RANKS = pl.Schema(
    {
        "rank": _N,
        # format it was read from: kineto, ascend_text, ascend_db, flight_recorder, nsys, nccl_inspector, msprof, or a
        # source of timeline/tables/mappings.yaml
        "source": _S,
        # file or directory, relative to the directory of the run; of several files of one rank the first; of a file of
        # several ranks with `SEVERAL` and the number of the rank, or its place, in it
        "path": _S,
        "files": _N,
        "host": _S,
        "pid": _N,
        "world_size": _N,
        "backend": _S,
        # clock of its instants: real, mono, ..., empty unknown
        "clock": _S,
        "start_ns": _I,
        "end_ns": _I,
        # whether it has work of a device; without it the host's operators are the work
        "device": _B,
    }
)
STEPS = pl.Schema(
    {
        "rank": _N,
        # number of the step as the profiler counts; without steps there is one row with -1 for the whole file
        "step": _N,
        "start_ns": _I,
        "end_ns": _I,
        # union of the time its work ran: kernels of the device (not collectives), else operators of the host
        "compute_ns": _I,
        # union of the time collectives ran or waited; and the part of it during which no work ran
        "comm_ns": _I,
        "exposed_comm_ns": _I,
        # neither work nor collective: idle device, or host time outside of operators
        "gap_ns": _I,
        # of the gap, time in ranges that fetch data (DataLoader); -1 unknown
        "loader_ns": _I,
        # number of pieces of work that started in it
        "work_count": _I,
        # median from launch to start on the device over work that found it idle; -1 unknown. Near the smallest possible
        # value: the device waited for the host.
        "launch_delay_ns": _I,
    }
)
"""Sums of a step: of what ran within its span. On a device, which runs behind the host, step N lasts from the end of
its step N-1 to the end of the work launched in step N (`whystall.tools.timeline.rank_data.work.device_steps`), so that
waiting for a step's first work belongs to that step. compute_ns and gap_ns are -1 if a source has no work."""

# before_*: what this rank did between the end of its last synchronising collective (or the step's start) and this
# start. beside_compute_ns: time its work ran from then until this end, while others may have waited. compute and gap
# are -1 if a source has no work.
RANK_COLLECTIVES = pl.Schema(
    [
        *_of_rank(COLLECTIVES).items(),
        ("before_ns", _I),
        ("before_compute_ns", _I),
        ("before_gap_ns", _I),
        ("beside_compute_ns", _I),
    ]
)
RANK_GROUPS = _of_rank(GROUPS)
RANK_LINKS = _of_rank(LINKS)
RANK_PROGRESS = _of_rank(PROGRESS)
BLOCKED = "blocked"
"""Value of ``operators.kind``: how long all threads of an observed rank were blocked outside of operations."""
OPERATORS = pl.Schema(
    {
        "rank": _N,
        # kernel, memcpy, memset (device); operator, loader, BLOCKED (host)
        "kind": _S,
        "name": _S,
        "count": _I,
        # host operators: outermost ones only, so that times add up
        "total_ns": _I,
        "median_ns": _I,
        "max_ns": _I,
    }
)
"""Work by name over all steps, the names with the most time; the rest is one row named ``(others)`` per kind."""

_CALLS = pl.Schema(
    {
        "rank": _N,
        # kernel, memcpy, memset (device); operator (host: without the operators that it calls)
        "kind": _S,
        "name": _S,
        # types and dimensions of its tensors, or grid and block; empty: unknown
        "shape": _S,
        "count": _I,
        # calls per step; -1 unknown
        "per_step": pl.Float64,
        "total_ns": _I,
        "p10_ns": _I,
        "p50_ns": _I,
        "p90_ns": _I,
        "p99_ns": _I,
    }
)
# medians of successive blocks of calls, and the step in which each block begins
LATENCIES = pl.Schema([*_CALLS.items(), ("blocks", pl.List(_I)), ("block_steps", pl.List(_N))])
"""Single calls by name and input shape, after warming up, those with the most time (`rank_data.latencies`)."""
ENVIRONMENT = pl.Schema({"rank": _N, "what": _S, "value": _S})
"""Hardware and versions as a trace states them. `what`: device, or the name of a version (cuda_runtime_version)."""

BASELINE: dict[str, pl.Schema] = {
    # `run`: number of the stored run, in the order of storing; `at`: when it was stored, RFC 3339
    "runs": pl.Schema({"run": _N, "at": _S, "source": _S, "device": _B, "world_size": _N}),
    "latencies": pl.Schema([("run", _N), *LATENCIES.items()]),
    "environment": pl.Schema([("run", _N), *ENVIRONMENT.items()]),
}
"""The collector ``baseline``: earlier runs that were stored under one name."""

TABLES: dict[str, pl.Schema] = {
    "ranks": RANKS,
    "steps": STEPS,
    "collectives": RANK_COLLECTIVES,
    "groups": RANK_GROUPS,
    "links": RANK_LINKS,
    "progress": RANK_PROGRESS,
    "operators": OPERATORS,
    "latencies": LATENCIES,
    "environment": ENVIRONMENT,
}
