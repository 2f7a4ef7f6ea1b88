"""Tables of communication between ranks, from any source: each rank's part in each operation, groups, links.

Conventions as in `whystall.tools.timeline.profile`: integer nanoseconds on the profile's own clock, 0 for an unknown
instant, -1 for another unknown number, empty for an unknown text; no nulls.
"""

from __future__ import annotations

import re

import polars as pl

_I, _N, _S = pl.Int64, pl.Int32, pl.String

COLLECTIVES = pl.Schema(
    {
        # the kernel on the device; without a device the host's thread that executed it
        "start_ns": _I,
        # 0: not known to have ended (a Flight Recorder's entry of a hang)
        "end_ns": _I,
        # one of `OPS`
        "op": _S,
        # key of the group in `GROUPS`; empty unknown
        "group": _S,
        # sequence number within the group as the library counts it, point-to-point operations separately; -1 unknown
        "seq": _I,
        # payload of this rank: the larger of input and output; -1 unknown
        "bytes": _I,
        "dtype": _S,
        # the other rank of a point-to-point operation, as a global rank; -1
        "peer": _N,
        # when the host requested it; 0 unknown
        "launch_ns": _I,
        # the step it belongs to, -1 unknown
        "step": _N,
        "device": _N,
        # stream of the device, thread of the host without one
        "lane": _I,
        # scheduled, started or completed
        "state": _S,
        # time of this rank's part that the vendor's counters attribute to waiting for peers; -1 without counters
        "vendor_wait_ns": _I,
    }
)
"""One row per operation this rank took part in, sorted by start."""

_Type = type[pl.DataType] | pl.DataType
_GROUPS: dict[str, _Type] = {
    # unique within the job and equal on all its ranks: see `group_key`
    "group": _S,
    "name": _S,
    # the program's name for it: default_pg, TENSOR_MODEL_PARALLEL_GROUP ...
    "description": _S,
    # global ranks, ascending; empty when not known
    "ranks": pl.List(_N),
    # -1 unknown
    "size": _N,
}
GROUPS = pl.Schema(_GROUPS)
SAME_WORK = "same work"
"""The description of a group that names no communication, but the ranks that do the same work (a pipeline stage)."""

LINKS = pl.Schema(
    {
        "step": _N,
        # global ranks
        "source": _N,
        "target": _N,
        # HCCS, RDMA, PCIE, NVLINK, ... as the profiler names it; empty unknown
        "transport": _S,
        "bytes": _I,
        # transfer time
        "transit_ns": _I,
    }
)
"""Bytes sent from rank to rank, where a profiler measures it (Ascend's communication_matrix.json)."""

PROGRESS = pl.Schema(
    {
        # key of the group
        "group": _S,
        # sequence numbers of the last collective requested and of the last one done; -1 unknown
        "asked": _I,
        "done": _I,
    }
)
"""Progress of a rank in its groups as the library counts it (Flight Recorder's pg_status). It covers operations that
the ring buffer has dropped. Point-to-point operations are not counted."""

SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Operations in which no rank leaves before all have entered: the rank that arrives last has the shortest one."""
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})
OPS = SYNCHRONISING | POINT_TO_POINT | {"all_to_all_v", "broadcast", "reduce", "gather", "scatter", "other"}

_PREFIX = re.compile(r"^(?:c10d::|nccl:|gloo:|rccl:|hccl:|mpi:|ncclDevKernel_|ncclKernel_|rcclKernel_|hcom_)", re.I)
# Longer names first: all_to_all_v is not all_to_all.
_OPS = (
    ("all_to_all_v", re.compile(r"all_?to_?all_?v")),
    ("all_to_all", re.compile(r"all_?to_?all")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_gather", re.compile(r"all_?gather")),
    ("all_reduce", re.compile(r"all_?reduce")),
    ("send_recv", re.compile(r"send_?recv|batch_?send_?recv|coalesced_?p2p")),
    ("barrier", re.compile(r"barrier")),
    ("broadcast", re.compile(r"broad_?cast")),
    ("send", re.compile(r"^i?send")),
    ("recv", re.compile(r"^i?recv|receive")),
    ("scatter", re.compile(r"scatter")),
    ("gather", re.compile(r"gather")),
    ("reduce", re.compile(r"reduce")),
)


def canonical_op(name: str) -> str:
    """Return one of `OPS` for a library's or profiler's `name` of an operation.

    ``nccl:_allgather_base``, ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``, ``hcom_allReduce__586_0_1``, ``all_to_allv``.
    """
    plain = _PREFIX.sub("", name.strip()).lstrip("_").lower()
    return next((op for op, pattern in _OPS if pattern.search(plain)), "other")


def group_key(name: str, ranks: tuple[int, ...]) -> str:
    """Return the identity of a group: neither names (``split_group``) nor sets of ranks are unique alone."""
    return f"{name}|{','.join(map(str, sorted(ranks)))}" if ranks else name
