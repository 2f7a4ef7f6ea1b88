"""Align clocks of ranks without numbered operations: each pair of equal operations of two ranks votes for an offset.

The true offset gets vote after vote, all others are scattered by the jitter of a real job. If a second one gets half as
many votes (a perfectly periodic job, shifted by one step) the rank is left out. Cost: per rank a fixed number of
voters, each paired with the equal operations of one other rank.

Ranks of one file have one clock and need no vote; ranks of one host have, if the votes agree, whatever the rival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from whystall.tools.ranks.job import Clocks
from whystall.tools.timeline.rank_data.tables import file_of

_SCALES_NS = (20_000, 100_000, 500_000, 2_000_000)
"""Offsets so close are one: the precision of ends is not known beforehand."""
_VOTERS = 32
"""Neighbours in time: meanwhile clocks do not drift apart by a scale."""
_PLACES = (1 / 2, 1 / 4, 3 / 4)
"""Positions in a capture where voters are taken: the other's may have begun later or ended earlier."""
_VOTES, _SHARE, _RIVAL = 6, 0.25, 0.5
"""An offset needs so many votes, from this share of the voters; another may have at most this share of its votes."""
_ROUNDS = 6
"""Ranks that share nothing with the first are reached through others; it stops after so many rounds, or after one that
places no rank."""
_USUAL = 0.9
"""The offset of the same clock is preferred if it has this share of the votes of the best one."""
_ONE_CLOCK_NS = 4_000.0
"""The residual of two ranks on one clock: ends in reports of Nsight Systems are at most 22 us apart (`by_time` accepts
six residuals)."""
_FIT = 12
"""Operations for estimating the speed of a clock."""

_LAID = pl.Schema({"row": pl.get_index_type(), "at": pl.Int64, "residual": pl.Float64})
_LINES = pl.Schema(
    {"rank": pl.Int32, "to": pl.Int32, "offset": pl.Int64, "slope": pl.Float64, "origin": pl.Int64, "within": pl.Int64}
)


def laid(rows: pl.DataFrame, ranks: list[int], clocks: Clocks, source: ClockSource) -> pl.DataFrame:
    """Return the ends of `rows` (``row``, `rank`, `token`, `end_ns`) on one clock (``at``), each with its rank's
    ``residual``.

    Ranks in `clocks` are on it already; of the others, those in `ranks` are placed if possible. The rest is absent.
    """
    known = {rank: float(residual) for rank, residual in clocks.residual_ns.items()}
    placed = rows.with_columns(at=clocks.common("end_ns")).drop_nulls("at")
    if not known:
        root = int(rows.group_by("rank").len().sort("len", "rank", descending=[True, False])["rank"][0])
        known[root] = 0.0
        placed = rows.filter(pl.col("rank") == root).with_columns(at=pl.col("end_ns"))
    shares = rows.group_by("token", "rank").len()
    asked: set[tuple[int, int]] = set()
    for _ in range(_ROUNDS):
        together = source.of_one_file(set(ranks) - known.keys(), known)
        if together:
            placed = pl.concat([placed, _beside(rows, placed, together).select(placed.columns)])
            known |= {rank: max(known[to], _ONE_CLOCK_NS) for rank, to in together}
        pairs = _pairs(shares, set(ranks) - known.keys(), set(known), asked)
        if not pairs:
            break
        asked |= set(pairs)
        lines = _voted(rows, placed, pairs, source.of_one_host(pairs))
        if lines.is_empty():
            break
        new, residuals = _tracked(rows, placed, lines)
        known |= {rank: max(residual, known[to]) for rank, to, residual in residuals.iter_rows()}
        placed = pl.concat([placed, new.select(placed.columns)])
    residual = pl.col("rank").replace_strict(known, return_dtype=pl.Float64)
    return placed.select("row", "at", residual=residual).cast(_LAID)


@dataclass(frozen=True)
class ClockSource:
    """Which ranks have one clock: by rank, the ``file`` that holds several of them, and the ``host`` whose clock its
    instants are of; ranks without are absent."""

    file: Mapping[int, str]
    host: Mapping[int, str]

    @classmethod
    def of(cls, ranks: pl.DataFrame) -> ClockSource:
        """Return those of the table ``ranks``."""
        file, host = {}, {}
        for rank, path, clock, name in ranks.select("rank", "path", "clock", "host").iter_rows():
            whole, number = file_of(path)
            if number is not None:
                file[rank] = whole
            if clock == "real" and name:
                host[rank] = name
        return cls(file, host)

    def of_one_file(self, left: Iterable[int], known: Iterable[int]) -> list[tuple[int, int]]:
        """Return for the ranks in `left` one of `known` from the same file."""
        holder = {self.file[rank]: rank for rank in known if rank in self.file}
        return [(rank, holder[file]) for rank in sorted(left) if (file := self.file.get(rank)) in holder]

    def together(self, ranks: Iterable[int]) -> bool:
        """Return whether all of `ranks` have one clock."""
        clocks = {self.file.get(rank) or self.host.get(rank) or rank for rank in ranks}
        return len(clocks) == 1

    def of_one_host(self, pairs: Iterable[tuple[int, int]]) -> list[int]:
        """Return the first rank of each of `pairs` of one host."""
        return [rank for rank, to in pairs if rank in self.host and self.host[rank] == self.host.get(to)]


def _beside(rows: pl.DataFrame, placed: pl.DataFrame, together: list[tuple[int, int]]) -> pl.DataFrame:
    """Return the rows of ranks with the clock of another one, as far from it as that one is."""
    pairs = pl.DataFrame(together, schema={"rank": pl.Int32, "to": pl.Int32}, orient="row")
    unplaced = rows.join(pairs, on="rank").sort("end_ns")
    return unplaced.join_asof(
        _offsets(placed), on="end_ns", by="to", strategy="nearest", check_sortedness=False
    ).with_columns(at=pl.col("end_ns") + pl.col("offset"))


def _offsets(placed: pl.DataFrame) -> pl.DataFrame:
    """Return, at each end, what was added to the clock of its rank (``to``)."""
    return placed.select("end_ns", to="rank", offset=pl.col("at") - pl.col("end_ns")).sort("end_ns")


def _pairs(shares: pl.DataFrame, left: set[int], known: set[int], asked: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """For each rank in `left`, return the rank in `known`, not tried before, with the most operations like its own."""
    unplaced = shares.filter(pl.col("rank").is_in(list(left)))
    reference = shares.filter(pl.col("rank").is_in(list(known))).rename({"rank": "to"})
    common = (
        unplaced.join(reference, on="token")
        .group_by("rank", "to")
        .agg(both=pl.min_horizontal("len", "len_right").sum())
        .sort("rank", "both", "to", descending=[False, True, False])
    )
    best: dict[int, int] = {}
    for rank, to, _ in common.iter_rows():
        if (rank, to) not in asked:
            best.setdefault(rank, to)
    return list(best.items())


def _voted(
    rows: pl.DataFrame, placed: pl.DataFrame, pairs: list[tuple[int, int]], of_one_host: list[int]
) -> pl.DataFrame:
    """Return the offset (`_LINES`) that each of `pairs` agrees on; ``usual``: that of the other's clock, for ranks of
    one host."""
    usual = _offsets(placed).group_by("to").agg(usual=pl.col("offset").median().cast(pl.Int64))
    open_ = pl.DataFrame(pairs, schema={"rank": pl.Int32, "to": pl.Int32}, orient="row")
    reference = placed.select("token", "at", to="rank")
    shared = reference.select("token", "to").unique()
    found = [_LINES.to_frame()]
    for place in _PLACES:
        unplaced = rows.join(open_, on="rank").join(shared, on=["token", "to"], how="semi")
        first = (pl.len().over("rank") * place - _VOTERS // 2).clip(0)
        index = pl.int_range(pl.len()).over("rank", order_by="end_ns")
        voters = unplaced.filter((index >= first) & (index < first + _VOTERS)).select(
            "row", "rank", "to", "token", "end_ns"
        )
        votes = voters.join(reference, on=["token", "to"]).with_columns(offset=pl.col("at") - pl.col("end_ns"))
        votes = votes.join(usual, on="to").with_columns(usual=pl.when(pl.col("rank").is_in(of_one_host)).then("usual"))
        for scale in _SCALES_NS:
            found.append(_elected(votes, scale))
            votes = votes.join(found[-1], on="rank", how="anti")
        open_ = open_.join(pl.concat(found), on="rank", how="anti")
    return pl.concat(found)


def _elected(votes: pl.DataFrame, scale: int) -> pl.DataFrame:
    """Return the offset that most voters name within `scale`, for the ranks where it has no rival."""
    # two sets of bins, half a bin apart: votes on both sides of a border are together in one of them
    shifted = [votes.with_columns(bin=(pl.col("offset") + half) // scale, half=half) for half in (0, scale // 2)]
    bins = (
        pl.concat(shifted, how="vertical_relaxed")
        .group_by("rank", "to", "half", "bin")
        .agg(count=pl.col("row").n_unique(), offset=pl.col("offset").mean(), origin=pl.col("end_ns").mean())
    )
    usual = votes.group_by("rank").agg(pl.col("usual").first())
    bins = bins.join(usual, on="rank").with_columns(
        known=((pl.col("offset") - pl.col("usual")).abs() <= scale).fill_null(value=False)
        & (pl.col("count") >= _USUAL * pl.col("count").max().over("rank"))
    )
    order = bins.sort("known", "count", "offset", descending=[True, True, False])
    best = order.group_by("rank", maintain_order=True).first()
    best = best.join(votes.group_by("rank").agg(voters=pl.col("row").n_unique()), on="rank")
    rivals = (
        bins.join(best.select("rank", won="offset"), on="rank")
        .filter((pl.col("offset") - pl.col("won")).abs() > 1.5 * scale)
        .group_by("rank")
        .agg(rival=pl.col("count").max())
    )
    best = best.join(rivals, on="rank", how="left").with_columns(pl.col("rival").fill_null(0))
    best = best.filter(
        (pl.col("count") >= _VOTES)
        & (pl.col("count") >= _SHARE * pl.col("voters"))
        & (pl.col("known") | (pl.col("rival") <= _RIVAL * pl.col("count")))
    )
    return best.select("rank", "to", "offset", slope=0.0, origin="origin", within=2 * scale).cast(_LINES)


def _tracked(rows: pl.DataFrame, placed: pl.DataFrame, lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Follow each line from the voters to both ends of the capture, and fit its slope.

    Returns the rows of these ranks with ``at``, and (rank, to, residual).
    """
    reference = placed.join(lines.select("rank", "to"), left_on="rank", right_on="to", how="semi")
    reference = reference.select("token", "at", to="rank").sort("at")
    unplaced = rows.join(lines.select("rank"), on="rank", how="semi")
    predicted = pl.col("end_ns") + pl.col("offset") + (pl.col("slope") * pl.col("x")).round().cast(pl.Int64)
    reach, residuals = 2_000_000_000, pl.DataFrame()
    furthest = int(unplaced.select(pl.col("end_ns").max() - pl.col("end_ns").min()).item())
    while True:
        near = unplaced.join(lines, on="rank").with_columns(x=pl.col("end_ns") - pl.col("origin"))
        near = near.filter(pl.col("x").abs() <= reach).with_columns(at=predicted).sort("at")
        other = reference.with_columns(other=pl.col("at"))
        both = near.join_asof(
            other, on="at", by=["token", "to"], strategy="nearest", check_sortedness=False
        ).with_columns(rest=(pl.col("other") - pl.col("at")).cast(pl.Float64), x=pl.col("x").cast(pl.Float64))
        both = both.filter(pl.col("rest").abs() <= pl.col("within"))
        steep = pl.when(pl.len() >= _FIT).then(pl.cov("x", "rest") / pl.col("x").var()).otherwise(0.0)
        fits = both.group_by("rank").agg(
            steep=steep.fill_nan(0.0).fill_null(0.0),
            level=pl.col("rest").median(),
            residual=(pl.col("rest") - pl.col("rest").median()).abs().median(),
        )
        residuals = lines.join(fits, on="rank").select("rank", "to", "residual")
        lines = lines.join(fits, on="rank").with_columns(
            offset=pl.col("offset") + pl.col("level").round().cast(pl.Int64), slope=pl.col("slope") + pl.col("steep")
        )
        lines = lines.select(_LINES.names())
        if reach >= furthest:
            break
        reach *= 2
    unplaced = unplaced.join(lines, on="rank").with_columns(x=pl.col("end_ns") - pl.col("origin"))
    return unplaced.with_columns(at=predicted), residuals
