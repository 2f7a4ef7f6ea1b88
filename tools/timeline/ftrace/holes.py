"""Find holes that the events themselves show: a switch on a CPU without an event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from whystall.tools.timeline.sched import TABLES


def unseen_holes(switches: pl.DataFrame, contexts: Iterable[pl.DataFrame] = ()) -> pl.DataFrame:
    """Return rows of the table ``holes``, `why` ``unseen``: where the chain of one CPU's switches is broken.

    On one CPU each switch must leave the thread that the one before it went to. Where it leaves another one, at least
    one switch in between is missing, and the CPU's thread is unknown from the last consistent switch to the
    inconsistent one. Evidence narrows that: with `prev_arrived_ns` (since when, by the scheduler's accounting, the
    leaving thread had its CPU) the hole ends there. `contexts` are events other than switches (`at_ns`, `cpu`, `tid`:
    the CPU's thread then): the hole begins at the last one of the thread before, and ends at the first one of the
    thread after, if the two lie in this order; else more than one switch is missing, and the hole is not narrowed.
    """
    if not switches.get_column("at_ns").is_sorted():
        switches = switches.sort("at_ns", maintain_order=True)
    chains = [TABLES["switches"].to_frame().select(**_CHAIN), *(one.select(**_CHAIN) for one in _by_cpu(switches))]
    chain = pl.concat([one.filter(pl.col("before") != pl.col("after")) for one in chains])
    broken = _narrowed(chain, contexts)
    arrived = pl.col("prev_arrived_ns")
    end = pl.when(arrived.is_between("start", "end")).then(arrived).otherwise("end")
    return (
        broken.select(start_ns="start", end_ns=end, cpu="cpu", lost=pl.lit(-1), why=pl.lit("unseen"))
        .cast(TABLES["holes"])
        .sort("start_ns", maintain_order=True)
    )


_CHAIN = {
    "cpu": pl.col("cpu"),
    "prev_arrived_ns": pl.col("prev_arrived_ns"),
    "start": pl.col("at_ns").shift(1),
    "end": pl.col("at_ns"),
    "before": pl.col("next_tid").shift(1),
    "after": pl.col("prev_tid"),
}


def _by_cpu(switches: pl.DataFrame) -> Iterator[pl.DataFrame]:
    for cpu in switches.get_column("cpu").unique():
        yield switches.filter(pl.col("cpu") == cpu)


def _narrowed(broken: pl.DataFrame, contexts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    involved = broken.select("cpu", tid="before").vstack(broken.select("cpu", tid="after")).unique()
    found = [frame.join(involved, on=["cpu", "tid"], how="semi") for frame in contexts]
    if broken.is_empty() or not found:
        return broken
    events = pl.concat(found).select("cpu", "tid", event="at_ns").sort("event")
    broken = broken.sort("end")
    last = broken.join_asof(
        events, left_on="end", right_on="event", by_left=["cpu", "before"], by_right=["cpu", "tid"],
        strategy="backward", check_sortedness=False,
    ).get_column("event")  # fmt: skip
    broken = broken.with_columns(last=last).sort("start")
    first = broken.join_asof(
        events, left_on="start", right_on="event", by_left=["cpu", "after"], by_right=["cpu", "tid"],
        strategy="forward", check_sortedness=False,
    ).get_column("event")  # fmt: skip
    begin = pl.max_horizontal("start", pl.col("last").fill_null(0))
    finish = pl.min_horizontal("end", pl.col("first").fill_null(1 << 62))
    ordered = begin <= finish
    return broken.with_columns(first=first).with_columns(
        start=pl.when(ordered).then(begin).otherwise("start"), end=pl.when(ordered).then(finish).otherwise("end")
    )
