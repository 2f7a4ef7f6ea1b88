"""Windows of communicating ranks made by hand: when each rank entered each operation is stated, and becomes the tables
of the collectors ``collectives``, ``objects`` and ``switches``.

An operation ends for all of its ranks once the last has entered, a transfer later; so a rank that is late makes the
others wait, as in a real job.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

MS = 1_000_000
PID = 500
"""The process of rank 0; others follow."""


@dataclass
class Job:
    """A loop of `steps`: each rank sleeps and computes (`work_ms`, plus `late_ms` of asleep for late ranks), and then
    takes part in `ops` (operation, bytes). `library`: gloo has process groups and numbers, the others communicators."""

    ranks: int = 4
    steps: int = 80
    work_ms: float = 20.0
    transfer_ms: float = 0.5
    late_ms: Mapping[int, float] = field(default_factory=dict)
    ops: tuple[tuple[str, int], ...] = (("all_reduce", 4096), ("all_reduce", 64))
    library: str = "gloo"
    seed: int = 1
    # ranks of their environment; without, those of gloo are in their memory
    environment: bool = False
    # ranks that stay inside the last operation of all, which this one does not enter
    hangs_on: int | None = None
    # each rank counts so many sends per step too, as gloo does
    sends: tuple[int, ...] = ()
    # a second group of ranks 0 and 1, which runs after the others
    pair: bool = False

    def recording(self) -> Recording:
        """The window of the whole loop."""
        return _Build(self).recording()


class _Build:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.dice = random.Random(job.seed)
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.now = [5.0] * job.ranks
        self.seq = dict.fromkeys(range(job.ranks), 100)

    def add(self, table: str, **row: Any) -> None:
        """Add a row; what is not given is unknown."""
        collector, _, name = table.partition(".")
        kinds = {pl.String(): "", pl.Boolean(): False, pl.List(pl.String): []}
        full = {column: kinds.get(kind, -1) for column, kind in COLLECTORS[collector][name].items()}
        self.rows.setdefault(table, []).append(full | row)

    def recording(self) -> Recording:
        job = self.job
        for step in range(job.steps):
            for rank in range(job.ranks):
                self.work(rank)
            for op, size in job.ops:
                last = step == job.steps - 1 and (op, size) == job.ops[-1]
                self.operation(range(job.ranks), op, size, 0xA000, missing=job.hangs_on if last else None)
            if job.pair:
                self.operation((0, 1), "all_reduce", 16, 0xB000)
        end = int((max(self.now) + 200) * MS)
        for rows in self.rows.values():
            for row in rows:
                if row.get("open"):
                    row["end_ns"] = end
        for rank in range(job.ranks):
            known = rank if job.environment else -1
            self.add("collectives.processes", pid=PID + rank, comm="train", rank=known, world_size=job.ranks, cost_ns=9)
            if job.library == "gloo":
                self.group(rank, 0xA000, "0", rank, job.ranks)
                if job.pair and rank < 2:
                    self.group(rank, 0xB000, "7", rank, 2)
        return self.made(end)

    def group(self, rank: int, address: int, name: str, number: int, size: int) -> None:
        numbers = {"rank": number, "size": size, "group": address, "at_ns": 0, "started": 0}
        self.add("objects.process_groups", pid=PID + rank, backend="gloo", name=name, **numbers)

    def work(self, rank: int) -> None:
        """Half asleep, half on the CPU."""
        half = self.job.work_ms / 2 * self.dice.uniform(0.95, 1.05)
        self.asleep(rank, half + self.job.late_ms.get(rank, 0.0))
        self.now[rank] += half

    def asleep(self, rank: int, ms: float) -> None:
        start, end = int(self.now[rank] * MS), int((self.now[rank] + ms) * MS)
        self.add("switches.segments", pid=PID + rank, tid=PID + rank, start_ns=start, end_ns=end, state="S")
        self.now[rank] += ms

    def operation(self, ranks: Any, op: str, size: int, group: int, missing: int | None = None) -> None:
        job = self.job
        entered = {rank: self.now[rank] for rank in ranks if rank != missing}
        end = max(entered.values()) + job.transfer_ms * self.dice.uniform(0.9, 1.1)
        for rank, at in entered.items():
            returns = at + 0.02 if job.library == "nccl" else end + self.dice.uniform(0, 0.01)
            self.seq[rank] += 1 + (job.sends[rank] if job.sends else 0)
            self.add(
                "collectives.calls",
                start_ns=int((at + 0.03) * MS),
                end_ns=int((returns + 0.03) * MS),
                queued_ns=int(at * MS),
                pid=PID + rank,
                tid=PID + rank,
                library=job.library,
                op=op,
                group=group + (0 if job.library == "gloo" else rank * 64),
                seq=self.seq[rank] if job.library == "gloo" else -1,
                count=size // 4,
                bytes=size,
                open=missing is not None,
            )
            if missing is None:
                self.asleep(rank, end - at)

    def made(self, end: int) -> Recording:
        tables = {}
        collectors = ("collectives", "objects", "switches")
        for collector in collectors:
            for name, schema in COLLECTORS[collector].items():
                rows = self.rows.get(f"{collector}.{name}", [])
                tables[f"{collector}.{name}"] = pl.DataFrame(rows, dict(schema)) if rows else schema.to_frame()
        manifest = Manifest(
            id="window-1",
            host="node0",
            kernel="6.8.0",
            machine="x86_64",
            cpus=8,
            target=Target(everything=False, pid=PID, pids=[PID + rank for rank in range(self.job.ranks)]),
            started="2026-02-03T04:05:06Z",
            clock="CLOCK_MONOTONIC",
            start_ns=1,
            window_ns=end,
            requested_ns=end,
            collectors={name: CollectorManifest(engine="ebpf", proven=True) for name in collectors},
        )
        return Recording.in_memory(manifest, tables)
