"""Synchronous training jobs made by hand: what happened is stated, and becomes the tables of the collector ``ranks``.

A `Plan` says how the job is built and what is wrong with it; `simulate` lets its ranks run against each other and
keeps causality: an operation ends for all of its ranks together once the last has arrived, so that waits spread from
group to group and from step to step as they do in a real job. `Simulated.truth` is what was put in.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import polars as pl

from whystall.tools.contract.result import BlindSpot
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.timeline.collectives import SYNCHRONISING, group_key
from whystall.tools.timeline.rank_data.tables import TABLES

MS = 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_CLASSES = {
    "compute": "compute_slow",
    "gap": "host_slow",
    "loader": "loader_slow",
    "link": "communication_slow",
    "transfer": "communication_slow",
}


@dataclass(frozen=True)
class Fault:
    """What is wrong with `ranks`, from step `since` until before step `until`.

    `kind`: ``compute`` (its operators take `ms` longer per step, all together), ``gap`` (its host dispatches late),
    ``loader`` (its data come late), ``transfer`` (operations of exactly these ranks take `factor` times as long),
    ``link`` (so do all operations in which any of them takes part). `every`: one of `ranks` after the other, for so
    many steps each. `period`: only in every so manyth step from `since` on. `growth_ms`: so much more with every step.
    """

    kind: Literal["compute", "gap", "loader", "transfer", "link"]
    ranks: tuple[int, ...]
    ms: float = 0.0
    factor: float = 1.0
    since: int = 0
    until: int = 1 << 30
    every: int = 0
    period: int = 1
    growth_ms: float = 0.0

    def hits(self, rank: int, step: int) -> bool:
        """Whether it is `rank`'s turn in `step`."""
        if rank not in self.ranks or not self.since <= step < self.until or (step - self.since) % self.period:
            return False
        return not self.every or self.ranks[step // self.every % len(self.ranks)] == rank


@dataclass(frozen=True)
class Plan:
    """See the module. `ranks` = tensor x stages x replicas of the model, numbered tensor first, stage last."""

    ranks: int = 4
    steps: int = 20
    seed: int = 1
    device: bool = True
    tensor: int = 1
    stages: int = 1
    layers: int = 4
    microbatches: int = 4
    # all_reduces of gradients run beside the backward pass; all ranks meet at the end of a step (gradient norm)
    overlap: bool = False
    world_reduce: bool = False
    collectives: bool = True
    # per step, before faults and jitter
    compute_ms: float = 40.0
    loader_ms: float = 1.0
    gap_ms: float = 0.4
    transfer_ms: float = 1.0
    jitter: float = 0.02
    # of a whole step of a rank; how much of it is as in the step before (a busy neighbour stays for a while)
    step_jitter: float = 0.0
    spells: float = 0.0
    # share of steps in which a rank stalls, at least how long (heavy-tailed), and for how many steps on end
    stalls: float = 0.0
    stall_ms: float = 10.0
    stall_steps: int = 1
    # steps in which all ranks compute longer, by this factor: the first ones, and every so manyth
    warm_up: int = 0
    shared_every: int = 0
    shared_factor: float = 3.0
    end_jitter_us: float = 8.0
    equal_bytes: bool = False
    stage_factor: Mapping[int, float] = field(default_factory=dict)
    # the first and the last stage have operators of their own
    ends_differ: bool = False
    faults: tuple[Fault, ...] = ()
    # what the traces know: clocks of ranks are off by up to so much; share of operations lost; ranks without a trace
    clock_ms: float = 0.0
    drift_ppm: float = 0.0
    lost: float = 0.0
    missing: tuple[int, ...] = ()
    has_steps: bool = True
    has_seq: bool = True
    # groups: all, without their ranks, which ones there are but not whose an operation is, nothing
    groups: Literal["full", "names", "listed", "none"] = "full"
    # ranks begin and end their captures up to so many steps apart, and in the middle of one
    ragged: int = 0

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.ranks // (self.tensor * self.stages)

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of `rank`."""
        return rank // (self.tensor * self.replicas)


@dataclass(frozen=True)
class Truth:
    """What was put in, for those who judge what comes out.

    `accused`: class of each rank that a fault makes slow (or that shares a slow transfer). `operations`: one row per
    recorded operation of a rank (`rank`, `start_ns` and `end_ns` as recorded, ``instance``, `step`, and `wait_ns`: from
    its arrival to the last one's). `own_ns`: by rank and step, the step without waiting. `offset_ns`: of each rank's
    clock.
    """

    accused: Mapping[int, str]
    operations: pl.DataFrame
    own_ns: Mapping[tuple[int, int], int]
    offset_ns: Mapping[int, int]


@dataclass(frozen=True)
class Simulated:
    """A recording and the truth about it."""

    recording: Recording
    truth: Truth


def simulate(plan: Plan) -> Simulated:
    """Run the job of `plan`. The same plan gives the same recording."""
    run = _Run(plan)
    run.execute()
    return _Record(plan, run).write()


# --- the job --------------------------------------------------------------------------------------------------------


@dataclass
class _Op:
    """An operation: who takes part, what it is, and when each rank arrived and left."""

    members: tuple[int, ...]
    group: str
    op: str
    size: int
    step: int
    number: int
    launches: dict[int, float] = field(default_factory=dict)
    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)


Item = tuple[Any, ...]


class _Run:
    """The ranks' programs, executed against each other. Times are nanoseconds on one true clock."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.ops: dict[tuple[str, int], _Op] = {}
        self.groups: dict[str, tuple[str, str, tuple[int, ...]]] = {}
        self.work: list[list[tuple[float, float, str]]] = [[] for _ in range(plan.ranks)]
        self.loads: list[list[tuple[float, float]]] = [[] for _ in range(plan.ranks)]
        self.steps: list[list[tuple[float, float]]] = [[] for _ in range(plan.ranks)]
        self._now = [self.random.uniform(0, 3 * MS) for _ in range(plan.ranks)]
        self._queues: dict[tuple[int, str], deque[_Op]] = {}
        self._left: dict[tuple[int, str], float] = {}
        self._counts: dict[tuple[int, str], int] = {}
        self._pace = [0.0] * plan.ranks
        self._stalled = [0] * plan.ranks
        self._make_groups()

    def _make_groups(self) -> None:
        plan = self.plan
        block = plan.tensor * plan.replicas
        number = 0
        families = {
            "default_pg": [tuple(range(plan.ranks))],
            "TENSOR_MODEL_PARALLEL_GROUP": [
                tuple(range(first, first + plan.tensor)) for first in range(0, plan.ranks, plan.tensor)
            ],
            "DATA_PARALLEL_GROUP": [
                tuple(range(stage * block + column, (stage + 1) * block, plan.tensor))
                for stage in range(plan.stages)
                for column in range(plan.tensor)
            ],
            "PIPELINE_MODEL_PARALLEL_GROUP": [tuple(range(first, plan.ranks, block)) for first in range(block)],
        }
        self._of: dict[tuple[str, int], str] = {}
        for description, sets in families.items():
            if description != "default_pg" and (len(sets[0]) == 1 or len(sets[0]) == plan.ranks):
                continue  # a group of one needs none; one of all is the default
            for members in sets:
                key = group_key(str(number), members)
                self.groups[key] = (str(number), description, members)
                number += 1
                for rank in members:
                    self._of[description, rank] = key

    def _group(self, description: str, rank: int) -> str:
        return self._of.get((description, rank), self._of["default_pg", rank])

    def _program(self, rank: int, step: int) -> Iterable[Item]:
        """What `rank` does in `step`."""
        plan, stage = self.plan, self.plan.stage_of(rank)
        yield ("begin",)
        yield ("load", self._noisy(plan.loader_ms) + self._extra("loader", rank, step))
        gap = self._extra("gap", rank, step)
        pieces = plan.layers * (plan.microbatches if plan.stages > 1 else 1)
        pace = self._factor(rank, step)
        unit = plan.compute_ms * plan.stage_factor.get(stage, 1.0) / pieces / 3.2 * pace
        yield from self._stall(rank)
        extra = self._extra("compute", rank, step) / pieces / 2
        idle = (plan.gap_ms + gap) / pieces / 2
        block = plan.tensor * plan.replicas
        batches = range(plan.microbatches if plan.stages > 1 else 1)
        for _ in batches:
            if stage > 0:
                yield ("recv", rank - block, 1 << 20)
            for layer in range(plan.layers):
                yield ("idle", self._noisy(idle))
                yield ("work", self._name("forward", layer, stage), self._noisy(unit) + extra)
                if plan.tensor > 1:
                    yield ("all", "TENSOR_MODEL_PARALLEL_GROUP", 1 << 18, True)
            if stage < plan.stages - 1:
                yield ("send", rank + block, 1 << 20)
        reduced = plan.replicas > 1 or (plan.stages == 1 and plan.tensor == 1)
        for batch in batches:
            if stage < plan.stages - 1:
                yield ("recv", rank + block, 1 << 20)
            for layer in range(plan.layers):
                yield ("idle", self._noisy(idle))
                yield ("work", self._name("backward", layer, stage), self._noisy(2 * unit) + extra)
                if plan.tensor > 1:
                    yield ("all", "TENSOR_MODEL_PARALLEL_GROUP", 1 << 18, True)
                if reduced and batch == batches[-1]:
                    size = 4 << 20 if plan.equal_bytes else (layer + 1) << 20
                    yield ("all", "DATA_PARALLEL_GROUP", size, not plan.overlap)
            if stage > 0:
                yield ("send", rank - block, 1 << 20)
        yield ("join",)
        if plan.world_reduce:
            yield ("all", "default_pg", 8, True)
        yield ("work", "optimizer", self._noisy(plan.compute_ms * 0.2 / 3.2 * pace))
        yield ("end",)

    def _name(self, phase: str, layer: int, stage: int) -> str:
        if self.plan.ends_differ and stage == 0 and layer == 0:
            return f"embedding_{phase}"
        if self.plan.ends_differ and stage == self.plan.stages - 1 and layer == self.plan.layers - 1:
            return f"vocabulary_{phase}"
        return ("gemm_" if layer % 2 else "attention_") + phase

    def _noisy(self, ms: float) -> float:
        return ms * self.random.lognormvariate(0, self.plan.jitter)

    def _extra(self, kind: str, rank: int, step: int) -> float:
        return sum(
            self._noisy(fault.ms + fault.growth_ms * (step - fault.since))
            for fault in self.plan.faults
            if fault.kind == kind and fault.hits(rank, step)
        )

    def _factor(self, rank: int, step: int) -> float:
        plan = self.plan
        if not (plan.step_jitter or plan.warm_up or plan.shared_every):
            return 1.0
        fresh = math.sqrt(1 - plan.spells**2) * self.random.gauss(0, 1)
        self._pace[rank] = plan.spells * self._pace[rank] + fresh
        shared = step < plan.warm_up or bool(plan.shared_every and step % plan.shared_every == 0)
        return math.exp(plan.step_jitter * self._pace[rank]) * (plan.shared_factor if shared else 1.0)

    def _stall(self, rank: int) -> Iterable[Item]:
        plan = self.plan
        if not plan.stalls:
            return
        if not self._stalled[rank] and self.random.random() < plan.stalls:
            self._stalled[rank] = plan.stall_steps
        if self._stalled[rank]:
            self._stalled[rank] -= 1
            yield ("work", "attention_forward", plan.stall_ms * min(20.0, self.random.paretovariate(1.5)))

    def execute(self) -> None:
        programs = [self._items(rank) for rank in range(self.plan.ranks)]
        waiting: list[Item | None] = [None] * self.plan.ranks
        ready = deque(range(self.plan.ranks))
        done = 0
        while ready:
            rank = ready.popleft()
            while True:
                pending = waiting[rank] or next(programs[rank], None)
                if pending is None:
                    done += 1
                    break
                waiting[rank] = None
                if not self._do(rank, pending, ready):
                    waiting[rank] = pending
                    break
        if done < self.plan.ranks:
            raise RuntimeError("the plan deadlocks")

    def _items(self, rank: int) -> Iterable[Item]:
        for step in range(self.plan.steps):
            for item in self._program(rank, step):
                kind = item[0]
                if not self.plan.collectives and kind in ("all", "send", "recv"):
                    continue
                if kind == "all":
                    yield ("op", self._group(item[1], rank), "all_reduce", item[2], step)
                    if item[3]:
                        yield ("wait", self._group(item[1], rank))
                elif kind == "send":
                    yield ("op", f"{rank}>{item[1]}", "send", item[2], step)
                elif kind == "recv":
                    yield ("op", f"{item[1]}>{rank}", "recv", item[2], step)
                    yield ("wait", f"{item[1]}>{rank}")
                else:
                    yield item

    def _do(self, rank: int, item: Item, ready: deque[int]) -> bool:
        """One item of `rank`'s program; False when it cannot go on yet."""
        kind, now = item[0], self._now[rank]
        if kind == "begin":
            self.steps[rank].append((now, now))
        elif kind == "end":
            self.steps[rank][-1] = (self.steps[rank][-1][0], now)
        elif kind in ("idle", "load", "work"):
            end = now + item[-1] * MS
            if kind == "work":
                self.work[rank].append((now, end, item[1]))
            elif kind == "load":
                self.loads[rank].append((now, end))
            self._now[rank] = end
        elif kind == "op":
            self._arrive(rank, item, ready)
        elif kind == "wait":
            if self._queues.get((rank, item[1])):
                return False
            self._now[rank] = max(now, self._left[rank, item[1]])
        else:
            mine = [key for key in self._queues if key[0] == rank]
            if any(self._queues[key] for key in mine):
                return False
            self._now[rank] = max([now, *(self._left[key] for key in mine)])
        return True

    def _arrive(self, rank: int, item: Item, ready: deque[int]) -> None:
        _, stream, op, size, step = item
        count = self._counts.get((rank, stream), 0)
        self._counts[rank, stream] = count + 1
        if (stream, count) not in self.ops:
            if ">" in stream:
                source, target = map(int, stream.split(">"))
                members: tuple[int, ...] = (source, target)
                group = self._group("PIPELINE_MODEL_PARALLEL_GROUP", rank)
            else:
                members, group = self.groups[stream][2], stream
            self.ops[stream, count] = _Op(members, group, op, size, step, count)
        entered = self.ops[stream, count]
        entered.launches[rank] = self._now[rank]
        queue = self._queues.setdefault((rank, stream), deque())
        queue.append(entered)
        if len(queue) == 1:
            entered.starts[rank] = max(self._now[rank], self._left.get((rank, stream), 0))
        self._finish(entered, stream, ready)

    def _finish(self, op: _Op, stream: str, ready: deque[int]) -> None:
        """End `op`, and what it held up, once all have arrived."""
        while len(op.starts) == len(op.members):
            factor = 1.0
            for fault in self.plan.faults:
                if fault.kind == "transfer" and set(fault.ranks) == set(op.members):
                    factor *= fault.factor if fault.since <= op.step < fault.until else 1.0
                if fault.kind == "link" and any(fault.hits(rank, op.step) for rank in op.members):
                    factor *= fault.factor
            took = self._noisy(self.plan.transfer_ms * (0.1 if op.size < 1 << 16 else 1.0)) * factor
            end = max(op.starts.values()) + took * MS
            following: _Op | None = None
            for rank in op.members:
                op.ends[rank] = end + self.random.uniform(0, self.plan.end_jitter_us) * 1000
                self._left[rank, stream] = op.ends[rank]
                queue = self._queues[rank, stream]
                queue.popleft()
                if queue:
                    following = queue[0]
                    following.starts[rank] = max(following.launches[rank], op.ends[rank])
                ready.append(rank)
            if following is None:
                return
            op = following


# --- the recording --------------------------------------------------------------------------------------------------


class _Spans:
    """Disjoint spans, and how much of a stretch of time they cover."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._before: list[float] = []
        total = 0.0
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                total += max(0.0, end - self._ends[-1])
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)
                self._before.append(total)
                total += end - start

    def _until(self, at: float) -> float:
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            return 0.0
        return self._before[index] + min(at, self._ends[index]) - self._starts[index]

    def within(self, start: float, end: float) -> float:
        return self._until(end) - self._until(start)


class _Record:
    """Writes down what the traces of a run would hold."""

    def __init__(self, plan: Plan, run: _Run) -> None:
        self.plan = plan
        self.run = run
        self.random = random.Random(f"{plan.seed} record")
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.truth: list[dict[str, Any]] = []
        self.own: dict[tuple[int, int], int] = {}
        self.offset = {rank: int(self.random.uniform(-1, 1) * plan.clock_ms * MS) for rank in range(plan.ranks)}
        self.drift = {rank: self.random.uniform(-1, 1) * plan.drift_ppm / 1e6 for rank in range(plan.ranks)}

    def write(self) -> Simulated:
        by_rank: dict[int, list[tuple[int, _Op]]] = {rank: [] for rank in range(self.plan.ranks)}
        for number, op in enumerate(sorted(self.run.ops.values(), key=lambda op: max(op.starts.values()))):
            for rank in op.members:
                by_rank[rank].append((number, op))
        for rank in range(self.plan.ranks):
            if rank not in self.plan.missing:
                self._rank(rank, sorted(by_rank[rank], key=lambda pair: pair[1].starts[rank]))
        every = [row for name in ("ranks", "steps", "collectives") for row in self.rows[name]] + self.truth
        zero = min(row["start_ns"] for row in every)
        for row in every:
            for column in ("start_ns", "end_ns", "launch_ns"):
                if column in row:
                    row[column] -= zero
        tables = {
            f"ranks.{name}": pl.DataFrame(rows, schema=TABLES[name]).sort(
                [c for c in ("rank", "start_ns") if c in TABLES[name]], maintain_order=True
            )
            for name, rows in self.rows.items()
        }
        window = max(row["end_ns"] for row in every)
        return Simulated(Recording.in_memory(_manifest(window, self.plan.device), tables), self._truth())

    def _truth(self) -> Truth:
        accused = {rank: _CLASSES[fault.kind] for fault in self.plan.faults for rank in fault.ranks}
        schema = {"rank": pl.Int32, "instance": pl.Int64, "step": pl.Int32}
        times = dict.fromkeys(("start_ns", "end_ns", "wait_ns"), pl.Int64)
        return Truth(accused, pl.DataFrame(self.truth, schema=schema | times), self.own, self.offset)

    def _rank(self, rank: int, ops: list[tuple[int, _Op]]) -> None:
        plan, run = self.plan, self.run
        first = self.random.randint(0, plan.ragged)
        last = plan.steps - 1 - self.random.randint(0, plan.ragged)
        begin, end = run.steps[rank][first][0], run.steps[rank][last][1]
        if plan.ragged:  # somewhere in the step before, and in the one after
            begin = self.random.uniform(run.steps[rank][first - 1][0], begin) if first else begin
            end = self.random.uniform(end, run.steps[rank][last + 1][1]) if last + 1 < plan.steps else end
        kept = [
            (number, op)
            for number, op in ops
            if op.starts[rank] >= begin and op.ends[rank] <= end and self.random.random() >= plan.lost
        ]
        work = [span for span in run.work[rank] if span[0] >= begin and span[1] <= end]
        spans = run.steps[rank][first : last + 1]
        device = plan.device
        self.rows["ranks"].append(
            {"rank": rank, "source": "kineto", "path": f"rank{rank}.json", "files": 1, "host": f"node{rank // 8}"}
            | {"pid": 1000 + rank, "world_size": plan.ranks, "backend": "nccl" if device else "gloo", "clock": "real"}
            | {"start_ns": self._local(rank, begin), "end_ns": self._local(rank, end), "device": device}
        )
        busy = _Spans((start, stop) for start, stop, _ in work)
        talk = _Spans((op.starts[rank], op.ends[rank]) for _, op in kept)
        both = _Spans([(start, stop) for start, stop, _ in work] + [(o.starts[rank], o.ends[rank]) for _, o in kept])
        fetched = [span for span in run.loads[rank] if span[0] >= begin and span[1] <= end]
        loads = _Spans(fetched)
        numbered = list(enumerate(spans, first)) if plan.has_steps else [(-1, (begin, end))]
        for step, (start, stop) in numbered:
            late = any(f.kind == "gap" and (f.hits(rank, step) or (step < 0 and rank in f.ranks)) for f in plan.faults)
            self.rows["steps"].append(
                {"rank": rank, "step": step, "start_ns": self._local(rank, start), "end_ns": self._local(rank, stop)}
                | {
                    "compute_ns": int(busy.within(start, stop)),
                    "comm_ns": int(talk.within(start, stop)),
                    "exposed_comm_ns": int(both.within(start, stop) - busy.within(start, stop)),
                    "gap_ns": int(stop - start - both.within(start, stop)),
                    "loader_ns": int(loads.within(start, stop)),
                    "work_count": sum(start <= at < stop for at, _, _ in work),
                    "launch_delay_ns": (6_000 if late else 60_000) if device else -1,
                }
            )
        self._collectives(rank, kept, busy, both)
        self._groups(rank)
        self._operators(rank, work, fetched)
        for step, (start, stop) in enumerate(run.steps[rank]):
            waits = _Spans(
                (max(op.starts[rank], start), min(max(op.starts.values()), stop))
                for _, op in ops
                if op.ends[rank] > start
                and op.starts[rank] < stop
                and (op.op in SYNCHRONISING or rank == op.members[1])
            )
            idle = waits.within(start, stop) - sum(waits.within(at, to) for at, to, _ in run.work[rank] if at >= start)
            self.own[rank, step] = int(stop - start - idle)

    def _collectives(self, rank: int, kept: list[tuple[int, _Op]], busy: _Spans, both: _Spans) -> None:
        plan, spans = self.plan, self.run.steps[rank]
        starts = [start for start, _ in spans]
        synced = sorted(op.ends[rank] for _, op in kept if op.op in SYNCHRONISING)
        messages = count()
        for number, op in kept:
            start, end = op.starts[rank], op.ends[rank]
            step = bisect_right(starts, op.launches[rank]) - 1
            index = bisect_right(synced, start) - 1
            since = max(spans[step][0], synced[index] if index >= 0 else 0)
            pair = op.op not in SYNCHRONISING
            mine = op.op if not pair else ("send" if rank == op.members[0] else "recv")
            launch = op.launches[rank] - (60_000 if plan.device else 0)
            # each rank counts its own messages, to and from all others
            seq = next(messages) if pair else op.number
            self.rows["collectives"].append(
                {"rank": rank, "start_ns": self._local(rank, start), "end_ns": self._local(rank, end), "op": mine}
                | {
                    "group": "" if plan.groups == "listed" else self._key(op.group),
                    "seq": seq if plan.has_seq else -1,
                    "bytes": op.size,
                }
                | {"dtype": "float32", "peer": sum(op.members) - rank if pair else -1}
                | {"launch_ns": self._local(rank, launch), "step": step if plan.has_steps else -1}
                | {"device": 0 if plan.device else -1, "lane": 7, "state": "completed", "vendor_wait_ns": -1}
                | {
                    "before_ns": int(start - since),
                    "before_compute_ns": int(busy.within(since, start)),
                    "before_gap_ns": int(start - since - both.within(since, start)),
                    "beside_compute_ns": int(busy.within(max(start, synced[index] if index >= 0 else 0), end)),
                }
            )
            self.truth.append(
                {"rank": rank, "start_ns": self._local(rank, start), "end_ns": self._local(rank, end)}
                | {"instance": number, "step": op.step, "wait_ns": int(max(op.starts.values()) - start)}
            )

    def _key(self, group: str) -> str:
        if self.plan.groups in ("full", "listed"):
            return group
        return self.run.groups[group][0] if self.plan.groups == "names" else ""

    def _groups(self, rank: int) -> None:
        if self.plan.groups == "none" or not self.plan.collectives:
            return
        for key, (name, description, members) in self.run.groups.items():
            if rank in members:
                known = [] if self.plan.groups == "names" else list(members)
                self.rows["groups"].append(
                    {"rank": rank, "group": self._key(key), "name": name, "description": description}
                    | {"ranks": known, "size": len(members)}
                )

    def _operators(self, rank: int, work: list[tuple[float, float, str]], fetched: list[tuple[float, float]]) -> None:
        times: dict[tuple[str, str], list[int]] = {}
        for start, end, name in work:
            times.setdefault(("kernel" if self.plan.device else "operator", name), []).append(int(end - start))
        for start, end in fetched:
            times.setdefault(("loader", LOADER), []).append(int(end - start))
        for (kind, name), spans in times.items():
            spans.sort()
            self.rows["operators"].append(
                {"rank": rank, "kind": kind, "name": name, "count": len(spans), "total_ns": sum(spans)}
                | {"median_ns": spans[len(spans) // 2], "max_ns": spans[-1]}
            )

    def _local(self, rank: int, at: float) -> int:
        """The true instant `at` as `rank`'s clock tells it."""
        return int(at + self.offset[rank] + self.drift[rank] * at)


def _manifest(window_ns: int, device: bool) -> Manifest:
    unseen = [] if device else [BlindSpot(code="no_device_work")]
    return Manifest(
        id="ranks-0001",
        host="node0",
        kernel="6.8.0",
        machine="x86_64",
        cpus=8,
        target=Target(everything=True),
        started="2026-02-03T04:05:06Z",
        clock="CLOCK_REALTIME",
        start_ns=1,
        window_ns=window_ns,
        requested_ns=window_ns,
        collectors={"ranks": CollectorManifest(engine="traces", proven=True, not_seen=unseen)},
    )
