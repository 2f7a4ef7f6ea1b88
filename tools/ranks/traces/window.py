"""The ranks of a running job, from calls of communication libraries that were recorded in a window. Pure.

Ranks are numbered as torch numbers them in the group of all, whose object is in their memory, else by their
environment. All instants of a host are of one clock; a window may be of several hosts (`hosts.Hosts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.ranks.job import Job
from whystall.tools.ranks.matching.host_clocks import host_clocks
from whystall.tools.ranks.traces.thread_times import SOURCE, blocked_ns, on_cpu
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.collectives import COLLECTIVES, GROUPS, SYNCHRONISING, group_key
from whystall.tools.timeline.profile import STEPS, Profile, Run
from whystall.tools.timeline.rank_data.rank_list import rank_list
from whystall.tools.timeline.rank_data.summary import summarise
from whystall.tools.timeline.rank_data.tables import BLOCKED, OPERATORS, RANK_COLLECTIVES, RANKS, TABLES

ENQUEUES = frozenset({"nccl", "rccl", "hccl"})
"""Libraries whose calls return when the operation is enqueued on the device."""
PIDS = 1 << 22
"""Numbers of processes per host: PID_MAX_LIMIT (include/linux/threads.h)."""
_DEFAULT = "0"  # torch's name of the group of all ranks
_FIT = 0.95
_LISTED = 64  # members: of a larger group the name and the size suffice, and a list per call would fill the memory
_ONE_NS = 1  # instant 0 stands for an unknown one


class Group(NamedTuple):
    """A group of ranks. `members`: global ranks found here; `size`: of all, -1 unknown."""

    key: str
    name: str
    description: str
    members: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Member:
    """A rank: a process with calls, or with a process group. `rank` -1: unknown."""

    rank: int
    pid: int
    comm: str
    world_size: int

    @property
    def host(self) -> int:
        """The number of its host in the window."""
        return self.pid // PIDS


@dataclass(frozen=True)
class Window:
    """`calls`: the table ``collectives.calls`` with `rank` and the `key` of the group, empty if that is not known;
    `groups` by key. `strangers`: processes with calls whose rank is not known."""

    members: tuple[Member, ...]
    groups: Mapping[str, Group]
    calls: pl.DataFrame
    strangers: tuple[int, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job that are not in the window."""
        world = max((one.world_size for one in self.members), default=0)
        return tuple(sorted(set(range(world)) - {one.rank for one in self.members}))


def window_of(recording: Recording) -> Window:
    """Return the ranks in `recording`. Raises `ToolError` (bad_argument) if two of them have the same number."""
    calls = recording.table("collectives.calls")
    processes = {row["pid"]: row for row in recording.table("collectives.processes").iter_rows(named=True)}
    known = _process_groups(recording)
    numbers = _ranks(known)
    active = {*calls["pid"].unique().to_list(), *numbers}
    members, strangers = [], []
    for pid in sorted(active & processes.keys()):
        row = processes[pid]
        rank, world = numbers.get(pid, (row["rank"], row["world_size"]))
        if rank >= 0:
            members.append(Member(rank, pid, row["comm"], world))
        else:
            strangers.append(pid)
    twice = [rank for rank, count in Counter(one.rank for one in members).items() if count > 1]
    if twice:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"several of these processes are rank {rank_list(twice)}: they belong to several jobs",
            "name one job, or a process of it",
        )
    members.sort(key=lambda one: one.rank)
    of_pid = {one.pid: one.rank for one in members}
    groups, keys = _groups(calls, known, of_pid)
    rows = calls.filter(pl.col("pid").is_in(list(of_pid)))
    place = pl.struct("pid", "group")
    named = [keys.get((row["pid"], row["group"]), "") for row in rows.select(place.alias("at"))["at"].to_list()]
    rank = pl.col("pid").replace_strict(of_pid, return_dtype=pl.Int32)
    rows = _numbered(rows.with_columns(rank=rank, key=pl.Series("key", named, pl.String)))
    return Window(tuple(members), groups, rows, tuple(strangers))


def _numbered(rows: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` without the numbers of groups in which they do not number the same operation on all ranks: torch's
    gloo also counts sends and receives, of which ranks of a pipeline make different numbers."""
    same = rows.filter((pl.col("seq") >= 0) & (pl.col("key") != "") & ~pl.col("open"))
    same = same.filter(pl.col("op").is_in(sorted(SYNCHRONISING)))
    hosts = dict(rows.select("rank", pl.col("pid") // PIDS).unique().iter_rows())
    clocks = host_clocks(same.with_columns(instance=pl.format("{}/{}", "key", "seq"), group="key"), hosts)
    each = same.group_by("key", "seq").agg(
        ranks=pl.len(),
        # no rank leaves before all have entered; on clocks that the numbers themselves imply
        fits=(pl.col("op").n_unique() == 1) & (clocks.common("start_ns").max() <= clocks.common("end_ns").min()),
    )
    shares = each.filter(pl.col("ranks") > 1).group_by("key").agg(share=pl.col("fits").mean())
    wrong = shares.filter(pl.col("share") < _FIT)["key"].to_list()
    return rows.with_columns(seq=pl.when(pl.col("key").is_in(wrong)).then(-1).otherwise("seq"))


def with_ranks(recording: Recording) -> Recording:
    """Return a copy of `recording` that also has the collector ``ranks``, made of ``collectives`` and, for what the
    ranks did between operations, ``switches``; the same recording if it has ranks or no collectives. Raises what
    `window_of` raises."""
    if recording.has("ranks") or not recording.has("collectives"):
        return recording
    found = window_of(recording)
    calls = found.calls.partition_by("rank", as_dict=True)
    summaries = [
        summarise(_profile(one, found, calls.get((one.rank,), found.calls.clear()), recording), f"pid {one.pid}")
        for one in found.members
    ]
    tables = {
        name: pl.concat([schema.to_frame(), *(one.tables[name] for one in summaries)])
        for name, schema in TABLES.items()
    }
    tables["operators"] = _blocked(found, recording)
    observed = recording.manifest.collectors["collectives"]
    spots = [*observed.not_seen, *_blind(found)]
    entry = observed.model_copy(update={"engine": SOURCE, "hooks": [], "rows": {}, "not_seen": spots})
    manifest = recording.manifest.model_copy(deep=True)
    manifest.collectors["ranks"] = entry
    more = {f"ranks.{name}": frame for name, frame in tables.items()}
    return Recording.in_memory(manifest, recording.tables() | more)


def _blind(found: Window) -> list[BlindSpot]:
    spots = []
    if found.missing:
        spots.append(BlindSpot(code="ranks_missing", detail=rank_list(found.missing)))
    if found.strangers:
        spots.append(BlindSpot(code="ranks_unknown", detail=f"pid {', '.join(map(str, found.strangers[:8]))}"))
    return spots


# --- ranks and groups -----------------------------------------------------------------------------------------------


def _process_groups(recording: Recording) -> dict[tuple[int, int], dict[str, object]]:
    """Return the process groups of torch by process and address, as read last."""
    if not recording.has("objects"):
        return {}
    rows = recording.table("objects.process_groups").sort("at_ns")
    return {(row["pid"], row["group"]): row for row in rows.iter_rows(named=True)}


def _ranks(known: Mapping[tuple[int, int], Mapping[str, object]]) -> dict[int, tuple[int, int]]:
    """Return (rank, size) of the group of all, by process: it is the largest, and torch names it first."""
    largest: dict[int, int] = {}
    for (pid, _), row in known.items():
        largest[pid] = max(largest.get(pid, 0), int(str(row["size"])))
    return {
        pid: (int(str(row["rank"])), largest[pid])
        for (pid, _), row in known.items()
        if row["name"] == _DEFAULT and row["size"] == largest[pid]
    }


def _groups(
    calls: pl.DataFrame, known: Mapping[tuple[int, int], Mapping[str, object]], of_pid: Mapping[int, int]
) -> tuple[dict[str, Group], dict[tuple[int, int], str]]:
    """Return the groups by key, and the key of each (process, address). Without torch's objects, communicators of a
    library are one group if every process uses one; else it is not known which belong together."""
    members: dict[tuple[str, str, int], dict[int, tuple[int, int]]] = {}
    texts: dict[tuple[str, str, int], str] = {}
    for (pid, address), row in known.items():
        if pid in of_pid:
            name = (str(row["backend"]), str(row["name"]), int(str(row["size"])))
            members.setdefault(name, {})[of_pid[pid]] = (pid, address)
            texts.setdefault(name, str(row["description"]))
    places = [(name, places) for name, places in members.items() if len(places) <= name[2]]
    used = calls.filter(pl.col("pid").is_in(list(of_pid))).select("pid", "library", "group").unique().sort("pid")
    named = {place for _, found in places for place in found.values()}
    for (library,), part in used.group_by("library", maintain_order=True):
        rest = [(pid, group) for pid, _, group in part.iter_rows() if (pid, group) not in named]
        if rest and len({pid for pid, _ in rest}) == len(rest):
            places.append(((str(library), "", -1), {of_pid[pid]: (pid, group) for pid, group in rest}))
    groups: dict[str, Group] = {}
    keys: dict[tuple[int, int], str] = {}
    for kind, found in places:
        backend, title, size = kind
        ranks = tuple(sorted(found))
        key = group_key(f"{backend} {title}".strip(), ranks if len(ranks) == size <= _LISTED else ())
        groups[key] = Group(key, title or backend, texts.get(kind, ""), ranks, size)
        keys |= dict.fromkeys(found.values(), key)
    return groups, keys


# --- profiles -------------------------------------------------------------------------------------------------------


def _profile(one: Member, found: Window, calls: pl.DataFrame, recording: Recording) -> Profile:
    rows = calls.filter(~pl.col("open") & ~pl.col("library").is_in(ENQUEUES))
    return Profile(
        tables={"activities": on_cpu(one.pid, _threads(one.pid, rows), recording), "steps": STEPS.to_frame()},
        clock="mono",
        source=SOURCE,
        rank=one.rank,
        collectives=_collectives(rows),
        groups=_group_table(one.rank, found.groups.values()),
        run=Run(one.world_size, _backend(rows), recording.manifest.host, one.pid),
    )


def _threads(pid: int, calls: pl.DataFrame) -> list[int]:
    """Return the threads whose time is that of the rank: those that ask for operations, and the main thread, which
    computes while the others wait for it (as autograd's thread does in a step with DDP)."""
    return sorted({pid, *calls["tid"].unique().to_list()})


def _blocked(found: Window, recording: Recording) -> pl.DataFrame:
    """Return how long each rank was blocked outside of operations, as rows of OPERATORS."""
    if not recording.has("switches"):
        return OPERATORS.to_frame()
    asked = pl.when(pl.col("queued_ns") > 0).then("queued_ns").otherwise("start_ns")
    calls = found.calls.with_columns(start_ns=asked)
    of_pid = calls.partition_by("pid", as_dict=True)
    rows = []
    for one in found.members:
        its = of_pid.get((one.pid,), calls.clear())
        total = blocked_ns(one.pid, _threads(one.pid, its), its, recording)
        rows.append({"rank": one.rank, "kind": BLOCKED, "name": SOURCE, "total_ns": total})
    unknown = dict.fromkeys(("count", "median_ns", "max_ns"), -1)
    return pl.DataFrame([row | unknown for row in rows], OPERATORS)


def operations_of(found: Window) -> Job:
    """Return the operations of all ranks, to match them; without steps and what ranks did between operations."""
    rows = found.calls.filter(~pl.col("open") & ~pl.col("library").is_in(ENQUEUES))
    unknown = [
        pl.lit(-1, pl.Int64).alias(name) for name in RANK_COLLECTIVES.names() if name not in ("rank", *COLLECTIVES)
    ]
    operations = _collectives(rows, "rank").with_columns(unknown).select(RANK_COLLECTIVES.names())
    groups = [
        _group_table(one.rank, found.groups.values()).with_columns(rank=pl.lit(one.rank, pl.Int32))
        for one in found.members
    ]
    heads = [
        {"rank": one.rank, "source": SOURCE, "path": f"pid {one.pid}", "host": "", "clock": "mono"}
        for one in found.members
    ]
    ranks = pl.DataFrame(heads, {name: RANKS[name] for name in ("rank", "source", "path", "host", "clock")})
    tables = {name: schema.to_frame() for name, schema in TABLES.items()}
    tables |= {"collectives": operations, "ranks": ranks}
    tables["groups"] = pl.concat([tables["groups"], *(one.select(tables["groups"].columns) for one in groups)])
    present = tuple(one.rank for one in found.members)
    return Job(tables, present, found.missing, max((one.world_size for one in found.members), default=0))


def _backend(rows: pl.DataFrame) -> str:
    return ", ".join(sorted(rows["library"].unique().to_list()))


def _collectives(rows: pl.DataFrame, *more: str) -> pl.DataFrame:
    """Return finished calls as operations of a rank, with columns that they have `more`."""
    unknown = {"dtype": "", "step": -1, "device": -1, "state": "completed", "vendor_wait_ns": -1}
    made = rows.with_columns(
        pl.col("start_ns", "end_ns") + _ONE_NS,
        launch_ns=pl.when(pl.col("queued_ns") > 0).then(pl.col("queued_ns") + _ONE_NS).otherwise(0),
        group=pl.col("key"),
        lane=pl.col("tid"),
        **{name: pl.lit(value) for name, value in unknown.items()},
    )
    columns = [pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items()]
    return made.select(*more, *columns).sort("start_ns")


def _group_table(rank: int, groups: Iterable[Group]) -> pl.DataFrame:
    rows = [
        (
            one.key,
            one.name,
            one.description,
            list(one.members) if len(one.members) == one.size <= _LISTED else [],
            one.size,
        )
        for one in groups
        if rank in one.members
    ]
    return pl.DataFrame(rows, GROUPS, orient="row")
