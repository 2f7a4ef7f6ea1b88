"""Judge whether ranks run near their GPUs and use NICs near them. A side that is not known is never judged."""

from __future__ import annotations

from typing import Literal

from whystall.tools.collect.topology.rows import cpu_set, cpus_of
from whystall.tools.host.cluster_topology.cluster import Cluster, Host
from whystall.tools.host.cluster_topology.data import AffinityRow, DeviceRow, RankRow

_FAR = "SYS"


def judged(cluster: Cluster) -> tuple[list[AffinityRow], dict[str, int]]:
    """Return what is far, and how many ranks could be judged for their `cpu`, `memory` and `nic`."""
    far: list[AffinityRow] = []
    counts = dict.fromkeys(("cpu", "memory", "nic"), 0)
    for rank in cluster.ranks:
        host = cluster.hosts.get(rank.host)
        gpu = host.devices.get(rank.device) if host is not None else None
        if host is None or gpu is None or rank.placed != "stated":
            continue
        for what, found in (
            ("cpu", _cpu(rank, gpu, host)),
            ("memory", _memory(rank, gpu)),
            ("nic", _nic(rank, gpu, host)),
        ):
            counts[what] += found is not None
            if isinstance(found, AffinityRow):
                far.append(found)
    return far, counts


def _cpu(rank: RankRow, gpu: DeviceRow, host: Host) -> AffinityRow | Literal[True] | None:
    """Return the row if none of the CPUs that the rank may use is near its GPU, True if one is; None: unknown."""
    own, local = cpu_set(rank.cpus), host.local_cpus(gpu)
    if not own or not local:
        return None
    return True if own & local else _row(rank, "cpu", rank.cpus, gpu.cpus or host.numa.get(gpu.numa_node or 0, ""))


def _memory(rank: RankRow, gpu: DeviceRow) -> AffinityRow | Literal[True] | None:
    """Likewise for the NUMA nodes whose memory it may use."""
    own = cpu_set(cpus_of(rank.memory))
    if not own or gpu.numa_node is None:
        return None
    return True if gpu.numa_node in own else _row(rank, "memory", rank.memory, str(gpu.numa_node))


def _nic(rank: RankRow, gpu: DeviceRow, host: Host) -> AffinityRow | Literal[True] | None:
    """Return the row if all NICs that the rank has open are at another NUMA node, and the host has a nearer one."""
    relations = [host.relation(gpu.device, nic) for nic in rank.nics.split()]
    if not relations or not all(relations) or not gpu.relation:
        return None
    if any(one != _FAR for one in relations) or gpu.relation == _FAR:
        return True
    return _row(rank, "nic", rank.nics, gpu.nearest)


def _row(rank: RankRow, what: Literal["cpu", "memory", "nic"], own: str, near: str) -> AffinityRow:
    return AffinityRow(rank=rank.rank, host=rank.host, pid=rank.pid, device=rank.device, what=what, own=own, near=near)
