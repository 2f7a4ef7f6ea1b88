"""Which process of a job failed first, and when that is left open."""

from __future__ import annotations

from whystall.tools.crashes.first_failure import First, Happened, first_failure
from whystall.tools.crashes.times import Instant

SKEW = 10**9


def one(
    index: int,
    who: str,
    at_s: float | None,
    *,
    host: str = "a",
    exact: bool = True,
    reaction: bool = False,
    until_s: float | None = None,
    zoned: bool = False,
) -> Happened:
    at, until = (None if s is None else Instant(int(s * 1e9), 10**6, zoned, True) for s in (at_s, until_s))
    return Happened(index, who, host, at, exact, reaction, until)


def verdict(*happened: Happened) -> tuple[int, str]:
    found: First = first_failure(happened, SKEW)
    return found.index, found.reason


def test_the_loudest_is_not_the_first() -> None:
    loud = [one(n, f"rank {n}", 100.0, reaction=True) for n in range(1, 8)]
    assert verdict(*loud, one(9, "rank 0", 700.0)) == (9, "only_one")


def test_the_earliest_wins_if_the_clocks_allow_it() -> None:
    assert verdict(one(0, "rank 0", 105.0, host="b"), one(1, "rank 1", 100.0)) == (1, "earliest")
    assert verdict(one(0, "rank 0", 100.5, host="b"), one(1, "rank 1", 100.0)) == (-1, "order_unknown")
    # the clock of one host is one clock
    assert verdict(one(0, "rank 0", 100.5), one(1, "rank 1", 100.0)) == (1, "earliest")


def test_a_failure_between_two_lines_is_bounded_by_both() -> None:
    vague = one(1, "rank 1", 90.0, exact=False, until_s=95.0)
    assert verdict(one(0, "rank 0", 105.0), vague) == (1, "earliest")
    assert verdict(one(0, "rank 0", 93.0), vague) == (-1, "order_unknown")
    assert verdict(one(0, "rank 0", 105.0), one(1, "rank 1", 90.0, exact=False)) == (-1, "order_unknown")


def test_what_the_launcher_noticed_bounds_the_failure_of_its_rank() -> None:
    stated = one(1, "rank 1", 90.0, exact=False)
    noticed = one(2, "rank 1", None, exact=False, until_s=96.0)
    assert verdict(one(0, "rank 0", 105.0), stated, noticed) == (1, "earliest")


def test_it_is_left_open_without_times_with_other_zones_or_with_reactions_only() -> None:
    assert verdict(one(0, "rank 0", None), one(1, "rank 1", 5.0)) == (-1, "time_unknown")
    assert verdict(one(0, "rank 0", 1.0, zoned=True), one(1, "rank 1", 500.0)) == (-1, "clocks")
    assert verdict(one(0, "rank 0", 1.0, reaction=True)) == (-1, "reactions_only")
    assert verdict() == (-1, "none")
