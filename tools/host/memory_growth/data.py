"""The result tables of memory_growth. Sizes in bytes at the end of the window, of groups at their largest; rates in
bytes per second."""

from __future__ import annotations

from pydantic import Field

from whystall.tools.contract.result import Model


class ProcessRow(Model):
    """A process. `bytes_rate`: of its anonymous, shared and swapped-out memory, by Sen's slope; None: too few readings.
    `until_limit_s`: seconds until `limit_of` (a cgroup, or ``host``) is reached by its own growth alone."""

    pid: int
    comm: str
    cgroup: str
    rss_bytes: int
    anon_bytes: int
    shmem_bytes: int
    swap_bytes: int
    bytes_rate: float | None = None
    rss_bytes_rate: float
    grown_bytes: float
    steady: bool = False
    readings: int
    until_limit_s: float | None = None
    limit_of: str = ""


class GroupRow(Model):
    """A cgroup, or the host (`cgroup` ``host``). `bytes_rate`: of what the kernel cannot free by itself; the other
    rates are from the first to the last reading, None: not counted. File pages include shared memory."""

    cgroup: str
    used_bytes: int
    reclaimable_bytes: int
    limit_bytes: int | None = None
    bytes_rate: float | None = None
    steady: bool = False
    anon_bytes_rate: float | None = None
    shmem_bytes_rate: float | None = None
    file_bytes_rate: float | None = None
    slab_bytes_rate: float | None = None
    swap_bytes_rate: float | None = None
    until_limit_s: float | None = None


class CopyRow(Model):
    """A process and its descendants. `copied_bytes`: memory that they shared before and no longer share, because one of
    them wrote to it; `remaining_bytes`: what the descendants still share and could copy."""

    pid: int
    comm: str
    processes: int
    copied_bytes: float
    bytes_rate: float
    remaining_bytes: float


class KillRow(Model):
    """A process that the kernel killed for lack of memory; `pid` None: unknown which. `limit_of`: the cgroup whose
    limit was reached, or ``host``; empty: unknown. `at_s`: seconds since the start."""

    at_s: float
    pid: int | None = None
    comm: str | None = None
    cgroup: str
    limit_of: str
    limit_bytes: int | None = None
    anon_bytes: int | None = None


class Data(Model):
    """Fastest growth first."""

    processes: list[ProcessRow] = Field(default_factory=list)
    groups: list[GroupRow] = Field(default_factory=list)
    copies: list[CopyRow] = Field(default_factory=list)
    kills: list[KillRow] = Field(default_factory=list)
