"""The rows of gpu_health."""

from __future__ import annotations

from pydantic import Field

from whystall.tools.contract.findings import Severity
from whystall.tools.contract.result import Model


class MessageRow(Model):
    """Equal messages of a driver about one device. `what`: Xid 79, Xid 149.33 (with the sub-code of NVLink 5) or
    SXid 12028. `mnemonic`, `meaning`, `area`, `level`, `action` (at once), `further` (to find the cause): of NVIDIA's
    catalogue, empty if it has none; the action after what stands beside the message was considered. `root`: the message
    that it follows. `recovery`: what the driver states that the GPU needs now (Xid 154). `last_s`: how long before the
    end of the log; None: unknown."""

    what: str
    gpu: str
    uuid: str
    mnemonic: str
    meaning: str
    area: str
    level: str
    severity: Severity
    action: str
    further: str
    root: str
    recovery: str
    fatal: str
    links: str
    pids: list[int]
    process: str
    count: int
    last_s: float | None
    text: str


class LogRow(Model):
    """A source of messages, and what it covers. `foreign`: messages that programs wrote, left out."""

    source: str
    lines: int
    messages: int
    foreign: int
    covers_s: float | None
    since_boot: bool


class GpuRow(Model):
    """A GPU by NVML. Clock, temperature and power: the median of the readings in which it worked, else of all.
    `throttled_pct`: share of the working readings with a reason (`throttle`) that slows it down. None: unknown."""

    number: int
    gpu: str
    uuid: str
    model: str
    busy_pct: float | None
    clock_mhz: float | None
    clock_max_mhz: float | None
    throttled_pct: float | None
    throttle: list[str]
    temperature_c: float | None
    power_w: float | None
    power_limit_w: float | None
    pcie: str
    pcie_max: str
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    remapped_rows: int | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    recovery: str


class CardRow(Model):
    """An accelerator of Ascend or AMD by its vendor's program; `memory_pct`: in use. None, empty: not stated."""

    vendor: str
    card: str
    device: str
    model: str
    health: str
    throttle: str
    temperature_c: float | None
    power_w: float | None
    busy_pct: float | None
    memory_pct: float | None
    ecc_uncorrected: int | None
    pcie: str
    pcie_max: str


class ProcessRow(Model):
    """A process on a GPU; `used_bytes`: of the GPU's memory."""

    gpu: str
    pid: int
    comm: str
    used_bytes: int | None


class LinkRow(Model):
    """An NVLink that is down, or has errors. `new`: in the window; `errors`: ever."""

    gpu: str
    link: int
    up: bool
    errors: int
    new: int


class CounterRow(Model):
    """A counter of the host's hardware that is not 0. `count`: in the window."""

    kind: str
    device: str
    port: int | None
    name: str
    count: int
    event_rate: float
    total: int


class PortRow(Model):
    """A port of RDMA or Ethernet."""

    kind: str
    device: str
    port: int | None
    link: str
    state: str
    rate_mbps: int | None


class Data(Model):
    """What was read; messages: the most severe first."""

    messages: list[MessageRow] = Field(default_factory=list)
    gpus: list[GpuRow] = Field(default_factory=list)
    cards: list[CardRow] = Field(default_factory=list)
    processes: list[ProcessRow] = Field(default_factory=list)
    links: list[LinkRow] = Field(default_factory=list)
    counters: list[CounterRow] = Field(default_factory=list)
    ports: list[PortRow] = Field(default_factory=list)
    log: list[LogRow] = Field(default_factory=list)
