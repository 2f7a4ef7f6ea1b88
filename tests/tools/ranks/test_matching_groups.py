"""Groups by elimination: what is left where other ranks' groups are known. Whole jobs are in `test_matching.py`."""

from __future__ import annotations

import polars as pl

from whystall.tools.ranks.matching.groups import _agreed, _apart, _left

MEMBERS = {"all": (0, 1, 2, 3), "even": (0, 2), "odd": (1, 3)}
SLOT = ("all_reduce/8/float", 0)
# nothing between the two: the other column waits for the same rank
OPEN = {(rank, SLOT): {"all": (1.1, 9.0), "even": (1.0, 9.0)} for rank in (0, 2)}


def test_a_group_is_out_where_one_of_its_ranks_is_in_another() -> None:
    assert _left(OPEN, {}, MEMBERS) == {}
    known = {(rank, SLOT): "odd" for rank in (1, 3)}
    assert _left(OPEN, known, MEMBERS) == {(rank, SLOT): "even" for rank in (0, 2)}


def test_what_is_left_must_fit_too() -> None:
    known = {(rank, SLOT): "odd" for rank in (1, 3)}
    far = {place: {"all": (1.0, 9.0), "even": (3.5, 9.0)} for place in OPEN}
    assert _left(far, known, MEMBERS) == {}
    loose = {place: {"all": (6.0, 9.0), "even": (6.0, 9.0)} for place in OPEN}
    assert _left(loose, known, MEMBERS) == {}


def test_all_ranks_of_a_group_must_find_so() -> None:
    assert _agreed({(0, SLOT): "even", (1, SLOT): "odd", (3, SLOT): "odd"}, MEMBERS) == {
        (1, SLOT): "odd",
        (3, SLOT): "odd",
    }


def test_a_group_whose_threads_are_known_has_no_others() -> None:
    """Rank 0's small operations are the row's, on both of its threads; what other threads carry out is not."""
    small = ("all_reduce/4/float", 0)
    fits = {"all": (3.0, 9.0), "even": (2.0, 9.0)}
    scores = {(0, small): fits, (0, SLOT): fits, (2, SLOT): fits}
    chosen = {(0, small): "even"}

    def left(lanes_of_small: list[int], lanes_of_slot: list[int]) -> list[str]:
        rows = [(0, small[0], 0, -1, lane) for lane in lanes_of_small] + [(0, SLOT[0], 0, -1, x) for x in lanes_of_slot]
        frame = pl.DataFrame(rows, schema=["rank", "token", "nth", "device", "lane"], orient="row")
        apart = _apart(scores, chosen, frame)
        assert apart[2, SLOT] == fits
        return sorted(apart[0, SLOT])

    assert left([11, 12], [21, 22]) == ["all"]
    assert left([11, 12], [12]) == ["all", "even"]
    # its second thread may be the one that is not known
    assert left([11], [21]) == ["all", "even"]
