"""Find the group of an operation, where the trace does not state it.

Traces of gloo name the groups a rank is in, and not the group of an operation. Ranks of a group leave together, those
of different groups do not: an operation belongs to the group whose ranks' ends scatter least by far, if all of its
ranks agree. (A group of all and its parts fit alike: parts that wait for the same rank leave together too. That stays
undecided.) Operations are compared step by step, by their place among equal ones of the step. Ranks that have one group
only need no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from whystall.tools.timeline.collectives import SYNCHRONISING

_STEPS = 10
"""Steps needed to measure the scatter of ends."""
_MARGIN, _WEAK_MARGIN = 3.0, 1.5
"""Factor by which other groups' ends scatter more; and if other places of the operation have a group."""
_LOOSE, _TIGHT = 0.5, 0.2
"""Ends scatter at most so much, relative to arrivals; and if there is no other group to compare with."""

_THREADS = 2
"""Threads of gloo per group (ProcessGroupGloo::Options); no thread serves two groups."""

_Slot = tuple[str, int]
_Scores = dict[tuple[int, _Slot], dict[str, tuple[float, float]]]


def inferred(rows: pl.DataFrame, groups: Mapping[str, tuple[int, ...]]) -> pl.DataFrame:
    """Return `rows` (prepared as in `matching.operations`) with `group`, `channel`, `size` and `trusted` of the
    operations whose group could be inferred. `groups`: the ranks of each group that the traces name."""
    unnamed = (pl.col("group") == "") & ~pl.col("pair") & pl.col("op").is_in(SYNCHRONISING)
    found = rows.filter(unnamed & (pl.col("step") >= 0)).sort("start_ns", "row")
    present = set(rows["rank"].unique().to_list())
    members = {group: tuple(sorted(present & set(ranks))) for group, ranks in groups.items()}
    # two groups of the same ranks leave together alike, and either will do
    first = {ranks: group for group, ranks in sorted(members.items(), reverse=True) if len(ranks) > 1}
    members = {group: ranks for ranks, group in first.items()}
    rows = _only(rows, unnamed, groups, members)
    found = found.join(rows.filter(unnamed), on="row", how="semi", maintain_order="left")
    if found.is_empty() or not members:
        return rows
    found = _whole(found)
    scores = _scores(found, members)
    chosen = _agreed(_chosen(scores), members)
    scores = _apart(scores, chosen, found)
    chosen |= _agreed(_chosen(scores), members)
    while more := _agreed(_left(scores, chosen, members), members):
        chosen |= more
    if not chosen:
        return rows
    names = [(rank, token, nth, group, len(groups[group])) for (rank, (token, nth)), group in chosen.items()]
    schema = {"rank": pl.Int32, "token": pl.String, "nth": pl.Int64, "name": pl.String, "members": pl.Int32}
    table = pl.DataFrame(names, schema=schema, orient="row")
    by_place = found.join(table, on=["rank", "token", "nth"]).select("row", "name", "members")
    # if all places of an operation are one group's, so are those in steps of which something was lost
    slots = found.select("rank", "token", "nth").unique().join(table, on=["rank", "token", "nth"], how="left")
    plain = slots.group_by("rank", "token").agg(
        pl.col("name").first(),
        pl.col("members").first(),
        one=(pl.col("name").n_unique() == 1) & pl.col("name").is_not_null().all(),
    )
    by_kind = rows.filter(unnamed).join(plain.filter("one"), on=["rank", "token"]).select("row", "name", "members")
    named = pl.concat([by_kind, by_place]).unique("row", keep="first")
    return _given(rows, named)


def _given(rows: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` with the group ``name`` of ``members`` ranks from `named`."""
    rows = rows.join(named, on="row", how="left", maintain_order="left")
    return rows.with_columns(
        group=pl.coalesce("name", "group"),
        channel=pl.coalesce("name", "channel"),
        size=pl.coalesce("members", "size"),
        trusted=pl.col("trusted") | pl.col("name").is_not_null(),
    ).drop("name", "members")


def _only(
    rows: pl.DataFrame, unnamed: pl.Expr, groups: Mapping[str, tuple[int, ...]], members: Mapping[str, tuple[int, ...]]
) -> pl.DataFrame:
    """Return `rows` with the group of ranks that have no other, nor have the others in it."""
    own: dict[int, list[str]] = {}
    for group, ranks in members.items():
        for rank in ranks:
            own.setdefault(rank, []).append(group)
    sole = [group for group, ranks in members.items() if all(len(own[rank]) == 1 for rank in ranks)]
    names = [(rank, group, len(groups[group])) for group in sole for rank in members[group]]
    table = pl.DataFrame(names, schema={"rank": pl.Int32, "name": pl.String, "members": pl.Int32}, orient="row")
    return _given(rows, rows.filter(unnamed).join(table, on="rank").select("row", "name", "members"))


def _whole(rows: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` with their place among equal ones (``nth``), of steps with most of them: others may lack some."""
    rows = rows.with_columns(
        nth=pl.int_range(pl.len()).over("rank", "step", "token"), count=pl.len().over("rank", "step", "token")
    )
    return rows.filter(pl.col("count") == pl.col("count").max().over("rank", "token")).drop("count")


def _scores(rows: pl.DataFrame, members: Mapping[str, tuple[int, ...]]) -> _Scores:
    """Return, for each rank and place, the scatter of ends and of arrivals among the ranks of each possible group."""
    of: dict[int, list[str]] = {}
    for group, ranks in members.items():
        for rank in ranks:
            of.setdefault(rank, []).append(group)
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
    observed = {
        (name, token, nth): (ends, starts)
        for name, token, nth, ends, starts, ranks in apart.iter_rows()
        if ranks == len(members[name])
    }
    doing = {token: set(ranks) for token, ranks in rows.group_by("token").agg("rank").iter_rows()}
    scores: _Scores = {}
    for rank, token, nth in rows.select("rank", "token", "nth").unique().sort("rank", "token", "nth").iter_rows():
        possible = [name for name in of.get(rank, ()) if doing[token].issuperset(members[name])]
        # a possible group that could not be measured counts as the best
        if possible and all((name, token, nth) in observed for name in possible):
            scores[rank, (token, nth)] = {name: observed[name, token, nth] for name in possible}
    return scores


def _scatter(difference: pl.Expr) -> pl.Expr:
    """Return how `difference` changes from step to step: drifting clocks do not scatter."""
    change = difference.sort_by("step").diff().drop_nulls()
    return (change - change.median()).abs()


def _chosen(scores: _Scores) -> dict[tuple[int, _Slot], str]:
    """Return the group of each rank's place by that rank's own evidence; empty if that is inconclusive."""
    choices = {place: _best(fits) for place, fits in scores.items()}
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
    return choices


def _agreed(
    choices: Mapping[tuple[int, _Slot], str], members: Mapping[str, tuple[int, ...]]
) -> dict[tuple[int, _Slot], str]:
    """Return those of `choices` that all ranks of the group make."""
    return {
        (rank, slot): group
        for (rank, slot), group in choices.items()
        if group and all(choices.get((other, slot)) == group for other in members[group])
    }


def _apart(scores: _Scores, chosen: Mapping[tuple[int, _Slot], str], rows: pl.DataFrame) -> _Scores:
    """Return `scores` without groups whose threads are all known, and are not those that executed the place."""
    lanes = {
        (rank, (token, nth)): set(observed)
        for rank, token, nth, observed in rows.filter(pl.col("device") < 0)
        .group_by("rank", "token", "nth")
        .agg("lane")
        .iter_rows()
    }
    serves: dict[tuple[int, str], set[int]] = {}
    for place, group in chosen.items():
        serves.setdefault((place[0], group), set()).update(lanes.get(place, ()))
    apart: _Scores = {}
    for (rank, slot), fits in scores.items():
        own = lanes.get((rank, slot))
        known = {group: serves.get((rank, group), set()) for group in fits}
        left = {g: fit for g, fit in fits.items() if not own or len(known[g]) < _THREADS or known[g] & own}
        if left:
            apart[rank, slot] = left
    return apart


def _left(
    scores: _Scores, chosen: Mapping[tuple[int, _Slot], str], members: Mapping[str, tuple[int, ...]]
) -> dict[tuple[int, _Slot], str]:
    """Return, for places without a group, the only one that no other rank's place contradicts."""
    found = {}
    for (rank, slot), fits in scores.items():
        if (rank, slot) in chosen:
            continue
        left = [one for one in fits if all(chosen.get((other, slot), one) == one for other in members[one])]
        if len(left) != 1:
            continue
        ends, starts = fits[left[0]]
        if ends <= _LOOSE * starts and ends <= _MARGIN * min(other for other, _ in fits.values()):
            found[rank, slot] = left[0]
    return found


def _best(fits: Mapping[str, tuple[float, float]]) -> str:
    """Return the group whose ends scatter least, empty where another fits as well."""
    best = min(fits, key=lambda group: (fits[group][0], group))
    ends, starts = fits[best]
    rivals = sum(other <= _MARGIN * ends for other, _ in fits.values()) - 1
    return best if not rivals and ends <= (_LOOSE if len(fits) > 1 else _TIGHT) * starts else ""
