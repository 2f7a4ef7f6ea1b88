"""Recordings made by hand: what happened is stated in seconds and shares, and becomes the collectors' tables.

`Scene` is a host with one target process (`PID`, main thread of the same number). Everything said about a call or a
wait enters every table it would enter on a real host, so that the tools see one consistent story.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording, TableSchema
from whystall.tools.recording.target import Target

# Collectors that few tools need: recorded only if a scene has rows of them.
ON_REQUEST = (
    *("objects", "memory_use", "job_processes", "collectives", "device_log", "hardware", "gpu_state"),
    *("card_state", "serving"),
)
# Tables that older versions did not record: only if a scene has rows of them.
NEWER = ("syscalls.failures", "proc.filesystems", "proc.io_limits", "proc.io_use", "proc.partitions", "proc.real_time")
NEWER += ("proc.cpu_bounds", "proc.cpu_weights", "proc.task_limits", "proc.cpu_times", "objects.members")
PID = 4000
COMM = "train"
SLOW_NS = 1_000_000
"""Calls and waits at least this long are listed one by one."""

Row = dict[str, Any]
Waker = tuple[int, int, str]
FSYNC_STACK = ("__schedule", "io_schedule", "folio_wait_bit", "ext4_sync_file", "vfs_fsync_range", "do_syscall_64")


@dataclass
class Scene:
    """See the module. Times in seconds, shares in percent of the window."""

    window_s: float = 12.0
    everything: bool = False
    samples: int = 24
    tables: dict[str, list[Row]] = field(default_factory=dict)
    comms: dict[int, str] = field(default_factory=lambda: {PID: COMM})
    pids: dict[int, int] = field(default_factory=dict)
    _files: dict[str, int] = field(default_factory=dict)
    _stacks: dict[tuple[str, ...], int] = field(default_factory=dict)
    _calls: dict[tuple[int, str], Row] = field(default_factory=dict)
    _waits: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    _host: dict[str, tuple[float, float]] = field(default_factory=dict)

    # --- who ----------------------------------------------------------------------------------------------

    def thread(
        self,
        tid: int = PID,
        comm: str | None = None,
        *,
        pid: int = PID,
        user: float = 0.0,
        system: float = 0.0,
        runnable: float = 0.0,
        blocked: float = 0.0,
    ) -> Scene:
        """A target thread and where the kernel accounts its time; `blocked`: how often it is seen in state D."""
        self.comms[tid] = comm or self.comms.get(tid, COMM)
        self.pids[tid] = pid
        for index, at_ns in enumerate(self._times()):
            seen_d = int((index + 1) * blocked / 100) > int(index * blocked / 100)
            self._add(
                "proc.threads",
                at_ns=at_ns,
                **self._who(tid),
                state="D" if seen_d else "S",
                user_ns=int(at_ns * user / 100),
                system_ns=int(at_ns * system / 100),
                run_ns=int(at_ns * (user + system) / 100),
                wait_ns=int(at_ns * runnable / 100),
                block_io_ns=0,
                voluntary=index,
                involuntary=index,
            )
        return self

    def process(
        self,
        pid: int,
        comm: str,
        *,
        cpu: float = 0.0,
        io: float = 0.0,
        major_faults: int = 0,
        cgroup: str = "/job",
        ppid: int = 1,
    ) -> Scene:
        """A process of the host, in the target or not; `cpu` 100 is one CPU, `io` 100 always waiting for disks."""
        for at_ns in self._times():
            share = at_ns / self.window_ns
            self._add(
                "proc.processes",
                at_ns=at_ns,
                pid=pid,
                ppid=ppid,
                comm=comm,
                start_ticks=7,
                user_ns=int(at_ns * cpu / 100),
                system_ns=0,
                block_io_ns=int(at_ns * io / 100),
                major_faults=int(share * major_faults),
                minor_faults=0,
                rss_bytes=1 << 28,
                read_bytes=0,
                write_bytes=0,
                threads=1,
                cgroup=cgroup,
            )
        return self

    # --- what -------------------------------------------------------------------------------------------------

    def call(
        self,
        at_s: float,
        ms: float,
        syscall: str,
        path: str = "",
        *,
        tid: int = PID,
        size: int = 0,
        state: str = "D",
        waits: float = 100.0,
        count: int = 1,
        in_flight: bool = False,
        stack: tuple[str, ...] = FSYNC_STACK,
    ) -> Scene:
        """A system call, or `count` of them on end, `ms` each: `waits` percent in `state`, the rest on CPU."""
        wall_ns = int(ms * 1e6)
        wait_ns = int(wall_ns * waits / 100)
        file = self.file(path)
        split = {"D": "blocked_ns", "S": "sleep_ns", "R": "runnable_ns"}
        parts = dict.fromkeys(("oncpu_ns", "blocked_ns", "sleep_ns", "runnable_ns"), 0)
        parts["oncpu_ns"] = wall_ns - wait_ns
        parts[split[state]] += wait_ns
        for number in range(count):
            start_ns = int(at_s * 1e9) + number * wall_ns
            end_ns = start_ns + wall_ns
            if wall_ns >= SLOW_NS:
                self._add(
                    "syscalls.calls",
                    start_ns=start_ns,
                    end_ns=end_ns,
                    **self._who(tid),
                    syscall=syscall,
                    file=file,
                    fd=3 if path else -1,
                    asked=size,
                    returned=0 if in_flight else size,
                    offset=-1,
                    direct=False,
                    **parts,
                    in_flight=in_flight,
                    kstack=self.stack(stack),
                )
            if wait_ns:
                end = start_ns + wait_ns
                self.wait(start_ns / 1e9, (end - start_ns) / 1e6, syscall, path, tid=tid, state=state, stack=stack)
        total = self._calls.setdefault(
            (tid, syscall),
            {**self._who(tid), "syscall": syscall, "max_ns": 0, **dict.fromkeys(("count", "wall_ns", "bytes"), 0)}
            | dict.fromkeys(parts, 0),
        )
        for name, value in (parts | {"count": 1, "wall_ns": wall_ns, "bytes": size}).items():
            total[name] += value * count
        total["max_ns"] = max(total["max_ns"], wall_ns)
        if path and not in_flight:
            low = 1 << (max(wall_ns, 1).bit_length() - 1)
            place = {"file": file, "dev": "7:0", "ino": file, "pid": self.pids.get(tid, PID), "syscall": syscall}
            slot = {"low_ns": low, "high_ns": 2 * low, "count": count, "sum_ns": count * wall_ns, "bytes": count * size}
            self._add("syscalls.latency", **place, **slot)
        return self

    def wait(
        self,
        at_s: float,
        ms: float,
        syscall: str,
        path: str = "",
        *,
        tid: int = PID,
        state: str = "S",
        lock: int = 0,
        waker: Waker = (0, 0, ""),
        still: bool = False,
        seeded: bool = False,
        stack: tuple[str, ...] = (),
        user: tuple[str, ...] = (),
        **added: Any,
    ) -> Scene:
        """Time off CPU. `waker`: pid, tid and name; `still`: not ended at the window's end; `user`: frames in user
        mode; `added`: columns of ``switches.segments`` that older recordings lack."""
        start_ns, wall_ns = int(at_s * 1e9), int(ms * 1e6)
        ustack = self.stack(user, kernel=False)
        kstack = self.stack(stack)
        place = {"state": state, "syscall": syscall, "file": self.file(path), "kstack": kstack, "ustack": ustack}
        if wall_ns >= SLOW_NS:
            self._add(
                "switches.segments",
                start_ns=start_ns,
                end_ns=min(start_ns + wall_ns, self.window_ns),
                **self._who(tid),
                **place,
                lock=lock,
                waker_pid=waker[0],
                waker_tid=waker[1],
                waker_comm=waker[2],
                woken_ns=0,
                open=still,
                seeded=seeded,
                **added,
            )
        key = (tid, *place.values())
        total = self._waits.setdefault(key, {**self._who(tid), **place, "count": 0, "total_ns": 0, "max_ns": 0})
        total["count"] += 1
        total["total_ns"] += wall_ns
        total["max_ns"] = max(total["max_ns"], wall_ns)
        return self

    def seen(self, table: str, *, looks: str = "start end", **row: Any) -> Scene:
        """A row of ``objects.TABLE`` as read at the start, at the end, or both; a pair of values: first and last.
        Columns that are not given are unknown."""
        unknown = {pl.String(): "", pl.Boolean(): False}
        schema = COLLECTORS["objects"][table]
        for look in looks.split():
            at_ns = 0 if look == "start" else self.window_ns
            given = {name: value[look == "end"] if isinstance(value, tuple) else value for name, value in row.items()}
            columns = {name: given.pop(name, unknown.get(dtype, -1)) for name, dtype in schema.items()}
            assert not given, given
            self._add(f"objects.{table}", **(columns | {"at_ns": at_ns}))
        return self

    def requests(self, device: str, operation: str, ms: float, count: int, *, queue_ms: float = 0.01) -> Scene:
        """Block requests of one latency."""
        device_ns, queue_ns = int(ms * 1e6), int(queue_ms * 1e6)
        for phase, ns in (("device", device_ns), ("queue", queue_ns)):
            low = 1 << (max(ns, 1).bit_length() - 1)
            where = {"device": device, "operation": operation, "phase": phase}
            self._add("block.latency", **where, low_ns=low, high_ns=2 * low, count=count)
        self._add(
            "block.totals",
            device=device,
            operation=operation,
            count=count,
            bytes=4096 * count,
            queue_ns=queue_ns * count,
            device_ns=device_ns * count,
            max_ns=device_ns + queue_ns,
        )
        return self

    def disk(self, device: str, *, busy: float, await_ms: float = 1.0) -> Scene:
        """A disk that is busy this share of the window."""
        for at_ns in self._times():
            requests = int(at_ns / 1e9 * 100)
            self._add(
                "proc.disks",
                at_ns=at_ns,
                device=device,
                dev="8:0",
                reads=0,
                read_bytes=0,
                read_ms=0,
                writes=requests,
                write_bytes=requests * 4096,
                write_ms=int(requests * await_ms),
                busy_ms=int(at_ns / 1e6 * busy / 100),
                in_flight=0,
            )
        return self

    def cgroup(
        self, path: str = "/job", *, throttled: float = 0.0, quota: float = 1.0, full: bool = False, hits: int = 0
    ) -> Scene:
        """A cgroup throttled for this share of the window; `full`: at its memory limit, hit so many times."""
        for at_ns in self._times():
            share = at_ns / self.window_ns
            periods = int(at_ns / 1e8)
            self._add(
                "proc.cgroups",
                at_ns=at_ns,
                cgroup=path,
                version=2,
                periods=periods,
                throttled_periods=int(periods * min(1.0, throttled / 50)),
                throttled_ns=int(at_ns * throttled / 100),
                quota_us=int(quota * 100_000),
                period_us=100_000,
                memory_bytes=1 << 30 if full else 1 << 20,
                memory_limit_bytes=1 << 30,
                memory_limit_hits=int(hits * share),
            )
        return self

    def host(self, **counters: tuple[float, float]) -> Scene:
        """Counters of the host: value at the start and at the end."""
        self._host |= counters
        return self

    # --- the recording ----------------------------------------------------------------------------------------

    def file(self, path: str, fstype: str = "ext4") -> int:
        """Number of a file; -1 for none."""
        if not path:
            return -1
        if path not in self._files:
            number = self._files[path] = len(self._files)
            row = {"file": number, "path": path, "dev": "7:0", "ino": number, "fstype": fstype}
            self._add("files", **row, complete=True, deleted=False)
        return self._files[path]

    def stack(self, frames: tuple[str, ...], *, kernel: bool = True) -> int:
        """Number of a stack; -1 for none."""
        if frames and frames not in self._stacks:
            number = self._stacks[frames] = len(self._stacks)
            self._add("stacks", stack=number, kernel=kernel, frames=list(frames))
        return self._stacks.get(frames, -1)

    def build(
        self,
        *,
        without: Collection[str] = (),
        lost: Mapping[str, int] | None = None,
        unproven: Collection[str] = (),
        sampled: bool = False,
        target: Target | None = None,
        **manifest: Any,
    ) -> Recording:
        """The recording, `without` some collectors; `lost` events and `unproven` collectors by name."""
        if not self.tables.get("proc.processes"):
            self.process(PID, COMM, cpu=90)
        self._host_rows()
        rows = {**self.tables}
        rows["syscalls.totals"] = list(self._calls.values())
        rows["switches.totals"] = list(self._waits.values())
        tables = {}
        for collector, schemas in COLLECTORS.items():
            for table, schema in schemas.items():
                name = f"{collector}.{table}"
                if name in NEWER and name not in rows:
                    continue
                shared = collector in ("syscalls", "switches", "objects") and table in ("files", "stacks")
                frame = pl.DataFrame(rows.get(table if shared else name, []), schema=schema, orient="row")
                if isinstance(schema, TableSchema):  # rows may lack the added columns, as those of an older version do
                    unknown = {n: "" if schema[n] == pl.String() else -1 for n in schema.added}
                    frame = frame.with_columns(pl.col(n).fill_null(value) for n, value in unknown.items())
                tables[name] = frame
        chosen = target or Target(
            everything=self.everything,
            pid=None if self.everything else PID,
            comm=None if self.everything else COMM,
            pids=[] if self.everything else sorted({PID, *self.pids.values()}),
        )
        described = {
            "id": "r1",
            "host": "node7",
            "kernel": "6.18.0",
            "machine": "x86_64",
            "cpus": 2,
            "target": chosen,
            "started": "2025-01-01T00:00:00Z",
            "start_ns": 1_000_000_000,
            "window_ns": self.window_ns,
            "requested_ns": self.window_ns,
        }
        collectors = {}
        for name in COLLECTORS:
            if name in ON_REQUEST and not any(key.startswith(f"{name}.") for key in rows):
                continue
            if name not in without:
                collectors[name] = CollectorManifest(
                    engine="procfs" if sampled or name == "proc" else "ebpf",
                    hooks=[f"hook/{name}"],
                    options=self._options(name),
                    seen=1000,
                    kept=10,
                    lost=(lost or {}).get(name, 0),
                    proven=name not in unproven,
                )
        made = Manifest(**(described | manifest), collectors=collectors)
        kept = {name: frame for name, frame in tables.items() if name.partition(".")[0] in collectors}
        return Recording.in_memory(made, kept)

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return int(self.window_s * 1e9)

    def _options(self, collector: str) -> dict[str, int]:
        """Options of a collector; wakers were recorded if a wait has one."""
        if collector not in ("syscalls", "switches"):
            return {}
        woken = collector == "switches" and any(row["waker_tid"] for row in self.tables.get("switches.segments", ()))
        return {"min_ns": SLOW_NS} | ({"wakers": 1, "follow_wakers": 1} if woken else {})

    def _times(self) -> list[int]:
        return [self.window_ns * i // (self.samples - 1) for i in range(self.samples)]

    def _who(self, tid: int) -> Row:
        return {"pid": self.pids.get(tid, PID), "tid": tid, "comm": self.comms.get(tid, COMM)}

    def _add(self, table: str, **row: Any) -> None:
        self.tables.setdefault(table, []).append(row)

    def _host_rows(self) -> None:
        if self.tables.get("proc.host"):
            return
        two = 2.0 * self.window_ns
        counters = {
            "cpu_count": (2.0, 2.0),
            "target_cpu_count": (2.0, 2.0),
            "target_cpu_busy_ns": (0.0, two / 2),
            "cpu_user_ns": (0.0, two / 2),
            "cpu_idle_ns": (0.0, two / 2),
            "runnable": (1.0, 1.0),
            "blocked": (0.0, 0.0),
            "psi_cpu_some_us": (0.0, 0.0),
            "psi_memory_some_us": (0.0, 0.0),
            "vm_pgscan_direct": (0.0, 0.0),
            "vm_pgscan_kswapd": (0.0, 0.0),
            "vm_pswpin": (0.0, 0.0),
            "vm_pswpout": (0.0, 0.0),
        } | self._host
        for index, at_ns in enumerate(self._times()):
            share = index / (self.samples - 1)
            for name, (first, last) in counters.items():
                self._add("proc.host", at_ns=at_ns, name=name, value=first + (last - first) * share)


def checkpoints(
    scene: Scene, *, tid: int = PID, every_s: float = 3.0, ms: float = 900.0, first_s: float = 1.0
) -> Scene:
    """A 50 MiB checkpoint every so often: written fast to the page cache, then synced slowly."""
    at_s, step = first_s, 100
    while at_s + ms / 1e3 < scene.window_s:
        path = f"/data/run7/chk_{step:06d}.bin"
        scene.call(at_s - 0.02, 20, "write", path, tid=tid, size=50 << 20, waits=0)
        scene.call(at_s, ms, "fsync", path, tid=tid)
        at_s, step = at_s + every_s, step + 5
    return scene
