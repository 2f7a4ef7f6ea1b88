"""Read dumps of PyTorch's Flight Recorder, version 2: pickle (``_dump_3``, ``nccl_trace_rank_3``) or JSON.

The recorder is a ring buffer of the collectives a rank requested, written when a job hangs. Format:
torch/csrc/distributed/c10d/FlightRecorder*.{hpp,cpp}. One entry, shortened:

    {"record_id": 4, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 5, "p2p_seq_id": 0,
     "profiling_name": "nccl:all_reduce", "time_created_ns": 1724000000000000000, "input_sizes": [[1024]],
     "input_dtypes": ["Float"], "output_sizes": [[1024]], "output_dtypes": ["Float"], "state": "scheduled",
     "time_discovered_started_ns": null, "time_discovered_completed_ns": null, "retired": false, "is_p2p": false}

* The host's fields are exact (``time_created_ns``, sequence numbers); the device's are what a watchdog discovered.
  Starts are known only with timing on, so most entries start when they were requested.
* ``retired``: the work object is gone, done or failed: gloo retires what timed out and never writes ``completed``.
  Such an entry is completed at an unknown instant (``end_ns`` 0); one that was discovered complete has its instant.
* Point-to-point calls inside a coalesced batch keep their first state; the batch's own entry has the real one.
* Numbers in ``send 0->3`` are places within the group.
* ``pg_status`` is keyed by a number of the process, not by the group's name, and in groups used for point-to-point it
  counts those. gloo writes no ranks of groups.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.files.formats import Head, Match
from whystall.tools.files.input import bad, opened, unreadable
from whystall.tools.timeline import profile
from whystall.tools.timeline.collectives import (
    COLLECTIVES,
    GROUPS,
    POINT_TO_POINT,
    PROGRESS,
    canonical_op,
    group_key,
)
from whystall.tools.timeline.nccl.flight_dump import Content, Entry, Group, Status, content_of
from whystall.tools.timeline.profile import Profile, Run
from whystall.tools.timeline.profile_reading.element_size import element_size
from whystall.tools.timeline.profile_reading.format import ProfileFormat

SOURCE = "flight_recorder"
LONGEST_TIMEOUT_NS = 1800 * 10**9
"""The longest default timeout of PyTorch's backends (NCCL 10 min, gloo 30 min): operations of one hang were requested
at most so long apart."""

_LIMIT = 256 << 20
"""Bytes of a dump, unpacked. The default ring of 2000 entries with stacks takes 1 to 10 MB."""
_TENSORS = 100_000
"""Limit per operation; coalesced ones have thousands."""
_NAMED = re.compile(r"(?:dump_|trace_rank_|rank[_-]?)([0-9]{1,6})(?:\.[a-z]{1,8})*$", re.IGNORECASE)
_OWN = re.compile(r"(?:_dump_|(?:nccl|fr|comm_lib)_trace_rank_)[0-9]{1,6}$")
_PROTOCOLS = b"\x02\x03\x04\x05"
_PICKLE = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\}", re.DOTALL)
# Words near the beginning of a dump: its head comes first, and every entry has a profiling name.
_WORDS = (b"pg_config", b"profiling_name", b"collective_seq_id")
# Kineto's files list their groups under the same name.
_NOT_WORDS = (b'"distributedInfo"', b'"traceEvents"')
_HEAD = 1 << 18
_PEERS = re.compile(r"(send|recv) ([0-9]{1,6})(->|<-)([0-9]{1,6})$")
_LARGEST = 2**62


@dataclass(frozen=True)
class _Member:
    """A group as this dump describes it."""

    key: str
    name: str
    description: str
    # by place within the group
    ranks: tuple[int, ...]


def detect(head: Head) -> Match:
    """Return how well a file fits: the words of a dump, the recorder's own name for dumps, or any pickle."""
    pickled = head.begin[:1] == b"\x80"
    begins = _PICKLE.match(head.begin) is not None if pickled else head.json == b"{"
    if begins or has_its_name(head):
        text = head.data[:_HEAD]
        if any(word in text for word in _NOT_WORDS):
            return Match.NO
        if begins and any(word in text for word in _WORDS):
            return Match.CERTAIN
        if has_its_name(head):
            return Match.LIKELY
    return Match.POSSIBLE if pickled and head.begin[1:2] in _PROTOCOLS else Match.NO


def _listed(head: Head) -> bool:
    try:
        return detect(head) >= Match.LIKELY
    except (OSError, ToolError):  # any file of a directory is tried, and most are something else
        return False


def has_its_name(head: Head) -> bool:
    """Return whether a file has the recorder's own name for dumps."""
    return _OWN.search(head.name) is not None


def named_rank(path: Path) -> int:
    """Return the rank in a dump's name, -1 without one: `_dump_3`, `nccl_trace_rank_3`, `rank3.json`."""
    named = _NAMED.search(path.name)
    return int(named.group(1)) if named else -1


def read(path: Path) -> Profile:
    """Return the collectives in a dump, pickled or JSON, plain or gzip.

    Raises `ToolError`: bad_trace (also for a pickle that wants to import or run anything), io_error.
    """
    try:
        with opened(path) as file:
            data = file.read(_LIMIT + 1)
    except (EOFError, zlib.error) as error:
        raise bad(path, f"damaged ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) > _LIMIT:
        raise bad(path, f"larger than {_LIMIT >> 20} MiB")
    if not data:
        raise bad(path, "it is empty")
    content = content_of(path, data)
    if not content.version.startswith(("2.", "1.")):
        raise bad(path, f"a Flight Recorder dump of version {clean(content.version, 20) or 'unknown'}, not 2.x")
    return _profile(path, content)


def _profile(path: Path, content: Content) -> Profile:
    members = _members(content)
    rank = _rank(path, content.config)
    status = _status_of_collectives(content)
    backends = {entry.profiling_name.partition(":")[0] for entry in content.entries if ":" in entry.profiling_name}
    # gloo counts failures as completed.
    counts_failed = "gloo" in backends
    done = {name: max(_count(one.last_completed_collective), 0) for name, one in status.items() if not counts_failed}
    batches = {
        (_name(entry), entry.p2p_seq_id): entry for entry in content.entries if "coalesced" in entry.profiling_name
    }
    rows = [_row(entry, members, done, batches, rank) for entry in content.entries]
    frame = pl.DataFrame(rows, schema=COLLECTIVES, orient="row").sort("start_ns", maintain_order=True)
    unstarted = sum(not entry.time_discovered_started_ns for entry in content.entries)
    notes = [("odd_events", str(content.odd))] if content.odd else []
    notes += [("starts_unknown", f"{unstarted} of {frame.height}")] if unstarted else []
    notes += [("group_guessed", "the dump does not list the ranks of groups")] if _no_ranks(members) else []
    groups = [(one.key, one.name, one.description, sorted(one.ranks), len(one.ranks) or -1) for one in members.values()]
    progress = [
        (members[name].key, max(_count(one.last_enqueued_collective), 0), done.get(name, -1))
        for name, one in status.items()
        if name in members
    ]
    default = _default(members)
    return Profile(
        tables={name: schema.to_frame() for name, schema in profile.TABLES.items()},
        clock="real",
        source=SOURCE,
        rank=rank,
        notes=tuple(notes),
        collectives=frame,
        groups=pl.DataFrame(groups, schema=GROUPS, orient="row"),
        progress=pl.DataFrame(progress, schema=PROGRESS, orient="row"),
        run=Run(
            world_size=len(default.ranks) if default and default.ranks else -1,
            backend=clean(backends.pop(), 32) if len(backends) == 1 else "",
        ),
    )


def _members(content: Content) -> dict[str, _Member]:
    """Return the groups by name: the configured ones, and others that entries name."""
    described = {entry.process_group[0]: entry.process_group[-1] for entry in content.entries if entry.process_group}
    found: dict[str, _Member] = {}
    for name in [*content.config, *(name for name in described if name not in content.config)]:
        group = content.config.get(name, Group())
        if not name:  # gloo's only entry, without a rank
            continue
        ranks = _ranks(group.ranks)
        inert = clean(name)
        description = clean(group.desc or described.get(name, ""))
        found[name] = _Member(group_key(inert, ranks), inert, description, ranks)
    return found


def _ranks(ranks: str | Iterable[int]) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"[0-9]{1,9}", ranks)] if isinstance(ranks, str) else list(ranks)
    return tuple(number for number in numbers if 0 <= number < 2**31)


def _no_ranks(members: Mapping[str, _Member]) -> bool:
    return any(not one.ranks for one in members.values())


def _default(members: Mapping[str, _Member]) -> _Member | None:
    return next((one for one in members.values() if one.description == "default_pg"), members.get("0"))


def _rank(path: Path, config: Mapping[str, Group]) -> int:
    """Return the only rank in all its groups, else the one in the file's name, which the groups must contain."""
    named = named_rank(path)
    of_groups = [ranks for group in config.values() if (ranks := set(_ranks(group.ranks)))]
    shared = set.intersection(*of_groups) if of_groups else set()
    if len(shared) == 1:
        return shared.pop()
    if shared and named >= 0 and named not in shared:
        raise bad(path, f"it is called rank {named}, but its groups are of others: {sorted(shared)[:4]}")
    return named


def _status_by_name(content: Content) -> dict[str, Status]:
    """Return the counters by the group's name. Only entries map their numbers to names; groups without an entry are
    mapped by order, if both sides number all groups in order of creation and no entry contradicts."""
    named = {str(entry.pg_id): _name(entry) for entry in content.entries if entry.pg_id >= 0}
    names, numbers = list(content.config), list(content.status)
    if len(names) == len(numbers) and all(one.isascii() and one.isdigit() for one in [*names, *numbers]):
        ordered = dict(zip(sorted(numbers, key=int), sorted(names, key=int), strict=True))
        if all(ordered.get(number, name) == name for number, name in named.items()):
            named = ordered
    return {named[number]: status for number, status in content.status.items() if number in named}


def _status_of_collectives(content: Content) -> dict[str, Status]:
    """Return counters of groups that count collectives: not those used point-to-point, nor those whose last entry has
    another number - gloo counts sends without recording them."""
    status = _status_by_name(content)
    last: dict[str, int] = {}
    for entry in content.entries:
        name = _name(entry)
        if _is_p2p(entry):
            status.pop(name, None)
        else:
            last[name] = max(last.get(name, 0), entry.collective_seq_id or entry.seq_id or 0)
    return {
        name: one
        for name, one in status.items()
        if last.get(name, one.last_enqueued_collective) == one.last_enqueued_collective
    }


def _name(entry: Entry) -> str:
    return entry.process_group[0] if entry.process_group else ""


def _is_p2p(entry: Entry) -> bool:
    return entry.is_p2p or _PEERS.search(entry.profiling_name) is not None


def _count(number: int) -> int:
    return number if 0 <= number < _LARGEST else -1


def _row(
    entry: Entry,
    members: Mapping[str, _Member],
    done: Mapping[str, int],
    batches: Mapping[tuple[str, int | None], Entry],
    rank: int,
) -> tuple[object, ...]:
    p2p, name = _is_p2p(entry), _name(entry)
    source = batches.get((name, entry.p2p_seq_id), entry) if p2p else entry
    member = members.get(name)
    seq = entry.p2p_seq_id if p2p else entry.collective_seq_id
    seq = _count(entry.seq_id if seq is None and entry.seq_id is not None else -1 if seq is None else seq)
    created = _instant(entry.time_created_ns)
    started, ended = _instant(source.time_discovered_started_ns), _instant(source.time_discovered_completed_ns)
    finished = (
        source.state == "completed" or source.retired or ended > 0 or (not p2p and 0 <= seq <= done.get(name, -1))
    )
    state = "completed" if finished else "started" if started or source.state == "started" else "scheduled"
    start = started or created
    op = canonical_op(entry.profiling_name)
    thread = entry.thread_id
    lane = int(thread) if thread is not None and str(thread).isdecimal() else -1
    return (
        start,
        max(ended, start) if finished and ended else 0,
        op if p2p or op not in POINT_TO_POINT else "send_recv",
        member.key if member else "",
        seq,
        _bytes(entry),
        clean((entry.input_dtypes or entry.output_dtypes or [""])[0], 32),
        _peer(entry, member, rank),
        created,
        -1,
        -1,
        lane if 0 <= lane < _LARGEST else -1,
        state,
        -1,
    )


def _instant(number: int | None) -> int:
    return number if number is not None and 0 < number < _LARGEST else 0


def _peer(entry: Entry, member: _Member | None, rank: int) -> int:
    """Return the other end, as a global rank."""
    peers = _PEERS.search(entry.profiling_name)
    if peers is None or member is None:
        return -1
    # both forms begin with this rank's own place
    place = int(peers.group(4))
    if not member.ranks:
        return place if member.description == "default_pg" else -1
    return member.ranks[place] if place < len(member.ranks) and member.ranks[place] != rank else -1


def _bytes(entry: Entry) -> int:
    """Return the larger of input and output; -1 when a size or type is not known."""
    sides = _total(entry.input_sizes, entry.input_dtypes), _total(entry.output_sizes, entry.output_dtypes)
    return max(sides) if min(sides) >= 0 else -1


def _total(sizes: list[list[int]], dtypes: list[str]) -> int:
    if len(sizes) > _TENSORS or (sizes and len(dtypes) not in (1, len(sizes))):
        return -1
    total = 0
    for place, shape in enumerate(sizes):
        width = element_size(dtypes[place if len(dtypes) > 1 else 0])
        if width < 0 or len(shape) > 64 or any(not 0 <= extent < _LARGEST for extent in shape):
            return -1
        total += width * math.prod(shape)
    return total if total < _LARGEST else -1


FORMAT = ProfileFormat(
    SOURCE,
    detect,
    read,
    lambda head: named_rank(head.path),
    _listed,
    only_collectives=True,
)
