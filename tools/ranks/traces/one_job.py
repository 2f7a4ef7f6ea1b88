"""Check that traces are of one job, one per rank: number the unnumbered, join cycles, refuse strangers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.nccl.flight_recorder import LONGEST_TIMEOUT_NS
from whystall.tools.timeline.profile_reading.groups import RANK_LIMIT
from whystall.tools.timeline.rank_data.rank_list import rank_list
from whystall.tools.timeline.rank_data.summary import Summary, joined

_NAMED = 4
# TensorBoard's handler: one file per cycle, distinguished by the time it was written.
_CYCLE = re.compile(r"\.[0-9]{6,}(?=\.pt\.trace\.json)")
_DIGITS = re.compile(r"([0-9]+)")
_LIKE = 0.5
"""Of the operations two ranks both have in a group, at least this share must agree for a common run."""


def of_one_job(summaries: Sequence[Summary]) -> tuple[list[Summary], list[tuple[str, str]]]:
    """Return one summary per rank, ascending, and (blind spot code, detail) of what had to be assumed.

    Raises `ToolError` (bad_argument): two traces of one rank, ranks of different runs, or ranks that cannot be
    determined.
    """
    for one in summaries:  # a list of all absent ones would fill the memory
        if max(one.rank + 1, int(str(one.head["world_size"]))) > RANK_LIMIT:
            parts = f"{one.path} is of rank {one.rank}, of {one.head['world_size']}"
            remedy = "take it out of the directory"
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{parts}: no job has more than {RANK_LIMIT} ranks", remedy)
    numbered, spots = _numbered(summaries)
    by_rank: dict[int, list[Summary]] = defaultdict(list)
    for one in numbered:
        by_rank[one.rank].append(one)
    found = [joined(by_rank[rank]) for rank in sorted(by_rank)]
    if len(found) > 1:
        _check_sizes(found)
        _check_groups(found)
        spots += _check_contents(found)
    return found, spots


def _numbered(summaries: Sequence[Summary]) -> tuple[list[Summary], list[tuple[str, str]]]:
    """Assign a rank to each. Processes without one, or that are each a job of their own (replicas of a service), are
    numbered in the order of their names."""
    processes = {_process(one): None for one in summaries}
    unknown = [one for one in summaries if one.rank < 0]
    alone = all(one.rank < 0 or one.head["world_size"] == 1 for one in summaries)
    if alone and (unknown or len(processes) > 1):
        order = {name: number for number, name in enumerate(sorted(processes, key=_natural))}
        spots = [("ranks_guessed", f"{len(order)} in the order of their names")] if len(order) > 1 else []
        return [one.numbered(order[_process(one)]) for one in summaries], spots
    if unknown:
        names = ", ".join(sorted(one.path for one in unknown)[:_NAMED])
        raise _mixed(f"the rank of {names} is unknown", "name it rank<N>.json, or take it out of the directory")
    return list(summaries), []


def _process(one: Summary) -> str:
    """Return the name of the process of a trace: files of several cycles have the same."""
    return _CYCLE.sub("", one.path)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts rank10 after rank9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(name)]


def _check_sizes(found: list[Summary]) -> None:
    sizes: dict[int, list[int]] = defaultdict(list)
    for one in found:
        size = one.head["world_size"]
        if isinstance(size, int) and size > 0:
            sizes[size].append(one.rank)
    # replicas are jobs of one each
    if len(sizes) > 1:
        parts = ", ".join(f"{rank_list(ranks)} of {size}" for size, ranks in sorted(sizes.items()))
        raise _mixed(f"they are ranks of jobs of different size: {parts}")
    outside = [one.rank for one in found if sizes and one.rank >= max(sizes) > 1]
    if outside:
        raise _mixed(f"rank {rank_list(outside)} does not belong to a job of {max(sizes)} ranks")


def _check_groups(found: list[Summary]) -> None:
    """Refuse groups of one name that differ and overlap: PyTorch's names are equal on all ranks of a run."""
    groups = pl.concat([found[0].tables["groups"].clear(), *(one.tables["groups"] for one in found if _of_torch(one))])
    whole = groups.filter((pl.col("ranks").list.len() > 0) & (pl.col("size") == pl.col("ranks").list.len()))
    of_rank: dict[tuple[str, int], tuple[list[int], int]] = {}
    for teller, name, members in whole.select("rank", "name", "ranks").unique(maintain_order=True).iter_rows():
        for member in members:
            known, by = of_rank.setdefault((name, member), (members, teller))
            if known != members:
                raise _mixed(
                    f"group {name} has ranks {rank_list(known)} by rank {by}, {rank_list(members)} by rank {teller}"
                )


def _of_torch(one: Summary) -> bool:
    """Return whether groups are named by PyTorch; a library's own names may be counted by each process."""
    return one.head["source"] in ("kineto", "flight_recorder")


def _check_contents(found: list[Summary]) -> list[tuple[str, str]]:
    """Refuse ranks whose time does not overlap the others', unless what they did is alike: their clock may be off.

    A blind spot for those of the same host, and so of the same clock: hosts may share a name, so they are not refused.
    Dumps of unfinished operations last milliseconds and share none: if they list their groups, which agree
    (`_check_groups`), only a distance beyond every timeout is a blind spot. An empty dump has no time.
    """
    timed = [one for one in found if one.timed]
    dumps = bool(timed) and all(_lists_groups(one) for one in timed)
    clusters = _overlapping(timed, LONGEST_TIMEOUT_NS if dumps else 0)
    if len(clusters) < 2:
        return []
    main = clusters[0]
    if dumps:
        return [("other_time", f"rank {rank_list(one.rank for other in clusters[1:] for one in other)}")]
    hosts = {str(one.head["host"]) for one in main} - {""}
    odd = []
    for other in clusters[1:]:
        strangers = [one.rank for one in other if not any(_alike(one, member) for member in main)]
        if strangers:
            raise _mixed(
                f"rank {rank_list(strangers)} was recorded at another time than rank "
                f"{rank_list(one.rank for one in main)}, and did other steps and operations"
            )
        odd += [one.rank for one in other if one.head["host"] in hosts]
    return [("other_time", f"rank {rank_list(odd)}")] if odd else []


def _lists_groups(one: Summary) -> bool:
    """Return whether it is a Flight Recorder dump that lists the ranks of its groups (``pg_config``)."""
    listed = one.tables["groups"]["ranks"].list.len() > 0
    return one.head["source"] == "flight_recorder" and bool(listed.any())


def _overlapping(found: list[Summary], apart_ns: int) -> list[list[Summary]]:
    """Return ranks whose times are at most `apart_ns` from each other, directly or through others; most first."""
    clusters: list[list[Summary]] = []
    reached = 0
    for one in sorted(found, key=lambda one: one.span):
        if clusters and one.span[0] <= reached + apart_ns:
            clusters[-1].append(one)
        else:
            clusters.append([one])
        reached = max(reached, one.span[1])
    return sorted(clusters, key=len, reverse=True)


def _alike(one: Summary, other: Summary) -> bool:
    """Return whether two ranks did the same: operations in shared groups, else steps; alike without either."""
    one_side, other_side = (side.tables["collectives"].filter(pl.col("group") != "") for side in (one, other))
    shared = set(one_side["group"].to_list()) & set(other_side["group"].to_list())
    if shared:
        counts = [
            Counter(frame.filter(pl.col("group").is_in(sorted(shared))).select("group", "op", "seq", "bytes").rows())
            for frame in (one_side, other_side)
        ]
        common = (counts[0] & counts[1]).total()
        return common >= _LIKE * min(counts[0].total(), counts[1].total())
    steps, others = (set(side.tables["steps"]["step"].to_list()) - {-1} for side in (one, other))
    return not steps or not others or bool(steps & others)


def _mixed(what: str, remedy: str = "give a directory with the traces of one run only") -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, f"these are not the traces of one run: {what}", remedy)
