"""What of a call tree a flame graph shows: totals stay exact whatever is left out, and the order is always the same."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from flames import CHANGED, STACKS, Stack, laid, tree

from whystall.tools.views.flame_data import flame_data
from whystall.tools.views.flame_layout import MOST_LEVELS, REST_KIND, Layout, layout


def names(shown: Layout) -> list[str]:
    return [shown.labels[frame] for frame in shown.frame]


def consistent(shown: Layout) -> None:
    """A parent comes first, children lie within it side by side by name, and weights add up."""
    assert shown.parent[0] == -1
    assert (shown.parent[1:] < np.arange(1, len(shown))).all()
    assert (shown.depth[1:] == shown.depth[shown.parent[1:]] + 1).all()
    for side in range(shown.sides):
        below = np.bincount(shown.parent[1:], shown.total[side, 1:], len(shown))
        np.testing.assert_allclose(shown.own[side] + below, shown.total[side], rtol=1e-9)
        ends = shown.x[side] + shown.width[side]
        assert (shown.x[side, 1:] >= shown.x[side, shown.parent[1:]] - 1e-9).all()
        assert (ends[1:] <= ends[shown.parent[1:]] + 1e-9).all()
        siblings = np.nonzero(shown.parent[1:-1] == shown.parent[2:])[0] + 1
        np.testing.assert_allclose(shown.x[side, siblings + 1], ends[siblings], atol=1e-9)
        labels = names(shown)
        for node in siblings.tolist():
            assert shown.kinds[shown.frame[node + 1]] == REST_KIND or labels[node] <= labels[node + 1]


def many(count: int, seed: int = 3) -> list[Stack]:
    chance = random.Random(seed)
    return [
        (";".join(f"f{int(chance.random() ** 3 * 30)}" for _ in range(chance.randint(1, 25))), chance.random() ** 4)
        for _ in range(count)
    ]


def test_nodes_are_laid_out_by_name_within_their_callers() -> None:
    shown = laid()
    consistent(shown)
    assert names(shown)[:5] == ["all", "main", "waiting", "load", "step"]
    assert shown.width[0, :5].tolist() == pytest.approx([1, 0.96, 0.04, 0.4, 0.56])
    assert shown.x[0, :5].tolist() == pytest.approx([0, 0, 0.96, 0, 0.4])
    assert (shown.cut, shown.levels) == (0, 5)


def test_the_order_of_the_input_does_not_matter() -> None:
    one, other = laid(STACKS), laid(STACKS[::-1])
    assert names(one) == names(other)
    np.testing.assert_allclose(one.x, other.x)
    np.testing.assert_allclose(one.total, other.total)


def test_what_is_too_narrow_is_left_out_and_its_weight_kept() -> None:
    stacks = many(3000)
    everything, shown = laid(stacks, least=0), laid(stacks, least=0.002)
    consistent(everything)
    consistent(shown)
    assert everything.cut == 0
    kinds = np.array(shown.kinds)[shown.frame]
    assert (shown.width[0, kinds != REST_KIND] >= 0.002).all()
    assert shown.cut + int((kinds != REST_KIND).sum()) == len(everything)
    assert shown.total[0, 0] == pytest.approx(sum(weight for _, weight in stacks if isinstance(weight, float)))


def test_there_are_never_too_many_nodes() -> None:
    shown = laid(many(3000), least=0, most=200)
    consistent(shown)
    drawn = np.array(shown.kinds)[shown.frame] != REST_KIND
    assert 100 < drawn.sum() <= 201
    assert shown.least > 0
    assert (shown.width[0, drawn] > shown.least).all()


def test_deep_calls_end_in_what_is_left_out() -> None:
    deep = ";".join(f"f{n}" for n in range(MOST_LEVELS + 500))
    shown = laid([(deep, 3), ("a", 1)])
    consistent(shown)
    assert shown.levels <= MOST_LEVELS + 1
    assert shown.cut == 501
    assert names(shown)[-1] == "rest"
    assert shown.own[0, -1] == 3


def test_both_sides_of_a_difference_lie_in_one_tree() -> None:
    shown = laid(CHANGED, proven=["read", "gone"])
    consistent(shown)
    change = dict(zip(names(shown), shown.change.tolist(), strict=True))
    assert change == pytest.approx({"all": 0, "main": 0, "load": 10, "step": -10, "read": 30, "gone": -20})
    assert shown.proven is not None
    assert {name for name, sure in zip(names(shown), shown.proven, strict=True) if sure} == {"read", "gone"}
    gone = names(shown).index("gone")
    assert shown.width[:, gone].tolist() == pytest.approx([0.2, 0])


def test_a_side_without_anything_has_no_width() -> None:
    shown = laid([("a;b", (0, 3)), ("c", (0, 1))])
    consistent(shown)
    assert shown.width[0].tolist() == [0] * len(shown)
    assert shown.width[1, 0] == 1


def test_nothing_is_no_picture() -> None:
    assert layout(tree([]), root="all", rest="rest") is None
    assert layout(tree([("a;b", 0)]), root="all", rest="rest") is None


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_that_are_none_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="negative or not finite"):
        layout(tree([("a;b", weight)]), root="all", rest="rest")


def test_a_caller_that_rounding_made_narrower_than_its_callee_takes_it_along() -> None:
    odd = tree([("a;b;c", 1), ("d", 1)])
    odd = replace(odd, total=odd.total - np.array([[1e-3, 0, 0, 0]]))
    shown = layout(odd, root="all", rest="rest", least=0.5)
    assert shown is not None
    assert {"b", "c"}.isdisjoint(names(shown))


def test_labels_of_a_page_are_bounded() -> None:
    stacks: list[Stack] = [(f"{n}" + "x" * 10_000, 1) for n in range(20)]
    assert max(map(len, flame_data(laid(stacks))["labels"])) == 400
