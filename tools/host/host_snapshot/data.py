"""The result tables of host_snapshot. Shares are percent of the window, rates per second; None: not reported."""

from __future__ import annotations

from pydantic import Field

from whystall.tools.contract.result import Model


class Pressure(Model):
    """Share of the window in which some, or all, tasks were stalled for a resource."""

    resource: str
    some_pct: float
    full_pct: float | None = None


class Cpu(Model):
    """All CPUs together; the parts add up to 100. `user` includes nice and guests, `system` includes `interrupt`."""

    cpus: int
    user_pct: float
    system_pct: float
    iowait_pct: float
    steal_pct: float
    idle_pct: float
    interrupt_pct: float = 0.0
    context_switches: float | None = None


class RunQueue(Model):
    """Tasks that run or wait for a CPU, and tasks blocked for I/O, at the samples."""

    samples: int
    runnable_mean: float
    runnable_max: float
    blocked_mean: float | None = None
    load1: float | None = None


class Memory(Model):
    """State at the end of the window; rates over it in pages or events per second."""

    total_bytes: float | None = None
    available_bytes: float | None = None
    dirty_bytes: float | None = None
    writeback_bytes: float | None = None
    swap_used_bytes: float | None = None
    kswapd_scan_rate: float | None = None
    direct_scan_rate: float | None = None
    steal_rate: float | None = None
    direct_stall_rate: float | None = None
    file_refault_rate: float | None = None
    major_fault_rate: float | None = None
    swap_in_rate: float | None = None
    swap_out_rate: float | None = None


class Filesystem(Model):
    """A local file system at the end of the window, the fullest first. `free_bytes`, `free_inodes`: for the target's
    user; None: not limited. `open_files`: the target's descriptors for writing."""

    path: str
    fstype: str
    size_bytes: int
    free_bytes: int
    free_pct: float
    free_inodes: int | None = None
    free_inodes_pct: float | None = None
    open_files: int


class Disk(Model):
    """One whole disk. `await_ms`: mean time of a request from its start to its end, None if none ended."""

    device: str
    util_pct: float
    await_ms: float | None
    iops: float
    read_bytes_rate: float
    write_bytes_rate: float
    in_flight: int


class Process(Model):
    """One process, all its threads. `cpu_pct`: of one CPU; `block_io_pct`: of one thread's time. `grown_bytes`: of
    resident memory in the window; negative if it shrank; `returned_bytes`: by which it fell between readings.
    `kernel`: a thread of the kernel."""

    pid: int
    comm: str
    in_target: bool
    cpu_pct: float
    user_pct: float
    system_pct: float
    block_io_pct: float | None
    major_faults: int
    minor_faults: int = 0
    kernel: bool = False
    grown_bytes: int = 0
    returned_bytes: int = 0
    read_bytes_rate: float | None
    write_bytes_rate: float | None
    rss_bytes: int
    threads: int
    cgroup: str


class Thread(Model):
    """Where the time of a target's thread went. `blocked_pct`: share of samples in uninterruptible sleep (state D)."""

    pid: int
    tid: int
    comm: str
    user_pct: float
    system_pct: float
    runnable_pct: float | None
    blocked_pct: float | None
    block_io_pct: float | None
    samples: int


class CgroupRow(Model):
    """CPU quota and memory limit of a cgroup, and how often they were hit during the window."""

    cgroup: str
    version: int
    quota_cpus: float | None
    periods: int | None
    throttled_periods: int | None
    throttled_s: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    memory_limit_hits: int | None


class Data(Model):
    """`window_s`: from the first to the last reading."""

    window_s: float
    pressure: list[Pressure] = Field(default_factory=list)
    cpu: Cpu | None = None
    run_queue: RunQueue | None = None
    memory: Memory = Field(default_factory=Memory)
    disks: list[Disk] = Field(default_factory=list)
    by_cpu: list[Process] = Field(default_factory=list)
    by_block_io: list[Process] = Field(default_factory=list)
    by_major_faults: list[Process] = Field(default_factory=list)
    threads: list[Thread] = Field(default_factory=list)
    cgroups: list[CgroupRow] = Field(default_factory=list)
    filesystems: list[Filesystem] = Field(default_factory=list)
