"""The result tables of host_bound. Shares are percent of the window unless stated otherwise."""

from __future__ import annotations

from pydantic import Field

from whystall.tools.contract.result import Model


class Dispatcher(Model):
    """A thread that feeds the accelerator, how it was found (`chosen_by`, codes) and how certainly, and where its time
    went; the five shares add up to 100. `ready_pct`: runnable but not running. `interrupt_pct`: lost to interrupts,
    running or ready. `latency_*`: from woken to running. `involuntary`: preemptions. `pinned`: its affinity excludes a
    CPU (None: not recorded). `others_pct`: how much of its allowed CPUs other threads used.
    """

    pid: int
    tid: int
    comm: str
    chosen_by: str
    sure: str
    running_pct: float
    ready_pct: float
    interrupt_pct: float
    blocked_pct: float
    unknown_pct: float
    wakes: int
    latency_p50_us: float | None
    latency_p99_us: float | None
    latency_max_us: float | None
    involuntary: int
    migrations: int
    cross_core: int | None
    cross_node: int | None
    cpus: str
    pinned: bool | None
    others_pct: float


class Loss(Model):
    """What kept the runnable thread `tid` from running: `what` (a code of `activity`; ``stolen``: an interrupt while it
    ran) and `who` had its CPU. `preempted_ms`: the part that began with a preemption.
    """

    tid: int
    what: str
    who: str
    who_pid: int | None
    window_pct: float
    total_ms: float
    preempted_ms: float
    max_ms: float
    count: int
    cpus: str


class Wait(Model):
    """What thread `tid` waited for voluntarily, and which thread ended the wait."""

    tid: int
    what: str
    who: str
    window_pct: float
    total_ms: float
    max_ms: float
    count: int


class Device(Model):
    """An accelerator between its first and last work. Of its idle time: `host_pct` it waited for the host to launch,
    `launch_pct` for a launch to take effect, `ahead_pct` although work was enqueued; `unknown_pct`: not attributable.
    """

    device: int
    span_s: float
    idle_pct: float
    gaps: int
    host_pct: float
    launch_pct: float
    ahead_pct: float
    unknown_pct: float
    gap_p50_us: float
    gap_max_us: float
    queue_p50_us: float | None


class Reason(Model):
    """What the next launching thread did while the device was idle; `who`, thread `who_tid` (-1: no thread), kept it
    from launching. `idle_pct`: of the device's idle time.
    """

    device: int
    tid: int
    reason: str
    who: str
    who_tid: int
    idle_pct: float
    window_pct: float
    total_ms: float
    gaps: int


class Gap(Model):
    """One idle gap of a device: the work that ended it (`next_work`, launched by thread `tid`), what that thread did
    for most of it (`reason_pct` of the gap), and what the host profile shows there (`host_work`).
    """

    device: int
    start_ms: float
    idle_us: float
    step: int
    tid: int
    next_work: str
    reason: str
    who: str
    reason_pct: float
    host_work: str


class StepRow(Model):
    """One profiler step; shares of it. `reason`, `who`: the largest part of the idle time that the host caused."""

    step: int
    device: int
    start_ms: float
    duration_ms: float
    idle_pct: float
    host_pct: float
    running_pct: float | None
    ready_pct: float | None
    reason: str
    who: str


class Remedy(Model):
    """A remedy: a code whose sentence is in prompts/. `pct`: of the window, an upper bound of the gain; None: not
    measured. `command`: for this host; it is never run.
    """

    code: str
    pct: float | None
    who: str
    cpus: str
    command: str


class Data(Model):
    """Largest first."""

    dispatchers: list[Dispatcher] = Field(default_factory=list)
    losses: list[Loss] = Field(default_factory=list)
    waits: list[Wait] = Field(default_factory=list)
    devices: list[Device] = Field(default_factory=list)
    reasons: list[Reason] = Field(default_factory=list)
    gaps: list[Gap] = Field(default_factory=list)
    steps: list[StepRow] = Field(default_factory=list)
    remedies: list[Remedy] = Field(default_factory=list)
