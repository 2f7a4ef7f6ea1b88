"""Classify why an accused rank is slow, by its time between collectives compared with the median of its innocent peers.

Independent of the votes: it uses the rank's operators, gaps, loader and launches, not the duration of collectives. A
class is given when one part makes up most (`MOST`) of the extra time; else the rank is slow for an unknown reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from whystall.tools.ranks.slow_node_check.tables import EvidenceRow, SlowClass
from whystall.tools.ranks.statistics import probability
from whystall.tools.timeline.rank_data.tables import BLOCKED, OPERATORS

# More than half, with room for the noise of both parts.
MOST = 0.6
# The loader, or being blocked, explains a gap if it makes up this part of it.
_EXPLAINS = 0.5
# Holistic Trace Analysis and msprof-analyze both call a launch with a longer delay than this a long one: then the
# device had work queued, and the host was not late.
LONG_LAUNCH_NS = 100_000
# An operator is named when it makes up a fifth of the extra time.
_NAMED = 0.2
_SHOWN = 3
_DEVICE = ("kernel", "memcpy", "memset")
_PARTS = ("own_ns", "wait_ns", "compute_ns", "gap_ns", "loader_ns")


@dataclass(frozen=True)
class Kind:
    """The class of a rank. `excess_ms` and `rank_ms`, `peers_ms` by part (own, wait, compute, gap, loader), per step;
    unknown parts are missing. `name`: the operator, or the loader, that causes most of it."""

    slow_class: SlowClass
    name: str
    evidence: list[EvidenceRow] = field(default_factory=list)
    rank_ms: dict[str, float] = field(default_factory=dict)
    peers_ms: dict[str, float] = field(default_factory=dict)

    def excess_ms(self, part: str) -> float:
        """Return how much longer `part` takes than with its peers; 0 when not known."""
        return self.rank_ms.get(part, 0.0) - self.peers_ms.get(part, 0.0)


def classify(rows: pl.DataFrame, operators: pl.DataFrame, rank: int, innocent: Sequence[int], steps: int) -> Kind:
    """Return the class of `rank` from `rows` of `OWN`, of the steps in which it is slow, and from `OPERATORS`, of all
    `steps`."""
    of_rank, peers = _parts(rows.filter(pl.col("rank") == rank)), _middle_parts(rows, innocent)
    kind = Kind("unattributed", "", [], of_rank, {part: ns for part, ns in peers.items() if part in of_rank})
    shown = [part for part in ("own", "wait", "compute", "gap") if part in kind.peers_ms]
    evidence = [_row("own_time" if p == "own" else p, "", kind.rank_ms[p], kind.peers_ms[p]) for p in shown]
    extra = kind.excess_ms("own")
    if "compute" not in kind.peers_ms or extra <= 0:
        return Kind("unattributed", "", evidence, kind.rank_ms, kind.peers_ms)
    if kind.excess_ms("compute") >= MOST * extra:
        names = slower_operators(operators, rank, innocent, max(1, steps))
        name = names[0].name if names else ""
        return Kind("compute_slow", name, evidence + names, kind.rank_ms, kind.peers_ms)
    if kind.excess_ms("gap") >= MOST * extra:
        slow_class, name, more = _gap(rows, operators, rank, innocent, kind)
        return Kind(slow_class, name, evidence + more, kind.rank_ms, kind.peers_ms)
    return Kind("unattributed", "", evidence, kind.rank_ms, kind.peers_ms)


def _parts(rows: pl.DataFrame) -> dict[str, float]:
    """Return trimmed means in ms per step; parts that are not known in every step are left out."""
    return {
        part.removesuffix("_ns"): probability.trimmed_mean(rows[part].to_list()) / 1e6
        for part in _PARTS
        if rows.height and float(str(rows[part].min())) >= 0
    }


def _middle_parts(rows: pl.DataFrame, ranks: Sequence[int]) -> dict[str, float]:
    """Return the same of the median rank of `ranks`, step by step."""
    middle = rows.filter(pl.col("rank").is_in(list(ranks))).group_by("step").agg(pl.col(_PARTS).median())
    return _parts(middle.with_columns(pl.col(_PARTS).fill_null(-1)))


def _gap(
    rows: pl.DataFrame, operators: pl.DataFrame, rank: int, innocent: Sequence[int], kind: Kind
) -> tuple[SlowClass, str, list[EvidenceRow]]:
    """Return the class of a rank with longer gaps, the name of its loader if that causes them, and the evidence."""
    evidence: list[EvidenceRow] = []
    slow_class: SlowClass = "host_slow"
    name = ""
    if "loader" in kind.peers_ms:
        evidence.append(_row("loader", "", kind.rank_ms["loader"], kind.peers_ms["loader"]))
        if kind.excess_ms("loader") >= _EXPLAINS * kind.excess_ms("gap"):
            slow_class, name = "loader_slow", _loader(operators, rank)
    of_rank_ms, peers_ms = _blocked_ms(operators, [rank]), _blocked_ms(operators, innocent)
    if of_rank_ms and peers_ms:
        steps = max(1, rows.filter(pl.col("rank") == rank).height)
        mine, usual = of_rank_ms[0] / steps, probability.median(peers_ms) / steps
        evidence.append(_row("blocked", "", mine, usual))
        if mine - usual >= _EXPLAINS * kind.excess_ms("gap"):  # its program waits, for what was not recorded
            return "unattributed", "", evidence
    launch = pl.col("launch_delay_ns")
    known = rows.filter(launch >= 0)
    of_rank = known.filter(pl.col("rank") == rank)["launch_delay_ns"].to_list()
    others = known.filter(pl.col("rank").is_in(list(innocent)))["launch_delay_ns"].to_list()
    if not of_rank or not others:
        return slow_class, name, evidence
    delay, usual = probability.median(of_rank), probability.median(others)
    evidence.append(EvidenceRow(what="launch_delay", mine=delay / 1e3, peers=usual / 1e3, unit="us"))
    # the device was idle although its work had been queued: the gap is not caused by the host
    late = delay <= max(LONG_LAUNCH_NS, 2 * usual)
    return slow_class if late else "unattributed", name, evidence


def _blocked_ms(operators: pl.DataFrame, ranks: Sequence[int]) -> list[float]:
    """Return for how long those of `ranks` were blocked of which that is known, in ms of all steps."""
    rows = operators.filter((pl.col("kind") == BLOCKED) & pl.col("rank").is_in(list(ranks)))
    return [total_ns / 1e6 for total_ns in rows["total_ns"].to_list()]


def _loader(operators: pl.DataFrame, rank: int) -> str:
    rows = operators.filter((pl.col("rank") == rank) & (pl.col("kind") == "loader")).sort("total_ns", descending=True)
    return str(rows["name"][0]) if rows.height else "DataLoader"


def slower_operators(operators: pl.DataFrame, rank: int, innocent: Sequence[int], steps: int) -> list[EvidenceRow]:
    """Return the operators (kernels, if there are any) that make most of the extra time of `rank`, the most first;
    those that run more often than with the peers with their counts."""
    kinds = _DEVICE if operators.filter(pl.col("kind").is_in(_DEVICE)).height else ("operator",)
    table = operators.filter(pl.col("kind").is_in(kinds))
    compared = _compared(table, rank, innocent).filter(pl.col("more") > 0)
    whole = float(compared["more"].sum())
    named = compared.filter(pl.col("more") >= _NAMED * whole).head(_SHOWN)
    if named.is_empty():
        named = compared.head(1)
    evidence: list[EvidenceRow] = []
    for row in named.iter_rows(named=True):
        evidence.append(_row("operator", row["name"], row["total_ns"] / 1e6 / steps, row["usual_ns"] / 1e6 / steps))
        if row["count"] > 1.1 * row["usual_count"]:
            of_rank, peers = row["count"] / steps, row["usual_count"] / steps
            evidence.append(
                EvidenceRow(what="operator_count", name=row["name"], mine=of_rank, peers=peers, unit="count")
            )
    return evidence


def _compared(table: pl.DataFrame, rank: int, innocent: Sequence[int]) -> pl.DataFrame:
    """Return each operator of `rank` and its median over `innocent` (0 where most of them do not have it)."""
    names = ["kind", "name"]
    of_rank = table.filter(pl.col("rank") == rank)
    usual = pl.concat(
        # a rank without an operator spends no time in it
        of_rank.select(names)
        .join(table.filter(pl.col("rank") == other), on=names, how="left")
        .select(*names, pl.col("total_ns").fill_null(0), pl.col("count").fill_null(0))
        for other in innocent
    ).group_by(names)
    middle = usual.agg(usual_ns=pl.col("total_ns").median(), usual_count=pl.col("count").median())
    joined = of_rank.select(list(OPERATORS)).join(middle, on=names)
    return joined.with_columns(more=pl.col("total_ns") - pl.col("usual_ns")).sort(
        "more", "name", descending=[True, False]
    )


def _row(what: str, name: str, of_rank: float, peers: float) -> EvidenceRow:
    return EvidenceRow(what=what, name=name, mine=of_rank, peers=peers, unit="ms")
