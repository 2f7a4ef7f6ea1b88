"""Collectives in an export of Nsight Systems: NCCL's kernels, and the calls they are from, by NVTX range.

Since 2.18 NCCL's ranges carry a payload: communicator, size, peer. The export keeps it as bytes (``binaryData``: a head
of 32 bytes with domain and schema, then the fields) and its layout in ``NVTX_PAYLOAD_SCHEMA_ENTRIES``. A communicator's
number is equal on all its ranks, so it identifies the group. Without payloads the group is unknown and stays empty.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from whystall.tools.timeline.collectives import COLLECTIVES, GROUPS, POINT_TO_POINT, canonical_op
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profile_reading.groups import ELEMENT_LIMIT, number
from whystall.tools.timeline.profile_reading.sqlite_tables import Database

_HEAD = struct.Struct("<IIIIQQ")
# Types of payload fields (nvtxPayloadEntryType) as struct formats: integers only.
_FORMATS = {
    3: "<h", 4: "<H", 5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 11: "<b", 12: "<B", 13: "<h", 14: "<H",
    15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q",
}  # fmt: skip
_COMMUNICATOR, _SIZE, _PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
_RANKS, _RANK = "No. of ranks", "Rank"
_OPERATION = re.compile(
    r"nccl(?:AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|AllToAll\w*|Gather|Scatter)", re.I
)
# NCCL's size is that of one rank's part; these move as many parts as there are ranks.
_PER_RANK = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_TYPES = {
    "f32": "Float", "float": "Float", "f16": "Half", "half": "Half", "bf16": "BFloat16", "f64": "Double",
    "double": "Double", "i8": "Char", "int8": "Char", "u8": "Byte", "uint8": "Byte", "i32": "Int", "int32": "Int",
    "i64": "Long", "int64": "Long", "f8e4m3": "Float8_e4m3fn", "f8e5m2": "Float8_e5m2",
}  # fmt: skip
_TYPE = re.compile(rf"_({'|'.join(_TYPES)})(?=_|\(|$)", re.IGNORECASE)
_CALLS = pl.Schema(
    {
        "at_ns": pl.Int64,
        "until_ns": pl.Int64,
        "pid": pl.Int64,
        "tid": pl.Int64,
        "call": pl.String,
        "communicator": pl.String,
        "size": pl.Int64,
        "other": pl.Int64,
    }
)


@dataclass(frozen=True)
class Ranges:
    """NCCL's calls, and by process and communicator the number of ranks and its place, if a call created it."""

    calls: pl.DataFrame = field(default_factory=_CALLS.to_frame)
    created: Mapping[tuple[int, str], tuple[int, int]] = field(default_factory=dict)

    @property
    def members(self) -> Mapping[str, tuple[int, int]]:
        """The number of ranks of each communicator, and a place in it."""
        return {name: found for (_, name), found in self.created.items()}

    def of_process(self, pid: int) -> Ranges:
        """Return those of one process."""
        created = {key: found for key, found in self.created.items() if key[0] == pid}
        return Ranges(self.calls.filter(pl.col("pid") == pid), created)

    @classmethod
    def of(cls, database: Database) -> Ranges:
        """Read the NVTX tables of an export."""
        columns = database.columns("NVTX_EVENTS")
        if not {"start", "end", "globalTid"} <= columns:
            return cls()
        layouts = _layouts(database)
        texts = _names(database)
        more = [name if name in columns else "" for name in ("text", "textId", "binaryData")]
        wanted = ["start", "end", "globalTid", *(name for name in more if name)]
        calls: list[tuple[object, ...]] = []
        created: dict[tuple[int, str], tuple[int, int]] = {}
        for rows in database.read("NVTX_EVENTS", *wanted):
            for start, end, thread, *rest in rows:
                parts = dict(zip([name for name in more if name], rest, strict=True))
                label = parts.get("text") or texts.get(parts.get("textId"))
                if not isinstance(label, str) or not label.startswith("nccl") or not isinstance(start, int):
                    continue
                pid = thread // 2**24 % 2**24 if isinstance(thread, int) else -1
                payload = _payload(parts.get("binaryData"), layouts)
                name = f"{payload[_COMMUNICATOR] % 2**64:#x}" if _COMMUNICATOR in payload else ""
                if name and _RANKS in payload and 0 <= payload.get(_RANK, -1) < payload[_RANKS]:
                    created[pid, name] = (payload[_RANKS], payload[_RANK])
                if _OPERATION.fullmatch(label) and isinstance(end, int) and isinstance(thread, int):
                    size, peer = (number(payload.get(one), ELEMENT_LIMIT) for one in (_SIZE, _PEER))
                    calls.append((start, end, pid, thread % 2**24, label, name, size, peer))
        return cls(pl.DataFrame(calls, schema=_CALLS, orient="row"), created)

    def shifted(self, epoch: int) -> Ranges:
        """Return the same on another clock."""
        return replace(self, calls=self.calls.with_columns(pl.col("at_ns", "until_ns") + epoch))


def with_collectives(profile: Profile, ranges: Ranges) -> Profile:
    """Return `profile` with a row for each of its NCCL kernels, their groups, and the rank if only they have it."""
    kernels = profile.activities.filter(pl.col("kind") == "collective")
    launches = profile.activities.filter((pl.col("device") < 0) & (pl.col("correlation") >= 0)).select(
        "correlation", launch_ns="start_ns"
    )
    frame = kernels.join(
        launches.unique("correlation", keep="first"), on="correlation", how="left", maintain_order="left"
    ).with_row_index("row")
    frame = frame.join(_called(frame, ranges.calls), on="row", how="left", maintain_order="left")
    members = ranges.members
    world = max((ranks for ranks, _ in members.values()), default=-1)
    rows = [_row(one, members, world) for one in frame.iter_rows(named=True)]
    used = sorted({name for name in frame["communicator"].drop_nulls() if name} | members.keys())
    groups: list[tuple[object, ...]] = [(name, name, "", [], members.get(name, (-1, -1))[0]) for name in used]
    places = {place for ranks, place in ranges.created.values() if ranks == world}
    rank = profile.rank if profile.rank >= 0 or len(places) != 1 else places.pop()
    run = profile.run
    unnamed = sum(not row[3] for row in rows)
    notes = profile.notes + ((("group_guessed", f"{unnamed} of {len(rows)} name none"),) if unnamed else ())
    return replace(
        profile,
        rank=rank,
        collectives=pl.DataFrame(rows, schema=COLLECTIVES, orient="row"),
        groups=pl.DataFrame(groups, schema=GROUPS, orient="row"),
        run=replace(
            run,
            world_size=run.world_size if run.world_size > 0 else world,
            backend="nccl" if rows else "",
        ),
        notes=notes,
    )


def _called(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the call that each kernel (by row) was launched in. In a group of calls kernels are launched at its end:
    there the last call before counts, unless a kernel was launched in it already."""
    payload = kernels.filter(pl.col("launch_ns").is_not_null()).select(
        "row", pl.col("pid", "tid").cast(pl.Int64), at_ns="launch_ns"
    )
    calls = calls.sort("at_ns").with_row_index("number").with_columns(begun_ns="at_ns")
    near = payload.sort("at_ns").join_asof(calls, on="at_ns", by=["pid", "tid"], check_sortedness=False)
    near = near.filter(pl.col("number").is_not_null())
    within = pl.col("at_ns") <= pl.col("until_ns")
    taken = near.filter(within)["number"].unique()
    alone = pl.col("number").is_unique() & ~pl.col("number").is_in(taken.implode())
    return near.filter(within | alone).select("row", "call", "communicator", "size", "other")


def _row(one: Mapping[str, object], members: Mapping[str, tuple[int, int]], world: int) -> tuple[object, ...]:
    name, call = str(one["name"]), one["call"]
    op = canonical_op(name)
    if isinstance(call, str) and op in ("other", "send_recv"):
        op = canonical_op(call.removeprefix("nccl"))
    communicator = str(one["communicator"] or "")
    ranks = members.get(communicator, (-1, -1))[0]
    size = one["size"] if isinstance(one["size"], int) else -1
    if op in _PER_RANK:
        size = size * ranks if ranks > 0 <= size else -1
    # Places within a communicator of all ranks are ranks.
    peer = one["other"] if op in POINT_TO_POINT and isinstance(one["other"], int) and 0 < ranks == world else -1
    dtype = _TYPE.search(name.partition("(")[0])
    return (
        one["start_ns"],
        one["end_ns"],
        op,
        communicator,
        -1,
        size if 0 <= size < ELEMENT_LIMIT else -1,
        _TYPES[dtype.group(1).lower()] if dtype else "",
        peer if isinstance(peer, int) and -1 <= peer < 2**31 else -1,
        one["launch_ns"] or 0,
        one["step"],
        one["device"],
        one["stream"],
        "completed",
        -1,
    )


def _names(database: Database) -> dict[object, object]:
    return {
        key: value
        for rows in database.read("StringIds", "id", "value")
        for key, value in rows
        if isinstance(value, str) and value.startswith("nccl")
    }


def _layouts(database: Database) -> dict[tuple[object, object], list[tuple[str, int, struct.Struct]]]:
    """Return name, offset and format of the useful fields, by domain and schema."""
    found: dict[tuple[object, object], list[tuple[str, int, struct.Struct]]] = {}
    wanted = ("domainId", "schemaId", "name", "type", "offset")
    for rows in database.read("NVTX_PAYLOAD_SCHEMA_ENTRIES", *wanted):
        for domain, schema, name, kind, offset in rows:
            place = 0 if offset is None else offset
            if name in (_COMMUNICATOR, _SIZE, _PEER, _RANKS, _RANK) and isinstance(place, int) and kind in _FORMATS:
                found.setdefault((domain, schema), []).append((str(name), place, struct.Struct(_FORMATS[kind])))
    return found


def _payload(
    data: object, layouts: Mapping[tuple[object, object], list[tuple[str, int, struct.Struct]]]
) -> dict[str, int]:
    if not isinstance(data, bytes) or len(data) < _HEAD.size:
        return {}
    domain, _, schema, *_ = _HEAD.unpack_from(data)
    return {
        name: form.unpack_from(data, _HEAD.size + offset)[0]
        for name, offset, form in layouts.get((domain, schema), ())
        if 0 <= offset <= len(data) - _HEAD.size - form.size
    }
