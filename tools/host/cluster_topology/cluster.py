"""Merge what several sources state about the hosts of a cluster, and lay the ranks of a job over it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from whystall.tools.collect.topology.rows import UNKNOWN, cpu_set, cpus_of, host_named
from whystall.tools.host.cluster_topology.data import DeviceRow, GroupRow, LatencyRow, LinkRow, MarkRow, RankRow
from whystall.tools.host.cluster_topology.latency import compared
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list

NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first."""
LATENCY_KIND = "topology.latency_high"
_NUMBERED = re.compile(r"GPU[0-9]+")
_TWICE = 2.0
_PIPELINE = re.compile(r"pipeline|(?:^|[_\W])pp(?:$|[_\W0-9])", re.IGNORECASE)


@dataclass
class Host:
    """A host: CPUs by NUMA node, devices by name, relation by pair of names (sorted)."""

    name: str
    numa: dict[int, str] = field(default_factory=dict)
    devices: dict[str, DeviceRow] = field(default_factory=dict)
    links: dict[tuple[str, str], LinkRow] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[DeviceRow]:
        """Return its GPUs (``gpu``) or NICs (``nic``), by number."""
        return sorted((one for one in self.devices.values() if one.kind == kind), key=lambda one: by_number(one.device))

    def relation(self, one: str, other: str) -> str:
        """Return how two devices are connected: as stated, or by their NUMA nodes; empty if unknown."""
        link = self.links.get((min(one, other), max(one, other)))
        if link is not None:
            return link.relation
        nodes = [found.numa_node for name in (one, other) if (found := self.devices.get(name)) is not None]
        if len(nodes) < 2 or None in nodes:
            return ""
        return "NODE" if nodes[0] == nodes[1] else "SYS"

    def local_cpus(self, device: DeviceRow) -> frozenset[int]:
        """Return the CPUs near a device; empty if unknown."""
        node = device.numa_node
        return cpu_set(device.cpus or (self.numa.get(node, "") if node is not None else ""))


@dataclass
class Cluster:
    """Hosts by name, ranks and groups of the job, marks. `unmatched`: devices that could not be merged."""

    hosts: dict[str, Host]
    ranks: list[RankRow]
    groups: list[GroupRow]
    marks: list[MarkRow]
    latency: list[LatencyRow]
    unmatched: list[str]


def by_number(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts GPU2 before GPU10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]{1,9})", name))


def severity_of(row: LatencyRow) -> str:
    """Return the severity of a high latency: major from twice that of the other hosts on."""
    return "major" if (row.ratio or 0.0) >= _TWICE else "minor"


def cluster_of(recording: Recording) -> Cluster:
    """Return the cluster in `recording`; its tables may have several rows for one device."""
    hosts: dict[str, Host] = {}

    def host(name: str) -> Host:
        return hosts.setdefault(name, Host(name))

    for row in recording.table("topology.sources").iter_rows(named=True):
        if row["host"] and row["kind"] in ("nvidia-smi", "lstopo", "sysfs", "whystall"):
            host(row["host"]).sources.append(row["kind"])
    for row in recording.table("topology.numa").iter_rows(named=True):
        host(row["host"]).numa[row["node"]] = row["cpus"]
    renamed, unmatched = _devices(recording, host)
    for row in recording.table("topology.links").iter_rows(named=True):
        names = [renamed.get((row["host"], name), name) for name in (row["device"], row["other"])]
        if not all(name in host(row["host"]).devices for name in names):
            continue
        one, other = sorted(names)
        links, stated = host(row["host"]).links, bool(row["stated"])
        before = links.get((one, other))
        if before is None or (stated and (not before.stated or row["relation"].startswith("NV"))):
            links[one, other] = LinkRow(
                host=row["host"], device=one, other=other, relation=row["relation"], stated=stated
            )
    for one_host in hosts.values():
        _nearest(one_host)
    groups = _groups(recording)
    ranks = _ranks(recording, hosts, groups, renamed)
    marks = _marks(recording, hosts, ranks)
    measured = recording.find("topology.latency")
    latency = compared(measured.iter_rows(named=True) if measured is not None else ())
    marks += [
        MarkRow(host=row.host, device="", rank=None, kind=LATENCY_KIND, severity=severity_of(row))
        for row in latency
        if row.high
    ]
    where = {row.rank: row.host for row in ranks}
    known = [
        GroupRow(name=name, ranks=rank_list(members), hosts=len({where[rank] for rank in members if where.get(rank)}))
        for name, members in groups
    ]
    return Cluster(
        dict(sorted(hosts.items(), key=lambda item: by_number(item[0]))), ranks, known, marks, latency, unmatched
    )


def _devices(recording: Recording, host: Callable[[str], Host]) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Merge devices by name, and by PCI address. A GPU with an address alone is not joined to one with a number alone:
    that NVML numbers them in the order of their addresses is not certain."""
    rows = list(recording.table("topology.devices").iter_rows(named=True))
    by_bus: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["bus"] and row["device"] != row["bus"]:
            by_bus[row["host"], row["bus"]] = row["device"]
    nameless = {row["host"] for row in rows if _NUMBERED.fullmatch(row["device"]) and not row["bus"]}
    renamed, unmatched = {}, []
    for row in rows:
        name = by_bus.get((row["host"], row["bus"]), row["device"]) if row["bus"] else row["device"]
        renamed[row["host"], row["device"]] = name
        if row["kind"] == "gpu" and name == row["bus"] and row["host"] in nameless:
            unmatched.append(f"{row['host']} {name}")
            continue
        node = None if row["node"] == UNKNOWN else row["node"]
        devices = host(row["host"]).devices
        before = devices.get(name)
        found = {key: row[key] for key in ("bus", "cpus", "uuid", "model")} | {"numa_node": node}
        if before is not None:
            found = {key: getattr(before, key) if value in ("", None) else value for key, value in found.items()}
        devices[name] = DeviceRow(host=row["host"], kind=row["kind"], device=name, nearest="", relation="", **found)
    return renamed, unmatched


def _nearest(host: Host) -> None:
    nics = host.of_kind("nic")
    for nic in nics:
        # the legend of `nvidia-smi topo -m`: all relations but SYS are within one NUMA node
        beside = {
            gpu.numa_node for gpu in host.of_kind("gpu") if host.relation(gpu.device, nic.device) in NEARNESS[:-1]
        }
        if nic.numa_node is None and len(beside) == 1:
            nic.numa_node = beside.pop()
    for gpu in host.of_kind("gpu"):
        known = {nic.device: host.relation(gpu.device, nic.device) for nic in nics}
        best = next((one for one in NEARNESS if one in known.values()), "")
        # a relation that is not known may be nearer than the best of the others
        if best and "" not in known.values():
            gpu.relation, gpu.nearest = best, " ".join(name for name, one in known.items() if one == best)


def _groups(recording: Recording) -> list[tuple[str, list[int]]]:
    found: dict[tuple[int, ...], str] = {}
    stored = recording.find("topology.groups")
    for row in stored.iter_rows(named=True) if stored is not None else ():
        if len(members := tuple(sorted(cpu_set(cpus_of(row["ranks"]))))) > 1:
            found.setdefault(members, row["name"])
    for row in recording.table("ranks.groups").iter_rows(named=True) if recording.has("ranks") else ():
        members = tuple(sorted(row["ranks"] or ()))
        if len(members) > 1:
            found.setdefault(members, row["description"] or row["name"])
    return [(name, list(members)) for members, name in found.items()]


def _ranks(
    recording: Recording,
    hosts: dict[str, Host],
    groups: Iterable[tuple[str, list[int]]],
    renamed: dict[tuple[str, str], str],
) -> list[RankRow]:
    stages = {rank: at for name, members in groups if _PIPELINE.search(name) for at, rank in enumerate(members)}
    found: dict[int, RankRow] = {}
    if recording.has("ranks"):
        for row in recording.table("ranks.ranks").iter_rows(named=True):
            pid = row["pid"] if row["pid"] > 0 else None
            found[row["rank"]] = _rank(row["rank"], host_named(row["host"]), pid, stages)
    for row in recording.table("topology.ranks").iter_rows(named=True):
        one = _rank(row["rank"], row["host"], row["pid"] if row["pid"] > 0 else None, stages)
        device = renamed.get((row["host"], row["device"]), row["device"])
        update = {"cpus": row["cpus"], "memory": row["memory"], "nics": row["nics"], "device": device}
        found[row["rank"]] = one.model_copy(update=update | {"placed": "stated" if device else ""})
    by_host: dict[str, list[RankRow]] = defaultdict(list)
    for _, one in sorted(found.items()):
        by_host[one.host].append(one)
    for name, ranks in by_host.items():
        gpus = hosts[name].of_kind("gpu") if name in hosts else []
        if len(gpus) == len(ranks) and not any(one.device for one in ranks):
            for one, gpu in zip(ranks, gpus, strict=True):
                one.device, one.placed = gpu.device, "order"
    return [one for _, one in sorted(found.items())]


def _rank(rank: int, host: str, pid: int | None, stages: dict[int, int]) -> RankRow:
    empty = {"device": "", "placed": "", "cpus": "", "memory": "", "nics": "", "marks": ""}
    return RankRow(rank=rank, host=host, pid=pid, stage=stages.get(rank), **empty)  # type: ignore[arg-type]


def _marks(recording: Recording, hosts: dict[str, Host], ranks: list[RankRow]) -> list[MarkRow]:
    by_rank = {row.rank: row for row in ranks}
    found = []
    for row in recording.table("topology.marks").iter_rows(named=True):
        rank = None if row["rank"] == UNKNOWN else row["rank"]
        of_rank = by_rank.get(rank) if rank is not None else None
        host = row["host"] or (of_rank.host if of_rank else "")
        devices = hosts[host].devices if host in hosts else {}
        names = [name for name, one in devices.items() if row["device"] and row["device"] in (name, one.bus, one.uuid)]
        device = names[0] if names else row["device"]
        found.append(MarkRow(host=host, device=device, rank=rank, kind=row["kind"], severity=row["severity"]))
        if of_rank is not None:
            of_rank.marks = f"{of_rank.marks} {row['kind']}".strip()
    return found
