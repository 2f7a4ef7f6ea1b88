"""Which parts of a step changed: found with their size where they did, and not where nothing changed."""

from __future__ import annotations

import numpy as np
import pytest

from whystall.tools.history.path_changes import Account, Chain, Changes, Did, PathKey, changes_of
from whystall.tools.history.path_data import PathChange

READ = PathKey(Did("queue", line="next_batch (train.py:41)"), "thread decoder", Did("file", object="/data/a"))
LOCK = PathKey(Did("queue", line="next_batch (train.py:41)"), "process nfsd", Did("lock"))
WORK = PathKey(Did("running", "user", line="forward (train.py)"))
MEANS = {READ: 0.05, LOCK: 0.02, WORK: 0.1}
BRIEF = PathKey(Did("cpu"), "process stress")


def account(means: dict[PathKey, float], steps: int, rng: np.random.Generator, lasting: int = 1) -> Account:
    """Return steps whose parts vary; `lasting`: so many neighbours are alike."""
    parts = [np.repeat(rng.gamma(9, mean / 9, -(-steps // lasting)), lasting)[:steps] for mean in means.values()]
    return Account(tuple(means), np.array(parts), {READ: Chain("decoder (4102 of 4000)")})


def row(found: Changes, key: PathKey) -> PathChange:
    root = key.root or Did("")
    (one,) = [one for one in found.rows if (one.what, one.root_what) == (key.does.what, root.what)]
    return one


def test_the_part_that_grew_is_found_with_its_root_also_if_the_numbers_of_steps_differ() -> None:
    rng = np.random.default_rng(1)
    before = account(MEANS | {BRIEF: 1e-3}, 400, rng)
    found = changes_of(before, account({READ: 0.16, LOCK: 0.02, WORK: 0.1}, 90, rng))
    first = found.rows[0]
    assert (first.verdict, first.what, first.root, first.root_object) == (
        *("grew", "queue"),
        *("decoder (4102 of 4000)", "/data/a"),
    )
    assert first.low_ms is not None
    assert first.high_ms is not None
    assert first.low_ms < 110 < first.high_ms
    assert found.step.verdict == "grew"
    assert found.step.change_ms == pytest.approx(sum(one.change_ms for one in found.rows), abs=0.01)
    unchanged = row(found, LOCK)
    assert unchanged.verdict == "unchanged"
    assert unchanged.detectable_ms is not None
    assert 0 < unchanged.detectable_ms < 0.05 * 1e3 * 0.225  # a relevant change of the mean step
    assert [one.what for one in found.rows].count("rest") == 1  # what takes less than 1 % of a step


def test_what_only_one_span_has_appeared_or_vanished() -> None:
    rng = np.random.default_rng(2)
    found = changes_of(account({WORK: 0.1, LOCK: 0.05}, 64, rng), account({WORK: 0.1, READ: 0.05}, 64, rng))
    assert (row(found, LOCK).verdict, row(found, READ).verdict) == ("vanished", "appeared")


def test_with_few_or_very_different_steps_nothing_is_claimed() -> None:
    rng = np.random.default_rng(3)
    few = changes_of(account(MEANS, 7, rng), account({**MEANS, READ: 0.5}, 300, rng))
    assert few.tested is None
    assert {one.verdict for one in (few.step, *few.rows)} == {"cannot_tell"}
    assert few.rows[0].q_value is None
    noisy = [Account((WORK,), rng.pareto(1.5, (1, 20)) + 0.05) for _ in range(2)]
    one = changes_of(*noisy).rows[0]
    assert one.verdict == "cannot_tell"
    assert one.detectable_ms is not None
    assert one.detectable_ms > 50 * (one.before_ms + one.after_ms) / 1e3  # more than 5 %


@pytest.mark.thorough
@pytest.mark.parametrize("lasting", [1, 5])
def test_without_a_change_few_comparisons_report_one(lasting: int) -> None:
    rng = np.random.default_rng(4)
    wrong = missed = 0
    for _ in range(40):
        found = changes_of(account(MEANS, 160, rng, lasting), account(MEANS, 240, rng, lasting))
        wrong += any(one.verdict not in ("unchanged", "cannot_tell") for one in found.rows)
        missed += not all(one.low_ms <= 0 <= one.high_ms for one in found.rows if one.low_ms is not None)
    assert wrong <= 6  # of 40; 2 are expected
    assert missed <= 14  # of 40; each of three intervals misses in one of twenty


@pytest.mark.thorough
def test_a_change_of_the_size_stated_as_detectable_is_found_in_four_of_five_cases() -> None:
    rng = np.random.default_rng(5)
    sizes = [row(changes_of(account(MEANS, 64, rng), account(MEANS, 64, rng)), WORK).detectable_ms for _ in range(5)]
    more = float(np.median([size for size in sizes if size is not None])) / 1e3
    found = 0
    for _ in range(20):
        changed = changes_of(account(MEANS, 64, rng), account({**MEANS, WORK: 0.1 + more}, 64, rng))
        found += row(changed, WORK).verdict == "grew"
    assert found >= 11  # of 20; 16 are expected
