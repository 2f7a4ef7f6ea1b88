"""cluster_topology: what the hosts of a cluster consist of, which rank runs where, and which one far from its GPU."""

from __future__ import annotations

import json
import re
from typing import Annotated

from pydantic import Field, model_validator

from whystall.tools.collect.tables import TOPOLOGY
from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import Params as BaseParams
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.host.cluster_topology import affinity
from whystall.tools.host.cluster_topology.cluster import LATENCY_KIND, Cluster, Host, cluster_of, severity_of
from whystall.tools.host.cluster_topology.data import (
    AffinityRow,
    Data,
    GroupRow,
    HostRow,
    LatencyRow,
    MarkRow,
    NumaRow,
    RankRow,
)
from whystall.tools.host.common.findings import finding, window
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list

FORMAT = "whystall_topology"
_MOST_FINDINGS = 40
_PATH = 4096
_OF_DEVICES = ("gpu.", "port.")
_NVLINK = re.compile(r"NV([0-9]+)")


class Params(BaseParams):
    """Parameters of cluster_topology."""

    files: Annotated[
        list[str] | None,
        Field(
            max_length=4096,
            description="file HOST.*: nvidia-smi topo -m, lstopo XML, JSON, or metrics; may be repeated",
        ),
    ] = None
    traces: Annotated[
        str | None, Field(min_length=1, max_length=4096, description="path of the ranks' traces, a directory")
    ] = None
    live: Annotated[bool, Field(description="with files: also this host")] = False
    top: Annotated[int, Field(ge=1, le=200, description="rows per table")] = 10

    @model_validator(mode="after")
    def _paths(self) -> Params:
        if any(not 0 < len(path) <= _PATH for path in self.files or ()):
            raise ValueError(f"a path of files has 1 to {_PATH} characters")
        return self


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return the cluster in `recording`, and the ranks that are far from their GPU or NIC."""
    cluster = cluster_of(recording)
    far, counts = affinity.judged(cluster)
    marks: dict[str, set[str]] = {}
    for mark in cluster.marks:
        marks.setdefault(mark.host, set()).add(mark.kind)
    for row in far:
        marks.setdefault(row.host, set()).add(_KINDS[row.what])
    ranks: dict[str, list[int]] = {}
    for rank in cluster.ranks:
        ranks.setdefault(rank.host, []).append(rank.rank)
    hosts = [_host(one, ranks.get(one.name, []), marks.get(one.name, set())) for one in cluster.hosts.values()]
    whole = Data(
        hosts=sorted(hosts, key=lambda row: not row.marks),
        affinity=far,
        marks=cluster.marks,
        ranks=cluster.ranks,
        devices=[one for host in cluster.hosts.values() for kind in ("gpu", "nic") for one in host.of_kind(kind)],
        groups=cluster.groups,
        links=[link for host in cluster.hosts.values() for link in host.links.values()],
        numa=[
            NumaRow(host=host.name, node=node, cpus=cpus)
            for host in cluster.hosts.values()
            for node, cpus in sorted(host.numa.items())
        ],
        latency=cluster.latency,
        judged=counts,
    )
    listed = [name for name in Data.model_fields if name != "judged"]
    cut = {name: getattr(whole, name)[: params.top] for name in listed}
    return Judgement(
        findings=[
            *_findings(far, counts, recording.manifest.window_ns),
            *_of_devices(cluster, recording.manifest.window_ns),
            *_of_latency(cluster.latency, recording.manifest.window_ns),
        ][:_MOST_FINDINGS],
        data=Data(**cut, judged=counts),
        seen=len(whole.devices) + len(whole.ranks) + len(whole.latency),
        totals={name: len(getattr(whole, name)) for name in listed},
        artifacts=[_stored(recording, cluster.groups)],
        not_seen=_blind(cluster, counts),
        basis=(cluster, whole),
    )


_KINDS = {"cpu": "topology.cpu_far", "memory": "topology.memory_far", "nic": "topology.nic_far"}


def _host(host: Host, ranks: list[int], marks: set[str]) -> HostRow:
    joined = [int(one[1]) for link in host.links.values() if (one := _NVLINK.fullmatch(link.relation))]
    return HostRow(
        host=host.name,
        gpus=len(host.of_kind("gpu")),
        nics=len(host.of_kind("nic")),
        numa_nodes=len(host.numa),
        nvlink=max(joined, default=0),
        ranks=rank_list(ranks),
        sources=" ".join(sorted(set(host.sources))),
        marks=" ".join(sorted(marks)),
    )


def _findings(far: list[AffinityRow], counts: dict[str, int], window_ns: int) -> list[Finding]:
    interval = window(window_ns)
    found = []
    for row in far:
        subject = Subject(type="process", pid=row.pid, rank=row.rank, host=row.host or None, device=row.device)
        words = {"using": row.own, "near": row.near, "device": row.device}
        bad = Severity.MAJOR if row.what == "nic" else Severity.MINOR
        found.append(finding(_KINDS[row.what], subject, interval, {}, bad, words))
    wrong = {row.what for row in far}
    found.sort(key=lambda one: -one.severity.rank)
    for what, count in counts.items():
        if count and what not in wrong:
            found.append(finding(_KINDS[what], Subject(type="job"), interval, {"judged": float(count)}))
    return found


def _of_devices(cluster: Cluster, window_ns: int) -> list[Finding]:
    """Return a finding per rank whose GPU, or a NIC that it has open, another tool found at fault."""
    marks: dict[tuple[str, str], list[MarkRow]] = {}
    for mark in cluster.marks:
        if mark.device and mark.kind.startswith(_OF_DEVICES):
            marks.setdefault((mark.host, mark.device), []).append(mark)
    found = []
    for rank in cluster.ranks:
        for device in _devices_of(rank):
            of_it = marks.get((rank.host, device), [])
            if not of_it:
                continue
            worst = max(of_it, key=lambda mark: Severity(mark.severity).rank)
            subject = Subject(type="process", pid=rank.pid, rank=rank.rank, host=rank.host or None, device=device)
            words, metrics = {"device": device, "found": worst.kind}, {"count": float(len(of_it))}
            severity = Severity(worst.severity)
            found.append(finding("topology.device_marked", subject, window(window_ns), metrics, severity, words))
    return found


def _devices_of(rank: RankRow) -> list[str]:
    """Return the GPU and the NICs that a rank is stated to use."""
    return [*([rank.device] if rank.device and rank.placed == "stated" else []), *rank.nics.split()]


def _of_latency(rows: list[LatencyRow], window_ns: int) -> list[Finding]:
    found = []
    for row in rows:
        if row.high:
            metrics = {"p90_ms": row.p90_ms, "peers_ms": row.peers_ms or 0.0, "ratio": row.ratio or 0.0}
            metrics["count"] = float(row.requests)
            subject = Subject(type="host", host=row.host)
            severity = Severity(severity_of(row))
            found.append(finding(LATENCY_KIND, subject, window(window_ns), metrics, severity, {"source": row.source}))
    compared = [row for row in rows if row.ratio is not None]
    if compared and not found:
        found.append(finding(LATENCY_KIND, Subject(type="job"), window(window_ns), {"count": float(len(compared))}))
    return found


def _blind(cluster: Cluster, counts: dict[str, int]) -> list[tuple[str, str]]:
    spots = []
    if cluster.unmatched:
        spots.append(("topology_unmatched", ", ".join(cluster.unmatched[:4])))
    if not cluster.ranks:
        spots.append(("no_ranks_placed", ""))
        return spots
    if any(row.placed == "order" for row in cluster.ranks):
        spots.append(("ranks_by_order", str(sum(row.placed == "order" for row in cluster.ranks))))
    for what, count in counts.items():
        if count < len(cluster.ranks):
            spots.append(("affinity_unknown", f"{what}: {len(cluster.ranks) - count} of {len(cluster.ranks)} ranks"))
    return spots


def _stored(recording: Recording, groups: list[GroupRow]) -> ArtifactContent:
    """Return all tables as JSON; as one of `files` it is merged with those of other hosts."""
    tables = {
        name: [list(row) for row in frame.iter_rows()]
        for name in TOPOLOGY
        if (frame := recording.find(f"topology.{name}")) is not None
    }
    if recording.has("ranks"):  # of traces: they are not stored with the topology
        tables["groups"] = [[row.name, row.ranks] for row in groups]
    text = json.dumps({FORMAT: 1, "tables": tables}, ensure_ascii=False, separators=(",", ":"))
    return ArtifactContent(name="topology.json", title="Topology", media_type="application/json", text=text)


TOOL = Tool(
    name="cluster_topology",
    title="Topology of a cluster",
    description=(
        "Hosts, GPUs, NVLink, PCIe, NICs and NUMA nodes of this host or of many, by files; which rank runs where; "
        "ranks far from their GPU or NIC; nodes with a high latency of requests; results of slow_node_check and "
        "gpu_health marked."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need("topology")],
    judge=judge,
    kinds=frozenset({*_KINDS.values(), "topology.device_marked", LATENCY_KIND}),
    reads="topology",
)
