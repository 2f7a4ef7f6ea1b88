"""Broken chains of switches are holes, as narrow as the evidence makes them."""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.ftrace.holes import unseen_holes
from whystall.tools.timeline.sched import TABLES

SWITCHES = TABLES["switches"]
CONTEXTS = {"at_ns": pl.Int64, "cpu": pl.Int32, "tid": pl.Int32}


def switches(*rows: tuple[int, int, int, int], arrived: int = 0) -> pl.DataFrame:
    """(instant, CPU, from, to)."""
    full = [(at, cpu, prev, 120, "S", False, arrived, following, 120) for at, cpu, prev, following in rows]
    return pl.DataFrame(full, schema=SWITCHES, orient="row")


def contexts(*rows: tuple[int, int, int]) -> list[pl.DataFrame]:
    return [pl.DataFrame(rows, schema=CONTEXTS, orient="row")]


def test_a_whole_chain_has_no_hole() -> None:
    whole = switches((1, 0, 5, 0), (2, 1, 0, 7), (3, 0, 0, 6), (4, 1, 7, 0), (5, 0, 6, 5))
    assert unseen_holes(whole).equals(TABLES["holes"].to_frame())
    assert unseen_holes(SWITCHES.to_frame()).schema == TABLES["holes"]


def test_the_hole_is_from_the_last_switch_that_fits_to_the_first_that_does_not() -> None:
    broken = switches((10, 0, 5, 0), (20, 1, 0, 7), (30, 0, 9, 0), (40, 1, 7, 0), (50, 0, 0, 5), (60, 1, 3, 0))
    assert unseen_holes(broken).rows() == [(10, 30, 0, -1, "unseen"), (40, 60, 1, -1, "unseen")]


def test_switches_of_no_order_are_put_in_order() -> None:
    broken = switches((30, 0, 9, 0), (10, 0, 5, 0))
    assert unseen_holes(broken).rows() == [(10, 30, 0, -1, "unseen")]


def test_the_schedulers_own_account_ends_the_hole() -> None:
    assert unseen_holes(switches((10, 0, 5, 0), (30, 0, 9, 0), arrived=12)).rows() == [(10, 12, 0, -1, "unseen")]
    # of another time than the hole's it is no evidence
    assert unseen_holes(switches((10, 0, 5, 0), (30, 0, 9, 0), arrived=5)).rows() == [(10, 30, 0, -1, "unseen")]


def test_events_of_both_threads_narrow_the_hole() -> None:
    broken = switches((10, 0, 5, 0), (30, 0, 9, 0))
    around = contexts((5, 0, 0), (12, 0, 0), (14, 0, 0), (20, 0, 9), (25, 0, 9), (16, 1, 9), (40, 0, 9))
    assert unseen_holes(broken, around).rows() == [(14, 20, 0, -1, "unseen")]
    assert unseen_holes(broken, contexts((14, 0, 0))).rows() == [(14, 30, 0, -1, "unseen")]
    assert unseen_holes(broken, contexts((20, 0, 9))).rows() == [(10, 20, 0, -1, "unseen")]


def test_a_thread_that_came_and_went_twice_narrows_nothing() -> None:
    broken = switches((10, 0, 5, 0), (30, 0, 9, 0))
    assert unseen_holes(broken, contexts((15, 0, 9), (20, 0, 0))).rows() == [(10, 30, 0, -1, "unseen")]


def test_others_events_do_not_count() -> None:
    broken = switches((10, 0, 5, 0), (30, 0, 9, 0))
    assert unseen_holes(broken, contexts((12, 0, 77), (8, 0, 9), (35, 0, 0), (14, 2, 0))).rows() == [
        (10, 30, 0, -1, "unseen")
    ]
