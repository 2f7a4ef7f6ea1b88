"""Kinds of findings about where the ranks of a job run."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

# `using`: CPUs, NUMA nodes or NICs that a rank uses; `near`: those near its GPU, `device`; `judged`: ranks, none is far
_SPEC = kind(Mechanism.COUNTERS, "process", "judged", "using near device")

KINDS: dict[str, KindSpec] = {
    "topology.cpu_far": _SPEC,
    "topology.memory_far": _SPEC,
    "topology.nic_far": _SPEC,
}
