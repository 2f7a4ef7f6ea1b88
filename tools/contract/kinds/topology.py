"""Kinds of findings about where the ranks of a job run."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

# `using`: CPUs, NUMA nodes or NICs that a rank uses; `near`: those near its GPU, `device`; `judged`: ranks, none is far
_SPEC = kind(Mechanism.COUNTERS, "process", "judged", "using near device")

KINDS: dict[str, KindSpec] = {
    "topology.cpu_far": _SPEC,
    "topology.memory_far": _SPEC,
    "topology.nic_far": _SPEC,
    # `count` findings of another tool (`found`: kind of the worst) are about the GPU or NIC `device` that the rank uses
    "topology.device_marked": kind(Mechanism.COUNTERS, "process", "count", "device found"),
    # requests on a host take longer than on the others: 90th percentile of `count` requests of the server `source`;
    # normal: of `count` hosts none stands out
    "topology.latency_high": kind(Mechanism.COUNTERS, "host", "p90_ms peers_ms ratio count", "source"),
}
