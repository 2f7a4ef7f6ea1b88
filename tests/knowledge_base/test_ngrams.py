"""Likeness of texts by character n-grams."""

from __future__ import annotations

import pytest

from whystall.knowledge_base.ngrams import likeness, n_grams


def test_equal_texts_are_as_alike_as_possible_and_foreign_ones_not_at_all() -> None:
    alike = likeness("the wobbly gizmo", ["the wobbly gizmo", "quartz", ""])
    assert alike == [pytest.approx(11 / 21), 0.0, 0.0]  # of its eleven n-grams
    assert likeness("gizmo", ["gizmo"]) < likeness("gizmo on a table", ["gizmo on a table"])


def test_inflections_and_longer_chinese_words_count() -> None:
    near, far = likeness("synchronising", ["a synchronisation is late", "a signal is late"])
    assert near > far == 0
    whole, parts = likeness("显存泄漏", ["怀疑显存泄漏", "显存充足，管道泄漏"])
    assert whole > parts > 0


def test_what_all_texts_share_distinguishes_none() -> None:
    first, second = likeness("gpu stalls", ["gpu stalls", "gpu idles"])
    alone = likeness("gpu stalls", ["gpu idles", "disk idles"])[0]
    assert first > second
    assert second < alone


def test_hostile_text_is_read_to_a_bound() -> None:
    assert n_grams("x" * 10_000_000) == n_grams("x" * 20_000)
    assert likeness("", ["a card"]) == [0.0]
    assert likeness("a card", []) == []
