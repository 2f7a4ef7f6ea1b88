"""The rows of cluster_topology."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.tools.contract.result import Model

Placed = Literal["stated", "order", ""]


class HostRow(Model):
    """A host. `ranks`: as 0-7; names are separated by blanks. `numa_nodes`: how many are known; `nvlink`: how many
    NVLinks join two of its GPUs, at most; 0: none known. `sources`: what stated it. `marks`: kinds of findings about
    it, its devices or its ranks."""

    host: str
    gpus: int
    nics: int
    numa_nodes: int
    nvlink: int
    ranks: str
    sources: str
    marks: str


class DeviceRow(Model):
    """A GPU or NIC. `device`: GPU0 by its NVML number, mlx5_0, or its PCI address. `numa_node`, `cpus`: those that it
    is attached to; None and empty: unknown. `nearest`: the NICs that are nearest to a GPU, and `relation`: how near, in
    the terms of `nvidia-smi topo -m`."""

    host: str
    kind: str
    device: str
    bus: str
    numa_node: int | None
    cpus: str
    uuid: str
    model: str
    nearest: str
    relation: str


class LinkRow(Model):
    """How two devices of a host are connected (NV18, PIX, PXB, PHB, NODE, SYS). `stated`: by NVIDIA's tools; else
    derived from PCI addresses and NUMA nodes."""

    host: str
    device: str
    other: str
    relation: str
    stated: bool


class RankRow(Model):
    """A rank of the job. `placed`: whether its GPU is stated, or assumed by the order of ranks (`order`): then its
    affinity is not judged. `stage`: of the pipeline. `cpus`, `memory`: that it may use; `nics`: that it has open."""

    rank: int
    host: str
    pid: int | None
    device: str
    placed: Placed
    stage: int | None
    cpus: str
    memory: str
    nics: str
    marks: str


class GroupRow(Model):
    """A process group. `hosts`: how many it spans."""

    name: str
    ranks: str
    hosts: int


class AffinityRow(Model):
    """A rank that is far from its GPU (`cpu`, `memory`), or uses NICs far from it (`nic`). `own`: the CPUs, nodes or
    NICs that it uses; `near`: those that are near its GPU."""

    rank: int
    host: str
    pid: int | None
    device: str
    what: Literal["cpu", "memory", "nic"]
    own: str
    near: str


class MarkRow(Model):
    """A finding of another tool about a host, device or rank."""

    host: str
    device: str
    rank: int | None
    kind: str
    severity: str


class NumaRow(Model):
    """CPUs of a NUMA node, as 0-55,112-167."""

    host: str
    node: int
    cpus: str


class LatencyRow(Model):
    """Latency of requests on a host, by its inference server (`source`) since that started: median and 90th percentile
    (of Triton the mean). `peers_ms`: the median of the other hosts' `p90_ms`; None: too few to compare. `high`: at
    least 1.5 times that."""

    host: str
    source: str
    requests: int
    p50_ms: float
    p90_ms: float
    peers_ms: float | None
    ratio: float | None
    high: bool


class Data(Model):
    """The cluster; `judged`: how many ranks could be judged for each kind of affinity."""

    hosts: list[HostRow] = Field(default_factory=list)
    affinity: list[AffinityRow] = Field(default_factory=list)
    marks: list[MarkRow] = Field(default_factory=list)
    ranks: list[RankRow] = Field(default_factory=list)
    devices: list[DeviceRow] = Field(default_factory=list)
    groups: list[GroupRow] = Field(default_factory=list)
    links: list[LinkRow] = Field(default_factory=list)
    numa: list[NumaRow] = Field(default_factory=list)
    latency: list[LatencyRow] = Field(default_factory=list)
    judged: dict[str, int] = Field(default_factory=dict)
