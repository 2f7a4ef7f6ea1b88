"""The foreign reports, and how they are asked and classified."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from benchmarks import incident_categories
from benchmarks.incident_search import labels, queries, read_lines
from whystall.knowledge_base.classify.rules import categories
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.store import KnowledgeBase

CATEGORIES = Path("benchmarks/incidents/categories.yaml")
SETS = ("dev", "unseen", "second", "third")
MEASURED_AFTER_TUNING = ("second", "third")
FILES = {name: Path(f"benchmarks/incidents/foreign_{name}.jsonl") for name in SETS}
TOLD = ("source_url", "read", "title", "symptom", "cause", "paraphrase_en", "paraphrase_zh", "severity")


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_report_is_whole(name: str) -> None:
    cards = {card.id for card in curated()}
    reports = read_lines(FILES[name])
    assert len(reports) > 30
    for one in reports:
        assert set(one["cards"]) <= cards, one["id"]
        assert {one["category"], *one["also"]} <= set(categories()), one["id"]
        assert one["category"] not in one["also"], one["id"]
        assert [field for field in TOLD if not one[field]] == [], one["id"]


@pytest.mark.parametrize("half", ["dev", "unseen"])
def test_a_foreign_report_is_in_its_half(half: str) -> None:
    for one in read_lines(FILES[half]):
        even = hashlib.sha256(one["id"].encode()).digest()[0] % 2 == 0
        assert even == (half == "dev"), one["id"]


def test_no_foreign_report_is_there_twice() -> None:
    reports = [one for file in FILES.values() for one in read_lines(file)]
    for field in ("id", "source_url"):
        assert [value for value, count in Counter(one[field] for one in reports).items() if count > 1] == []


@pytest.mark.parametrize("name", ["unseen", *MEASURED_AFTER_TUNING])
def test_no_card_comes_from_a_report_of_a_test_set(name: str) -> None:
    sources = {card.source_url for card in curated()}
    assert [one["id"] for one in read_lines(FILES[name]) if one["source_url"] in sources] == []


@pytest.mark.parametrize("name", MEASURED_AFTER_TUNING)
def test_a_quarter_of_a_set_has_no_card(name: str) -> None:
    reports = read_lines(FILES[name])
    assert 0.2 < sum(not one["cards"] for one in reports) / len(reports) < 0.3


@pytest.mark.parametrize("name", MEASURED_AFTER_TUNING)
def test_a_report_was_published_before_it_was_read(name: str) -> None:
    for one in read_lines(FILES[name]):
        assert date(2010, 1, 1) < date.fromisoformat(one["date"]) <= date.fromisoformat(one["read"]), one["id"]


@pytest.mark.parametrize("name", MEASURED_AFTER_TUNING)
def test_categories_were_not_developed_on_a_set(name: str) -> None:
    developed = CATEGORIES.read_text("utf-8")
    assert [one["id"] for one in read_lines(FILES[name]) if f'{one["source_url"]}"' in developed] == []


def test_a_report_is_asked_in_other_words_too() -> None:
    report = {"id": "a", "title": "t", "symptom": "s", "paraphrase_en": "other", "cards": ["c"]}
    asked = {query.kind: query for query in queries([report], {"a": frozenset({"c"})}, {}, lambda _: "pad")}
    assert asked["symptom"].text == "t\ns"
    assert asked["paraphrase_en"].text == "other"
    assert "paraphrase_zh" not in asked
    assert all(query.right == {"c"} for query in asked.values())


def test_labels_and_reports_can_be_one_file() -> None:
    found = labels(FILES["dev"])
    assert found["trinity-437"] == {"different-mtu-on-two-servers"}
    assert found["netways-29"] == frozenset()


def test_categories_that_are_not_right_are_counted_and_listed(tmp_path: Path) -> None:
    heat: dict[str, Any] = {"id": "hot", "title": "GPU 3 overheats", "symptom": "thermal slowdown of the card"}
    reports = [{**heat, "category": "accelerator"}, {**heat, "id": "odd", "category": "storage"}, {"id": "none"}]
    missed: list[str] = []
    with KnowledgeBase(tmp_path / "k.db") as kb:
        rows = list(incident_categories.rows(reports, kb.classifier, missed))
    assert [row.ours.split()[0] for row in rows] == ["0.50"] * 4
    assert missed == [
        f"odd [category, {what}]: accelerator for storage" for what in ("title and symptom", "with all evidence")
    ]
