"""Find the ranks that do the same work and may be compared.

Pipeline stages differ in their work: ranks are of one stage when groups that name a pipeline put them at the same
place, or when groups tie them together while messages lead to the others and carry more than what all ranks share. All
other ranks - data, tensor, expert, context parallel - do the same. Ranks whose operators have other names do other work
in any case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.ranks.job import Job, Peers
from whystall.tools.timeline.collectives import POINT_TO_POINT, SAME_WORK, SYNCHRONISING

# Megatron: PIPELINE_MODEL_PARALLEL_GROUP; DeviceMesh: mesh_pp, pp
_PIPELINE = re.compile(r"pipeline|(?:^|[^a-z])pp(?:$|[^a-z])", re.I)
# shared by the first and the last stage
_ACROSS = re.compile(r"embedding", re.I)
_ALIKE = 0.5
"""Ranks do the same work if they share at least this share of their operators' names."""


def peers(job: Job, matched: pl.DataFrame, stages: str = "") -> list[Peers]:
    """Return the sets of ranks of `job` that do the same work, every present rank in one of them, by their first rank.

    `stages`: the user's, ``0-3,4-7`` (or ``0+2,1+3``); ranks not named are one more set. `matched` (`job.MATCHED`)
    gives the ranks of groups that the traces do not list. Raises `ToolError` (bad_argument) when `stages` cannot be
    parsed or names a rank twice.
    """
    if stages.strip():
        return _asked(stages, job.present)
    if found := _declared(job):
        return found
    groups = _groups(job, matched)
    found = _by_pipeline(job, groups)
    if not found and not _share_all(job, matched, groups):
        found = _by_messages(job, groups)
    if not found:
        found = [Peers("all", job.present, "all")]
    return sorted((part for one in found for part in _alike(job, one)), key=lambda one: one.ranks)


def _declared(job: Job) -> list[Peers]:
    """Return the sets of ranks that do the same work according to their tables; all other ranks are one more set."""
    rows = job.table("groups").filter(pl.col("description") == SAME_WORK)
    parts = rows.group_by("group").agg(pl.col("name").first(), pl.col("rank").unique().sort()).sort("group")
    found = [Peers(name, tuple(ranks), "asked") for _, name, ranks in parts.iter_rows()]
    rest = tuple(rank for rank in job.present if all(rank not in one.ranks for one in found))
    if found and rest:
        found.append(Peers("rest", rest, "asked"))
    return sorted(found, key=lambda one: one.ranks)


def _asked(stages: str, present: tuple[int, ...]) -> list[Peers]:
    found: list[Peers] = []
    named: set[int] = set()
    for number, text in enumerate(stages.split(",")):
        ranks = _ranks(text)
        if ranks & named:
            raise _refused(f"rank {min(ranks & named)} is in two stages")
        named |= ranks
        here = tuple(sorted(ranks & set(present)))
        if here:
            found.append(Peers(str(number), here, "asked"))
    rest = tuple(rank for rank in present if rank not in named)
    return [*found, Peers("rest", rest, "asked")] if rest else found


def _ranks(text: str) -> set[int]:
    ranks: set[int] = set()
    for part in text.split("+"):
        ends = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if not ends:
            raise _refused(f"{clean(part.strip(), 40)!r} is no range of ranks")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if first > last:
            raise _refused(f"{first}-{last} is no range of ranks")
        ranks |= set(range(first, last + 1))
    return ranks


def _refused(why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, f"stages: {why}", "write them like 0-3,4-7")


def _groups(job: Job, matched: pl.DataFrame) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return name and description, and global ranks, of each group whose ranks are known or were observed."""
    listed = (
        job.table("groups")
        .with_columns(text=pl.format("{} {}", "name", "description"))
        .sort(pl.col("ranks").list.len(), descending=True)
        .group_by("group", maintain_order=True)
        .agg(pl.col("text").first(), pl.col("ranks").first())
    )
    observed = matched.filter(pl.col("op").is_in(SYNCHRONISING)).group_by("group").agg(pl.col("rank").unique().sort())
    members = {group: tuple(ranks) for group, ranks in observed.sort("group").iter_rows()}
    groups = {group: ("", ranks) for group, ranks in members.items()}
    for group, text, ranks in listed.iter_rows():
        groups[group] = (text, tuple(ranks) or members.get(group, ()))
    return groups


def _by_pipeline(job: Job, groups: dict[str, tuple[str, tuple[int, ...]]]) -> list[Peers]:
    """Return ranks at the same place of the groups that are pipelines."""
    place: dict[int, int] = {}
    for text, ranks in groups.values():
        if len(ranks) > 1 and _PIPELINE.search(text):
            for index, rank in enumerate(ranks):
                if place.setdefault(rank, index) != index:
                    return []
    if not set(job.present) <= set(place):
        return []
    return _sets([{rank for rank in job.present if place[rank] == at} for at in set(place.values())], "groups")


def _share_all(job: Job, matched: pl.DataFrame, groups: dict[str, tuple[str, tuple[int, ...]]]) -> bool:
    """Return whether operations of all ranks carry more bytes than messages: gradients of one common model. Stages have
    gradients of their own, and send activations; they only share a norm or a loss."""
    everybody = [group for group, (_, ranks) in groups.items() if set(ranks) >= set(job.present)]
    size = pl.col("bytes").clip(0).sum()
    shared = matched.filter(pl.col("op").is_in(SYNCHRONISING) & pl.col("group").is_in(everybody))
    sent = job.table("collectives").filter(pl.col("op").is_in(POINT_TO_POINT))
    return int(shared.select(size).item()) > int(sent.select(size).item())


def _by_messages(job: Job, groups: dict[str, tuple[str, tuple[int, ...]]]) -> list[Peers]:
    """Return ranks that synchronising groups tie together, where messages go from one such part to another."""
    edges = _edges(job)
    if not edges:
        return []
    neighbours: dict[int, list[int]] = {}
    for source, target in edges:
        neighbours.setdefault(source, []).append(target)
    above = {rank: rank for rank in job.present}

    def root(rank: int) -> int:
        while above[rank] != rank:
            above[rank] = above[above[rank]]
            rank = above[rank]
        return rank

    for text, ranks in groups.values():
        # a group with both ends of a message spans stages: the norm of all gradients, shared embeddings
        members = set(ranks)
        across = any(other in members for one in ranks for other in neighbours.get(one, ()))
        if across or _ACROSS.search(text):
            continue
        here = [rank for rank in ranks if rank in above]
        for one, other in pairwise(here):
            above[root(other)] = root(one)
    parts: dict[int, set[int]] = {}
    for rank in job.present:
        parts.setdefault(root(rank), set()).add(rank)
    return _sets(parts.values(), "pipeline") if len(parts) > 1 else []


def _edges(job: Job) -> set[tuple[int, int]]:
    """Return the receivers of each sender, without rings: in context parallelism each rank passes on to the next, and
    all are alike.

    A pipeline sends forth and back; in one direction only it has an end.
    """
    rows = job.table("collectives").filter(pl.col("op").is_in(POINT_TO_POINT) & (pl.col("peer") >= 0))
    edges: set[tuple[int, int]] = set()
    for rank, peer, op in rows.select("rank", "peer", "op").unique().iter_rows():
        edges |= {(rank, peer)} if op == "send" else {(peer, rank)} if op == "recv" else {(rank, peer), (peer, rank)}
    one_way = {(source, target) for source, target in edges if (target, source) not in edges}
    following: dict[int, list[int]] = {}
    for source, target in one_way:
        following.setdefault(source, []).append(target)
    ring = {edge for edge in one_way if _reaches(following, edge[1], edge[0])}
    return edges - ring


def _reaches(following: dict[int, list[int]], start: int, goal: int) -> bool:
    observed, ahead = {start}, [start]
    while ahead:
        rank = ahead.pop()
        if rank == goal:
            return True
        new = [other for other in following.get(rank, ()) if other not in observed]
        observed |= set(new)
        ahead += new
    return False


def _sets(parts: Iterable[set[int]], how: str) -> list[Peers]:
    ordered = sorted(tuple(sorted(part)) for part in parts if part)
    return [Peers(f"stage {number}", ranks, how) for number, ranks in enumerate(ordered)]


def _alike(job: Job, together: Peers) -> list[Peers]:
    """Split `together` into parts whose operators have different names."""
    kinds = pl.col("kind").is_in(["kernel", "operator"]) & (pl.col("name") != "(others)")
    rows = job.table("operators").filter(kinds & pl.col("rank").is_in(together.ranks))
    names = {rank: set(found) for rank, found in rows.group_by("rank").agg("name").iter_rows()}
    parts: list[tuple[set[str], list[int]]] = []
    for rank in together.ranks:
        own_names = names.get(rank, set())
        for other, ranks in parts:
            if not own_names or not other or len(own_names & other) >= _ALIKE * len(own_names | other):
                ranks.append(rank)
                break
        else:
            parts.append((own_names, [rank]))
    if len(parts) == 1:
        return [together]
    return [Peers(f"{together.label} {number}", tuple(ranks), "operators") for number, (_, ranks) in enumerate(parts)]
