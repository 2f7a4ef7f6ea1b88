"""The text of a model-driven diagnosis."""

from __future__ import annotations

import re

import pytest
from making import checkpoint

from whystall.agent_server.presentation.reasoning_lines import explanation
from whystall.agent_server.presentation.texts import TEXT_LIMIT, diagnosis_text, ticket_markdown
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Assessment, CauseState, Culprit, Diagnosis, Lang, Reasoning, Usage
from whystall.knowledge_base.tickets.drafting import draft
from whystall.tools.contract.result import BlindSpot

CAUSES = load_causes()
CLAIM = {"relation": "is_symptom_of", "subject": "fileslower-1", "object": "sync_checkpoint_write"}
USAGE = Usage(requests=4, tokens_in=12345, tokens_out=678, seconds=3.2, money=0.0125)


def reasoned(**changed: object) -> Diagnosis:
    given = {
        "model": "example",
        "claims": [CLAIM, {**CLAIM, "subject": "f9"}],
        "usage": USAGE,
    } | changed
    return checkpoint().model_copy(update={"reasoning": Reasoning.model_validate(given)})


def ticket(d: Diagnosis, lang: Lang) -> str:
    return ticket_markdown(draft(d, CAUSES, "2025-01-01T00:00:00Z"), lang, CAUSES)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_relation_names_its_finding_and_cause_and_the_model(lang: Lang) -> None:
    text = diagnosis_text(reasoned(), CAUSES, lang)
    (line,) = [line for line in text.splitlines() if line.startswith("1. [fileslower-1]") and "episodes" not in line][
        -1:
    ]
    assert CAUSES["sync_checkpoint_write"].title.get(lang) in line
    assert "[f9]" not in text
    assert "example" in text
    assert "12,345" in text
    assert "0.0125" in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_free_text_stands_apart_with_its_values_and_the_calls_that_would_test_it(lang: Lang) -> None:
    own = {
        "hypothesis": "it is {f9.path}",
        "narrative": "{fileslower-1.comm} syncs for {fileslower-1.window_pct} {fileslower-1}",
        "proposed": ["write less"],
        "checks": [{"tool": "offcputime", "arguments": {"waker": True, "min_ms": 1.5}}],
    }
    found = reasoned(unverified=own)
    text = diagnosis_text(found, CAUSES, lang)
    apart = text[text.index({"en": "Unverified hypothesis", "zh": "未经核实的假设"}[lang]) :]
    finding = next(f for f in found.findings if f.id == "fileslower-1")
    assert f"{finding.subject.comm} syncs for {finding.window_pct:.3g} % fileslower-1" in apart
    assert "it is {f9.path}" in apart, "what has no value is shown as it was written"
    assert "write less" in apart
    assert "offcputime(waker=true, min_ms=1.5)" in apart
    assert "syncs for" not in ticket(found, lang), "a ticket holds what was checked"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_removed_claims_and_the_stop_are_shown_by_codes_only(lang: Lang) -> None:
    found = reasoned(claims=[], struck=["share", "share", "order", "name"], stopped="timeout")
    for text in (diagnosis_text(found, CAUSES, lang), ticket(found, lang)):
        assert "(2)" in text
        assert "(1)" in text
        assert "1. [fileslower-1]" not in text[text.index("(2)") :]


def test_the_sentences_of_older_records_are_free_text() -> None:
    old = Reasoning.model_validate(
        {"model": "m", "story": [{"text": "It waits.", "findings": ["F1"]}, {"text": "Ok."}]}
    )
    assert (old.claims, old.unverified.hypothesis) == ([], "It waits. Ok.")


def test_without_a_model_none_is_mentioned() -> None:
    plain = reasoned().model_copy(update={"reasoning": None})
    for text in (diagnosis_text(plain, CAUSES, "en"), ticket(plain, "en")):
        assert "model" not in text


def test_many_relations_are_cut_to_the_budget_with_a_note_and_what_follows_is_there() -> None:
    found = reasoned(claims=[CLAIM] * 40, struck=["share"], stopped="timeout")
    spots = [BlindSpot(code="no_stacks", detail=f"{'x' * 60} {number}") for number in range(60)]
    cover = found.coverage[0].model_copy(update={"not_seen": spots})
    text = diagnosis_text(found.model_copy(update={"coverage": [cover], "ticket": "7"}), CAUSES, "en")
    assert len(text) <= TEXT_LIMIT
    assert text.index("more left out") < text.index("12,345") < text.index(found.id) < text.index("Ticket: 7")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_was_ruled_out_leaves_room_for_what_to_do(lang: Lang) -> None:
    """Many causes ruled out, at length, push neither the remedies nor how to verify out of the text."""
    found = reasoned(claims=[])
    others = [
        Assessment(cause=id, state=CauseState.RULED_OUT, by=[id, "t" * 600]) for id in CAUSES if id != found.cause
    ]
    text = diagnosis_text(found.model_copy(update={"assessments": [*found.assessments, *others]}), CAUSES, lang)
    assert len(text) <= TEXT_LIMIT
    chosen = CAUSES[found.cause or ""]
    assert all(remedy.text.get(lang) in text for remedy in chosen.remedies[:1])
    assert chosen.verify.get(lang) in text
    assert re.search(r"\d+ more left out|另有 \d+ 条未列出", text)


def test_a_finding_is_shown_in_full_once_and_then_named() -> None:
    plain = checkpoint()
    against = Assessment(cause="fsync_storm", state=CauseState.RULED_OUT, against=[plain.chain[0]], by=["fileslower"])
    text = diagnosis_text(plain.model_copy(update={"assessments": [against]}), CAUSES, "en")
    told = next(line for line in text.splitlines() if line.startswith("1. [fileslower-1]"))
    assert "1.23 s each" in told
    assert "\nRuled out: Too many small syncs [fileslower-1]\n" in text


def test_free_text_cannot_break_markdown() -> None:
    evil = "# heading <b> [x](http://evil) ![i](j) `code` | a | * b _c_ @all {fileslower-1.comm}"
    d = reasoned(unverified={"hypothesis": evil})
    told = explanation(d.reasoning, {f.id: f for f in d.findings}, CAUSES, "md", "en", 1000)
    bare = "".join(told.unverified[0].split("`")[::2])
    assert not set("<>[]|_@#*") & set(bare), bare


def test_remedies_that_the_model_would_try_first_go_first() -> None:
    found = reasoned(remedies=["checkpoint_less_often"])
    text = diagnosis_text(found, CAUSES, "en")
    remedies = {r.id: r.text.en for r in CAUSES["sync_checkpoint_write"].remedies}
    assert text.index(remedies["checkpoint_less_often"]) < text.index(remedies["async_checkpoint"])


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"latency_ms": 1100, "max_ms": 1300, "count": 4}, "1.1 s each, longest 1.3 s, 4 times"),
        ({"latency_ms": 8000, "max_ms": 8000, "count": 1}, "8 s, once"),
        # as older diagnoses are stored: the longest call, which is a part of each
        ({"latency_ms": 1100, "max_ms": 979, "count": 4}, "1.1 s each, 4 times"),
        ({"count": 1}, "once"),
    ],
)
def test_how_long_it_took_does_not_contradict_itself(known: dict[str, float], said: str) -> None:
    plain = checkpoint()
    told = plain.model_copy(update={"culprit": Culprit(**known)})
    assert f"How long: {said}\n" in diagnosis_text(told, CAUSES, "en")


@pytest.mark.thorough
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_a_text_of_any_cause_keeps_to_any_limit(cause: str, lang: Lang) -> None:
    """Whatever is cut on the way to a limit, the text can be written, and says that something is left out."""
    spots = [BlindSpot(code="no_stacks", detail=f"{'x' * 60} {number}") for number in range(9)]
    found = reasoned(claims=[CLAIM] * 5).model_copy(update={"cause": cause})
    found = found.model_copy(update={"coverage": [found.coverage[0].model_copy(update={"not_seen": spots})]})
    whole = diagnosis_text(found, CAUSES, lang, None)
    for limit in range(1500, len(whole), 250):
        text = diagnosis_text(found, CAUSES, lang, limit)
        assert len(text) <= limit
        assert re.search(r"\d+ more left out|另有 \d+ 条未列出", text)
