"""The questions for the evaluation of retrieval."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from whystall.knowledge_base import questions as module
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.questions import questions
from whystall.tools.contract.errors import ErrorCode, ToolError

CARDS = {card.id: card for card in curated()}
QUESTIONS = [(lang, half, q) for lang in ("en", "zh") for half, asked in questions(lang).items() for q in asked]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_there_are_enough_to_tell_and_to_tune_apart(lang: Lang) -> None:
    halves = questions(lang)
    assert sum(bool(q.cards) for asked in halves.values() for q in asked) >= 60
    assert sum(not q.cards for asked in halves.values() for q in asked) >= 25
    for asked in halves.values():
        assert sum(bool(q.cards) for q in asked) >= 30
        assert sum(not q.cards for q in asked) >= 12


def test_they_ask_for_cards_that_are_there_and_for_every_cause_in_both_languages() -> None:
    assert {id for _, _, q in QUESTIONS for id in q.cards} <= set(CARDS)
    for lang in ("en", "zh"):
        causes = {CARDS[id].cause for of, _, q in QUESTIONS if of == lang for id in q.cards}
        assert causes >= {card.cause for card in CARDS.values()}


def test_they_are_in_the_language_they_are_asked_in() -> None:
    for lang, _, question in QUESTIONS:
        chinese = any("\u4e00" <= c <= "\u9fff" for c in question.ask)
        assert chinese == (lang == "zh"), question.ask


def test_none_is_copied_from_the_cards_that_answer_it() -> None:
    # What a program printed may stand on both sides.
    printed = "\n".join(
        [
            "mismatched collective detected, please check your collective calls at and around rank 39",
            "cuda error: an illegal memory access was encountered",
            "address family not supported by protocol",
            "failed to initialize nvml: unknown error",
            "nf_conntrack: table full, dropping packet",
            "nvrm: xid (pci:0000:3b:00): 79, gpu has fallen off the bus.",
            "dataloader worker killed by signal: bus error",
            "uncorrectable ecc error encountered",
        ]
    )
    for lang, _, question in QUESTIONS:
        length, told_in = (32, r".+") if lang == "en" else (8, r"[\u4e00-\u9fff]+")
        runs = {
            piece[i : i + length]
            for piece in re.findall(told_in, question.ask.lower())
            for i in range(len(piece) - length + 1)
        }
        for id in question.cards:
            card = CARDS[id]
            texts = (card.title, card.symptom, card.root_cause, card.fix)
            told = "\n".join(words.get(lang) for words in texts).lower()
            assert [run for run in runs if run in told and run not in printed] == [], (question.ask, id)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"tune": [], "held_out": [{"ask": "why", "card": []}]}, "held_out.0"),
        ({"tune": []}, "held_out: Field required"),
        ({"tune": [{"ask": "", "cards": []}], "held_out": []}, "tune.0.ask"),
        ({"tune": [{"ask": "why", "cards": []}], "held_out": [{"ask": "why", "cards": []}]}, "'why' is asked twice"),
        ([], "document: "),
    ],
)
def test_a_malformed_file_is_refused(
    document: Any, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "en.yaml").write_text(yaml.safe_dump(document), "utf-8")
    monkeypatch.setattr(module, "catalog", lambda name: tmp_path)
    with pytest.raises(ToolError) as raised:
        questions("en")
    assert raised.value.code is ErrorCode.BAD_ARGUMENT
    assert f"en.yaml: {fault}" in raised.value.message
