"""Curated incidents: sourced, bilingual, with known names, and symptoms as first observed."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from whystall.knowledge_base import incidents
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.incidents import curated, unknown_name
from whystall.knowledge_base.models import Incident, Lang, Words
from whystall.knowledge_base.symptom_check import explanatory_phrases
from whystall.knowledge_base.tokens import terms
from whystall.tools.contract.errors import ErrorCode, ToolError

CARDS = curated()
# As it stands in an address bar: a host and a path, no blanks, no tracking of who came from where.
_URL = re.compile(r"https://[a-z0-9.-]+\.[a-z]{2,}(/[\w.~%/+-]*)?(\?[\w=&.%-]+)?(#[\w.-]+)?")
_CJK = re.compile(r"[\u4e00-\u9fff]")


def texts(card: Incident) -> tuple[Words, ...]:
    return card.title, card.symptom, card.root_cause, card.fix


def card(**changes: Any) -> Incident:
    words = Words(en="Nothing moves", zh="全都不动")
    values: dict[str, Any] = {"id": "one", "title": words, "symptom": words, "cause": None, "root_cause": words}
    return Incident.model_validate({**values, "fix": words, "source": "me", **changes})


# --- what is shipped ----------------------------------------------------------------------------------------------


def test_every_cause_has_at_least_two_incidents() -> None:
    counts = Counter(c.cause for c in CARDS)
    assert len(CARDS) >= 75
    assert {cause: counts[cause] for cause in load_causes() if counts[cause] < 2} == {}


@pytest.mark.parametrize("one", CARDS, ids=lambda c: c.id)
def test_an_incident_is_whole(one: Incident) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", one.id)
    assert one.source
    assert _URL.fullmatch(one.source_url), one.source_url
    assert one.environment
    assert one.checks
    assert one.components
    assert (one.origin, one.state, one.created) == ("curated", "reviewed", "")
    assert one.cause is None or one.kinds, "a cause that no finding told"
    for words in texts(one):
        assert words.en.isascii()
        assert _CJK.search(words.zh)
        assert not re.search(r"[\u4e00-\u9fff][,;:?!.][\u4e00-\u9fff]", words.zh), "western punctuation"
    for field in (one.signatures, one.kinds, one.features, one.checks, one.components):
        assert len(set(field)) == len(field)


@pytest.mark.parametrize("one", CARDS, ids=lambda c: c.id)
def test_its_names_are_known_and_its_checks_can_tell(one: Incident) -> None:
    assert unknown_name(one) is None
    cause = load_causes().get(one.cause or "")
    if cause is not None:
        assert set(one.checks) & {*cause.examined_by, "ftrace_capture", "compare_runs"}
        told = {p.kind for p in (*cause.primary, *cause.required, *cause.supporting)}
        assert set(one.kinds) & told, "none of its findings speaks for its cause"
    for signature in one.signatures:
        assert re.fullmatch(rf"cause\+op:{one.cause}:[a-z_0-9]+", signature)


@pytest.mark.parametrize("one", CARDS, ids=lambda c: c.id)
def test_a_curated_symptom_has_no_explanatory_phrases(one: Incident) -> None:
    assert explanatory_phrases(one, load_causes().get(one.cause or "")) == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_two_incidents_are_alike(lang: Lang) -> None:
    def words(one: Incident) -> frozenset[str]:
        found = terms("\n".join(text.get(lang) for text in texts(one)))
        return frozenset([*found.words, *found.grams])

    said = {one.id: words(one) for one in CARDS}
    for (a, mine), (b, its) in itertools.combinations(said.items(), 2):
        assert len(mine & its) / len(mine | its) < 0.4, (a, b)
    told = Counter(text.get(lang) for one in CARDS for text in texts(one))
    assert [text for text, count in told.items() if count > 1] == []


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"checks": ["strace"]}, "one.checks: unknown tool 'strace'"),
        ({"kinds": ["file.slow"]}, "one.kinds: unknown finding kind 'file.slow'"),
        ({"cause": "gremlins"}, "one.cause: unknown cause 'gremlins'"),
        ({"features": ["mood:bad"]}, "one.features: unknown feature 'mood:bad'"),
        ({"features": ["fs:"]}, "one.features: unknown feature 'fs:'"),
        ({"titel": "x"}, "0.titel: Extra inputs"),
        ({"symptom": {"en": "only English"}}, "0.symptom.zh: Field required"),
    ],
)
def test_an_incident_with_unknown_names_is_refused(
    changes: dict[str, Any], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump([card().model_dump(exclude_defaults=True) | changes]), "utf-8")
    monkeypatch.setattr(incidents, "_files", lambda: [file])
    with pytest.raises(ToolError) as raised:
        curated()
    assert raised.value.code is ErrorCode.BAD_ARGUMENT
    assert fault in raised.value.message


# --- explanatory phrases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symptom", "phrase"),
    [
        ({"en": "Steps are slow because of the disk"}, "because"),
        ({"en": "It has CPU contention all day"}, "cpu contention"),
        ({"en": "We saw that other ranks of the job take every core"}, "of the job take every"),
        ({"en": "It was slow until OMP_NUM_THREADS was set"}, "OMP_NUM_THREADS"),
        ({"en": "It was slow until we gave --cpus to it"}, "--cpus"),
        ({"zh": "训练慢，由于磁盘忙"}, "由于"),
        ({"zh": "作业的其他进程占满了所有的核"}, "其他进程占满了所有"),
    ],
)
def test_what_was_known_only_later_is_noticed(symptom: dict[str, str], phrase: str) -> None:
    words = {"en": "Steps are slow", "zh": "训练慢"} | symptom
    one = card(
        cause="cpu_contention",
        symptom=words,
        root_cause={"en": "Ranks of the job take every core.", "zh": "其他进程占满了所有的核。"},
        fix={"en": "Set OMP_NUM_THREADS=4 or start it with --cpus 4", "zh": "减少线程"},
    )
    assert phrase in explanatory_phrases(one, load_causes()["cpu_contention"])


def test_a_symptom_as_seen_is_none() -> None:
    assert explanatory_phrases(card(), None) == []
    assert explanatory_phrases(card(cause="cpu_contention"), load_causes()["cpu_contention"]) == []
