"""To which of its rank's groups an operation belongs, where the trace does not say.

Traces of gloo name the groups a rank is in, and not whose an operation is. Ranks of a group leave together, those of
different groups do not: an operation belongs to the group whose ranks' ends scatter least, if all of its ranks find so.
Where several groups fit as well, one that holds all others is meant (a group of all leaves together, whatever its
parts). Operations are compared step by step, by their place among equal ones of the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from whystall.tools.timeline.collectives import SYNCHRONISING

_STEPS = 5
"""So many steps are needed to see how ends scatter."""
_MARGIN, _WEAK_MARGIN = 3.0, 1.5
"""The ends of any other group scatter so many times more; and where other places of the same operation tell already."""
_LOOSE, _TIGHT = 0.5, 0.2
"""Ends scatter at most so much, beside arrivals; and where no other group is there to be compared with."""

_Slot = tuple[str, int]
_Scores = dict[tuple[int, _Slot], dict[str, tuple[float, float]]]


def inferred(rows: pl.DataFrame, groups: Mapping[str, tuple[int, ...]]) -> pl.DataFrame:
    """`rows` (prepared as in `matching`) with `group`, `channel`, `size` and `trusted` of the operations whose group
    could be inferred. `groups`: the ranks of each group that the traces name.
    """
    unnamed = (pl.col("group") == "") & ~pl.col("pair") & pl.col("op").is_in(SYNCHRONISING)
    found = rows.filter(unnamed & (pl.col("step") >= 0)).sort("start_ns", "row")
    present = set(rows["rank"].unique().to_list())
    members = {group: tuple(sorted(present & set(ranks))) for group, ranks in groups.items()}
    members = {group: ranks for group, ranks in members.items() if len(ranks) > 1}
    if found.is_empty() or not members:
        return rows
    found = _usual(found)
    chosen = _chosen(_scores(found, members), members)
    if not chosen:
        return rows
    names = [(rank, token, nth, group, len(groups[group])) for (rank, (token, nth)), group in chosen.items()]
    schema = {"rank": pl.Int32, "token": pl.String, "nth": pl.Int64, "name": pl.String, "members": pl.Int32}
    table = pl.DataFrame(names, schema=schema, orient="row")
    by_place = found.join(table, on=["rank", "token", "nth"]).select("row", "name", "members")
    # where all places of an operation are one group's, so are those in steps of which something was lost
    slots = found.select("rank", "token", "nth").unique().join(table, on=["rank", "token", "nth"], how="left")
    plain = slots.group_by("rank", "token").agg(
        pl.col("name").first(),
        pl.col("members").first(),
        one=(pl.col("name").n_unique() == 1) & pl.col("name").is_not_null().all(),
    )
    by_kind = rows.filter(unnamed).join(plain.filter("one"), on=["rank", "token"]).select("row", "name", "members")
    named = pl.concat([by_kind, by_place]).unique("row", keep="first")
    rows = rows.join(named, on="row", how="left", maintain_order="left")
    known = pl.col("name").is_not_null()
    return rows.with_columns(
        group=pl.coalesce("name", "group"),
        channel=pl.coalesce("name", "channel"),
        size=pl.coalesce("members", "size"),
        trusted=pl.col("trusted") | known,
    ).drop("name", "members")


def _usual(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` with their place among equal ones (``nth``), of steps with the most usual number of these."""
    rows = rows.with_columns(
        nth=pl.int_range(pl.len()).over("rank", "step", "token"), count=pl.len().over("rank", "step", "token")
    )
    usual = pl.col("count").mode().max().over("rank", "token")
    return rows.filter(pl.col("count") == usual).drop("count")


def _scores(rows: pl.DataFrame, members: Mapping[str, tuple[int, ...]]) -> _Scores:
    """For each rank and place: of each group it may be for, how ends scatter among its ranks, and how arrivals do."""
    pairs = [(group, rank, ranks[0]) for group, ranks in members.items() for rank in ranks]
    schema = {"name": pl.String, "rank": pl.Int32, "first": pl.Int32}
    wide = rows.join(pl.DataFrame(pairs, schema=schema, orient="row"), on="rank")
    at = ["name", "token", "nth"]
    zero = wide.filter(pl.col("rank") == pl.col("first"))
    zero = zero.select(*at, "step", zero_start="start_ns", zero_end="end_ns")
    apart = (
        wide.filter(pl.col("rank") != pl.col("first"))
        .join(zero, on=[*at, "step"])
        .group_by(*at, "rank")
        .agg(
            steps=pl.len(),
            ends=_scatter(pl.col("end_ns") - pl.col("zero_end")).median(),
            starts=_scatter(pl.col("start_ns") - pl.col("zero_start")).quantile(0.9),
        )
        .filter(pl.col("steps") >= _STEPS)
        .group_by(at)
        .agg(pl.col("ends").max(), pl.col("starts").min(), ranks=pl.len() + 1)
    )
    scores: _Scores = {}
    for group, token, nth, ends, starts, ranks in apart.sort(at).iter_rows():
        if ranks == len(members[group]):
            for rank in members[group]:
                scores.setdefault((rank, (token, nth)), {})[group] = (ends, starts)
    return scores


def _scatter(difference: pl.Expr) -> pl.Expr:
    return (difference - difference.median()).abs()


def _chosen(scores: _Scores, members: Mapping[str, tuple[int, ...]]) -> dict[tuple[int, _Slot], str]:
    """The group of each rank's place, where all ranks of the group choose it."""
    choices = {place: _best(fits, members) for place, fits in scores.items()}
    by_kind: dict[tuple[int, str], set[str]] = {}
    for (rank, (token, _)), group in choices.items():
        if group:
            by_kind.setdefault((rank, token), set()).add(group)
    for (rank, (token, nth)), group in choices.items():
        elsewhere = by_kind.get((rank, token), set())
        if not group and len(elsewhere) == 1:
            fits = scores[rank, (token, nth)]
            likely = next(iter(elsewhere))
            others = [ends for other, (ends, _) in fits.items() if other != likely]
            if likely in fits and all(ends > _WEAK_MARGIN * fits[likely][0] for ends in others):
                choices[rank, (token, nth)] = likely
    return {
        (rank, slot): group
        for (rank, slot), group in choices.items()
        if group and all(choices.get((other, slot)) == group for other in members[group])
    }


def _best(fits: Mapping[str, tuple[float, float]], members: Mapping[str, tuple[int, ...]]) -> str:
    """The group whose ends scatter least, empty where another fits as well."""
    best = min(fits, key=lambda group: (fits[group][0], group))
    ends, starts = fits[best]
    rivals = [group for group in fits if fits[group][0] <= _MARGIN * ends]
    if len(rivals) == 1:
        return best if ends <= (_LOOSE if len(fits) > 1 else _TIGHT) * starts else ""
    widest = max(rivals, key=lambda group: (len(members[group]), group))
    ends, starts = fits[widest]
    holds = all(set(members[group]) <= set(members[widest]) for group in rivals)
    return widest if holds and ends <= _TIGHT * starts else ""
