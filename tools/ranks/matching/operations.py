"""Match operations between ranks: the rows of one job become instances.

Keys, best first: the group and the library's own sequence number; the group, the step and the place among equal
operations of the step; without steps, the place in the group's sequence, where one clock confirms it; the end, on
aligned clocks (`matching.by_time`). A match must agree in what both sides know of
it (operation, bytes, dtype), and if two are equally good there is none. Cost is linear in the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.job import MATCHED, Clocks, Job
from whystall.tools.ranks.matching.by_time import LINKS, by_time
from whystall.tools.ranks.matching.clock_offsets import estimate
from whystall.tools.ranks.matching.clock_votes import ClockSource
from whystall.tools.ranks.matching.groups import inferred
from whystall.tools.timeline.collectives import POINT_TO_POINT, SYNCHRONISING, group_key

_I, _N, _S = pl.Int64, pl.Int32, pl.String
# Ranks may have different payloads in the others, and a barrier's is arbitrary.
_SIZED = (SYNCHRONISING | POINT_TO_POINT | {"broadcast"}) - {"barrier"}
_USUAL = 0.9
"""Equal operations of a step are taken in their order if no step has more of them, or this share of all steps has as
many: elsewhere some may have been lost, and which is not known."""
_CONFIRMED = 0.95
"""Operations are matched by their place in the sequence if at least so many of each rank end nearer to the others' at
that place than to those before and after it."""
_TOGETHER, _APART = 0.2, 0.05
"""A group of unknown members is accepted if its ranks leave together: the scatter of their ends is at most this share
of that of their arrivals, and in at most that share of its operations a rank arrived after another had left."""


@dataclass(frozen=True)
class Matched:
    """`frame`: `job.MATCHED`. `counts`: ``operations`` (instances), ``partial`` (those not on all ranks of their
    group), ``rows``, ``matched`` (rows), and unmatched rows by reason: ``alone`` (no other rank has it: lost, or
    outside of its capture), ``mismatch`` (same number, different operation), ``ambiguous`` (several matches are equally
    good), ``group_unknown`` (the participants are unknown), ``unfinished``, ``single`` (a group of one). ``inferred``:
    rows whose group the traces do not name."""

    frame: pl.DataFrame
    counts: dict[str, int]


def match(job: Job) -> Matched:
    """Find the operations that several ranks of `job` recorded."""
    rows, groups, names = _prepared(job)
    unfinished = job.table("collectives").height - rows.height
    unnamed = rows.filter(pl.col("group") == "").height
    rows = inferred(rows, groups)
    unnamed -= rows.filter(pl.col("group") == "").height
    single = rows.filter(pl.col("size") == 1)
    rows = rows.filter(pl.col("size") != 1)
    links, mismatched = _by_seq(rows)
    rest = rows.join(links, on="row", how="anti").join(mismatched, on="row", how="anti")
    source = ClockSource.of(job.table("ranks"))
    unnumbered = rest.filter(~pl.col("numbered"))
    links = pl.concat([links, _by_order(unnumbered, job), _by_sequence(unnumbered, source)])
    links, doubtful = _believed(rows, links, groups.values(), len(job.missing))
    rest = rows.join(links, on="row", how="anti").join(mismatched, on="row", how="anti")
    # With a sequence number, no other rank's row can be the same operation: it is alone, or its group is unclear.
    rest = rest.filter(~pl.col("numbered") | pl.col("channel").is_in(doubtful))
    timed, ambiguous = by_time(rows, rest, estimate(_frame(rows, links)), source, groups.values())
    links = pl.concat([links, timed])
    frame = _named(_frame(rows, links, estimate(_frame(rows, links))), names)
    lost = rows.join(links, on="row", how="anti").join(mismatched, on="row", how="anti")
    why = pl.when(pl.col("row").is_in(ambiguous.implode())).then(
        pl.when(pl.col("trusted")).then(pl.lit("ambiguous")).otherwise(pl.lit("group_unknown"))
    )
    reasons = dict(lost.select(why.otherwise(pl.lit("alone")).value_counts().alias("n")).unnest("n").iter_rows())
    counts = {
        "operations": frame["instance"].n_unique(),
        "partial": frame.filter(pl.col("present") < pl.col("size"))["instance"].n_unique(),
        "rows": rows.height + single.height + unfinished,
        "matched": frame.height,
        "mismatch": mismatched.height,
        "unfinished": unfinished,
        "single": single.height,
        "inferred": unnamed,
    }
    return Matched(frame, counts | {why: reasons.get(why, 0) for why in ("alone", "ambiguous", "group_unknown")})


def _prepared(job: Job) -> tuple[pl.DataFrame, dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the job's operations with ``channel`` (which orders them: a group, or a pair within it), ``token`` (what
    both sides must agree on), and their group's ``size`` and whether its ranks are known (``trusted``). Also the ranks
    of groups that list them, and the names of groups: 512 ranks make a long one, so `rows` hold short ones."""
    rows = job.table("collectives").with_row_index("row").filter(pl.col("end_ns") > 0)
    codes = pl.concat([rows.select("group"), job.table("groups").select("group")])
    codes = codes.unique(maintain_order=True).with_row_index("code")
    code = pl.when(pl.col("group") != "").then(pl.format("g{}", "code")).otherwise(pl.lit(""))
    codes = codes.with_columns(code=code)
    rows = rows.join(codes, on="group").drop("group").rename({"code": "group"}).sort("row")
    listed = job.table("groups").join(codes, on="group").drop("group").rename({"code": "group"})
    pair = pl.col("op").is_in(POINT_TO_POINT) & (pl.col("peer") >= 0)
    low, high = pl.min_horizontal("rank", "peer"), pl.max_horizontal("rank", "peer")
    ends = (
        pl.when(pl.col("op") == "send")
        .then(pl.format("{}>{}", "rank", "peer"))
        .when(pl.col("op") == "recv")
        .then(pl.format("{}>{}", "peer", "rank"))
        .otherwise(pl.format("{}-{}", low, high))
    )
    rows = rows.with_columns(pair=pair).with_columns(
        channel=pl.when("pair").then(pl.format("{}\x1f{}", "group", ends)).otherwise(pl.col("group"))
    )
    known = pl.col("op").is_in(_SIZED)
    rows = rows.with_columns(
        # one side without it is enough: then it is not compared
        _bytes=pl.when(known & (pl.col("bytes").min().over("channel", "op") >= 0)).then("bytes").otherwise(-1),
        _dtype=pl.when((pl.col("dtype") != "").all().over("channel", "op")).then("dtype").otherwise(pl.lit("")),
        _op=pl.when("pair").then(pl.lit("pair")).otherwise("op"),
    ).with_columns(token=pl.format("{}/{}/{}", "_op", "_bytes", "_dtype"))
    groups = (
        listed.sort(pl.col("ranks").list.len(), descending=True)
        .group_by("group")
        .agg(members=pl.col("ranks").first(), listed=pl.col("size").max())
    )
    holders = rows.group_by("group").agg(holders=pl.col("rank").n_unique())
    rows = rows.join(groups, on="group", how="left").join(holders, on="group", how="left")
    count = pl.col("members").list.len().cast(_N)
    rows = rows.with_columns(
        trusted=pl.col("pair")
        | (
            (pl.col("group") != "") & ((count > 0) | ((pl.col("listed") > 0) & (pl.col("holders") <= pl.col("listed"))))
        ).fill_null(value=False),
        size=pl.when("pair")
        .then(2)
        .otherwise(
            pl.when(count > 0)
            .then(count)
            .when(pl.col("listed") > 0)
            .then("listed")
            .otherwise(pl.col("holders").cast(_N) + len(job.missing))
        ),
    )
    stated = {group: tuple(ranks) for group, ranks in groups.select("group", "members").iter_rows() if ranks}
    # a number counts within its group; without a group it is meaningless to other ranks
    rows = rows.with_columns(numbered=(pl.col("seq") >= 0) & (pl.col("group") != "") & ~pl.col("pair"))
    return (
        rows.drop("_bytes", "_dtype", "_op", "members", "holders"),
        stated,
        dict(codes.select("code", "group").iter_rows()),
    )


def _by_seq(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return rows with the same number in the same group; and rows whose numbers agree while their operations differ.

    Numbers of point-to-point operations are each rank's own count. Operations that were enqueued as one share a number:
    they are distinguished by their order.
    """
    numbered = rows.filter(pl.col("numbered")).sort("start_ns", "row")
    numbered = numbered.with_columns(nth=pl.int_range(pl.len()).over("rank", "channel", "seq"))
    key = ["channel", "seq", "nth"]
    each = pl.len().over("channel", "seq", "rank")
    numbered = numbered.with_columns(
        ranks=pl.len().over(key),
        kinds=pl.col("token").n_unique().over(key),
        least=each.min().over("channel", "seq"),
        most=each.max().over("channel", "seq"),
    )
    odd = (pl.col("ranks") > 1) & ((pl.col("kinds") > 1) | (pl.col("least") < pl.col("most")))
    good = numbered.filter((pl.col("ranks") > 1) & ~odd)
    links = good.select(
        "row", key=pl.format("s\x1f{}\x1f{}\x1f{}", *key), how=pl.lit("seq"), group="group", size="size"
    )
    return links, numbered.filter(odd).select("row")


def _by_order(rows: pl.DataFrame, job: Job) -> pl.DataFrame:
    """Return rows at the same place among equal operations of the same step, where nothing can have been lost."""
    rows = rows.filter(pl.col("step") >= 0).sort("start_ns", "row")
    counts = rows.group_by("channel", "token", "step", "rank").agg(count=pl.len())
    of = ["channel", "token"]
    counts = counts.with_columns(
        most=pl.col("count").max().over(of), share=pl.len().over(*of, "count") / pl.len().over(of)
    )
    traced = job.table("steps").filter(pl.col("step") >= 0).select("rank", "step").unique()
    expected = rows.select("channel", "rank").unique().join(traced, on="rank")
    expected = expected.group_by("channel", "step").agg(expected=pl.len())
    whole = (
        counts.group_by(*of, "step")
        .agg(
            kinds=pl.col("count").n_unique(),
            ranks=pl.len(),
            usual=((pl.col("count") == pl.col("most")) | (pl.col("share") >= _USUAL)).all(),
        )
        .join(expected, on=["channel", "step"])
        .filter(
            (pl.col("kinds") == 1) & (pl.col("ranks") == pl.col("expected")) & (pl.col("ranks") > 1) & pl.col("usual")
        )
    )
    rows = rows.join(whole.select(*of, "step"), on=[*of, "step"], how="semi", maintain_order="left")
    nth = pl.int_range(pl.len()).over("channel", "step", "rank", "token")
    return rows.with_columns(nth=nth).select(
        "row",
        key=pl.format("o\x1f{}\x1f{}\x1f{}\x1f{}", "channel", "step", "token", "nth"),
        how=pl.lit("order"),
        group="group",
        size="size",
    )


def _by_sequence(rows: pl.DataFrame, source: ClockSource) -> pl.DataFrame:
    """Return rows without steps at the same place in the same sequence of operations of their group, on ranks of one
    clock: a rank whose capture began an operation later ends each of them an operation later, too."""
    rows = rows.filter((pl.col("step") < 0) & pl.col("trusted") & ~pl.col("pair")).sort("end_ns", "row")
    rows = rows.with_columns(nth=pl.int_range(pl.len()).over("channel", "rank"))
    found = [LINKS.to_frame()]
    for (channel,), part in rows.group_by("channel", maintain_order=True):
        ranks = part["rank"].unique().to_list()
        if len(ranks) < 2 or part.group_by("rank").agg("token")["token"].n_unique() > 1 or not source.together(ranks):
            continue
        usual = part.group_by("nth").agg(at=pl.col("end_ns").median()).sort("nth")
        usual = usual.with_columns(before=pl.col("at").shift(1), after=pl.col("at").shift(-1))
        apart = {name: (pl.col("end_ns") - pl.col(name)).abs() for name in ("at", "before", "after")}
        nearest = apart["at"] < pl.min_horizontal(apart["before"], apart["after"])
        confirmed = part.join(usual, on="nth").group_by("rank").agg(share=nearest.mean())["share"].min()
        if isinstance(confirmed, float) and confirmed >= _CONFIRMED:
            key = pl.format("q\x1f{}\x1f{}", pl.lit(channel), "nth")
            found.append(part.select("row", key=key, how=pl.lit("order"), group="group", size="size"))
    return pl.concat(found)


def _believed(
    rows: pl.DataFrame, links: pl.DataFrame, groups: Iterable[tuple[int, ...]], missing: int
) -> tuple[pl.DataFrame, list[str]]:
    """Return `links` without those of groups whose members are not listed and whose ranks do not leave together, and
    the channels of these. Confirmed members become the group's name; any of the `missing` ranks may be one."""
    unproven = rows.filter(~pl.col("trusted")).drop("group", "size")
    doubted = links.join(unproven, on="row")
    if doubted.is_empty():
        return links, []
    sure = links.join(unproven, on="row", how="anti")
    crowd = rows.group_by("channel").agg(pl.col("rank").unique(), pl.col("listed").max().fill_null(-1))
    stated = [set(ranks) for ranks in groups if len(ranks) > 1]
    crowded = {
        channel
        for channel, ranks, listed in crowd.iter_rows()
        # it may be several groups of one name, or any of those in it
        if 0 < listed < len(ranks) or (not channel and any(one < set(ranks) for one in stated))
    }
    good = [one for one in _leave_together(doubted, estimate(_frame(rows, sure))) if one not in crowded]
    bad = doubted.filter(~pl.col("channel").is_in(good))["channel"].unique().to_list()
    if not good:
        return sure, bad
    kept = doubted.filter(pl.col("channel").is_in(good))
    members = kept.group_by("group").agg(pl.col("rank").unique().sort())
    ranks = {group: tuple(found) for group, found in members.iter_rows()}
    names = {group: group_key(group, found) for group, found in ranks.items()}
    sizes = {group: len(found) + missing for group, found in ranks.items()}
    renamed = kept.select(
        "row",
        "key",
        "how",
        group=pl.col("group").replace_strict(names, return_dtype=_S),
        size=pl.col("group").replace_strict(sizes, return_dtype=_N),
    )
    return pl.concat([sure, renamed]), bad


def _leave_together(doubted: pl.DataFrame, clocks: Clocks) -> list[str]:
    """Return the channels of which no rank leaves at another time than the first does; on `clocks` if these are known,
    else on clocks that make the ends agree, which proves less."""
    first = doubted.filter((pl.col("rank") == pl.col("rank").min().over("channel")) & pl.col("op").is_in(SYNCHRONISING))
    beside = doubted.join(
        first.select("key", zero_rank="rank", zero_start="start_ns", zero_end="end_ns"), on="key"
    ).with_columns(
        start=pl.col("start_ns") - pl.col("zero_start"),
        end=pl.col("end_ns") - pl.col("zero_end"),
        known=clocks.common("end_ns") - clocks.common("zero_end", "zero_rank"),
    )
    by = ["channel", "rank"]
    offset = pl.coalesce(pl.col("end") - pl.col("known"), pl.col("end").median().over(by).cast(_I))
    beside = beside.with_columns(offset=offset)
    scatter = (
        beside.filter(pl.col("rank") != pl.col("zero_rank"))
        .group_by(by)
        .agg(
            ends=(pl.col("end") - pl.col("end").median()).abs().median(),
            starts=(pl.col("start") - pl.col("start").median()).abs().quantile(0.9),
        )
    )
    scattered = scatter.filter(pl.col("ends") > _TOGETHER * pl.col("starts"))["channel"].unique()
    each = beside.group_by("channel", "key").agg(
        gap=(pl.col("start_ns") - pl.col("offset")).max() - (pl.col("end_ns") - pl.col("offset")).min()
    )
    apart = each.group_by("channel").agg(share=(pl.col("gap") > 0).mean()).filter(pl.col("share") > _APART)["channel"]
    channels = set(beside["channel"].unique().to_list())
    return sorted(channels - set(scattered.to_list()) - set(apart.to_list()))


def _named(frame: pl.DataFrame, names: dict[str, str]) -> pl.DataFrame:
    """Return `frame` with the groups' own names instead of the short ones; inferred ranks follow the name."""
    short = frame.select("group").unique()["group"].to_list()
    full = {group: names[group.partition("|")[0]] + "".join(group.partition("|")[1:]) for group in short}
    return frame.with_columns(pl.col("group").replace_strict(full, return_dtype=_S))


def _frame(rows: pl.DataFrame, links: pl.DataFrame, clocks: Clocks | None = None) -> pl.DataFrame:
    """Return `links` with all columns of the rows, as `MATCHED`; instances numbered by their ends on `clocks`."""
    found = rows.drop("group", "size").join(links, on="row").with_columns(present=pl.len().over("key").cast(_N))
    at = clocks.common("end_ns") if clocks else pl.col("end_ns")
    order = found.group_by("key").agg(at=at.median(), first=pl.col("row").min())
    order = order.sort("at", "first", nulls_last=True).with_row_index("instance")
    steps = (
        found.filter(pl.col("step") >= 0)
        .group_by("key", "step")
        .len()
        .sort("len", "step", descending=[True, False])
        .group_by("key", maintain_order=True)
        .agg(most=pl.col("step").first())
    )
    found = found.join(order, on="key").join(steps, on="key", how="left")
    found = found.with_columns(step=pl.col("most").fill_null(-1))
    return found.select(pl.col(name).cast(dtype) for name, dtype in MATCHED.items()).sort("instance", "rank")
