"""Phrasings of cards, and groups of everyday words: other words for a symptom, which are searched and state no fact."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from making import own

from whystall.knowledge_base.card_life import ENTRIES, TITLE, checked, content_hash, edited
from whystall.knowledge_base.confidence import Signals, confidence
from whystall.knowledge_base.data import catalog, read_yaml
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.indexing import PHRASED, indexed
from whystall.knowledge_base.models import Incident, Lang, Phrasings
from whystall.knowledge_base.store import KnowledgeBase
from whystall.knowledge_base.text_search import Memory, rank
from whystall.knowledge_base.tokens import EVERYDAY, concepts, is_group, terms
from whystall.tools.contract.errors import ToolError

TOLD = "the wibble quivers like jelly whenever somebody sneezes"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phrasings") / "k.db"
    KnowledgeBase(path).close()
    return path


@pytest.fixture
def path(tmp_path: Path, shipped: Path) -> Path:
    return Path(shutil.copy(shipped, tmp_path / "k.db"))


@pytest.fixture
def kb(path: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase(path) as base:
        yield base


def told(*en: str) -> Incident:
    return own(phrasings=Phrasings(en=list(en), zh=[]))


@pytest.mark.parametrize("lang", get_args(Lang))
def test_every_shipped_card_has_distinct_phrasings(lang: Lang) -> None:
    cards = curated()
    said = [phrase for card in cards for phrase in getattr(card.phrasings, lang)]
    assert [card.id for card in cards if len(getattr(card.phrasings, lang)) < 2] == []
    assert len(set(said)) == len(said)
    assert [phrase for phrase in said if (re.search("[\u4e00-\u9fff]", phrase) is None) != (lang == "en")] == []
    assert all(checked(card).phrasings == card.phrasings for card in cards)


def test_a_card_is_found_by_its_phrasing_alone(kb: KnowledgeBase) -> None:
    kb.cards.add(told(TOLD))
    assert next(match.incident for match in kb.search("wibble quivers: jelly?")) == "mine"


def test_what_only_the_phrasings_have_is_kept_apart() -> None:
    later = indexed(told(f"{TOLD}, {own().symptom.en}")).later
    phrased = later[later.index(PHRASED) + 1 :]
    assert {"quiver", "jelly"} <= set(phrased)
    assert not set(phrased) & {*indexed(own()).symptom, *indexed(own()).later}
    assert PHRASED not in indexed(own()).later


def test_its_share_is_a_signal_and_lowers_the_confidence(path: Path, kb: KnowledgeBase) -> None:
    kb.cards.add(told(TOLD))
    with closing(Database(path)) as file, file.read() as db:
        first = rank(db, TOLD, 5, Memory(file))[0]
    assert first.card.id == "mine"
    assert first.signals.phrased == pytest.approx(1)
    a, b = (confidence(Signals(0.5, 0, 1.5, 0.1, 0.5, 0, 0, 0, 0, x, 0, 0)) for x in (0, 1))
    assert a > b


def test_phrasings_are_bounded_and_can_be_edited() -> None:
    with pytest.raises(ToolError, match="phrasings"):
        checked(told("x" * (TITLE + 1)))
    with pytest.raises(ToolError, match="phrasings"):
        checked(told(*(f"a {n}" for n in range(ENTRIES + 1))))
    assert checked(told("a \x1b[31mred\n one")).phrasings.en != ["a \x1b[31mred\n one"]
    new = edited(own(), {"phrasings": {"en": [TOLD]}}, "ann", "2026-01-01T00:00:00Z")
    assert new.phrasings == Phrasings(en=[TOLD], zh=[])
    assert content_hash(new) == content_hash(own())


def test_groups_of_everyday_words_are_for_the_search_alone() -> None:
    text = "our boxes are kicked out now and then"
    groups = {word for word in terms(text, everyday=True).words if word.startswith(EVERYDAY)}
    assert groups >= {"e_machine", "e_pushed_out", "e_sporadic"}
    assert all(map(is_group, groups))
    assert groups.isdisjoint(terms(text).words)
    assert groups & set(terms("机器偶尔被踢掉", everyday=True).words) >= {"e_machine", "e_pushed_out", "e_sporadic"}
    assert concepts(text).isdisjoint({"machine", "pushed_out"})
    assert not is_group("e_mail")


def test_everyday_words_are_written_as_text_is_split() -> None:
    groups = read_yaml(catalog("everyday.yaml"))
    english = [phrase for words in groups.values() for phrase in words["en"]]
    chinese = [phrase for words in groups.values() for phrase in words["zh"]]
    assert [p for p in english if " ".join(re.findall(r"[a-z0-9_]+", p)) != p] == []
    assert [p for p in chinese if re.search("[\u4e00-\u9fff]", p) is None] == []  # else part of any Latin word
    assert len(set(english)) == len(english)
    assert len(set(chinese)) == len(chinese)
