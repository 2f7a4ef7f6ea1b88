"""What a claim may say of real findings: natural, true wordings pass, invented ones do not (claims.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import pytest
import test_investigation as scenes
from solving import new_case

from whystall.agent_server.diagnosis import rules
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.grounded_conclusion import ground
from whystall.agent_server.diagnosis.grounding.model_conclusion import Link, ModelConclusion
from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.knowledge_base.data import read_yaml
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.recording.store import Recording

RECORDED = Path(__file__).parents[2] / "recorded"
CLAIMS = read_yaml(Path(__file__).parent / "claims.yaml")


def rows(group: str) -> Iterator[Any]:
    for name, groups in CLAIMS.items():
        for number, row in enumerate(groups[group], 1):
            text, cited, *code = row
            yield pytest.param(name, text, cited, code[0] if code else "", id=f"{name}-{number}")


@cache
def solved(name: str) -> Case:
    """The case of a recording or scene, as the rules leave it."""
    directory = RECORDED / name
    recording = Recording.open(directory, COLLECTORS) if directory.is_dir() else getattr(scenes, name)().build()
    case = new_case(RecordedObserver(recording), "slow")
    anyio.run(lambda: rules.finish(case))
    return case


def cited(case: Case, wanted: str) -> str:
    """The id of a finding; see claims.yaml."""
    kind, _, about = wanted.removeprefix("~").partition(":")
    polarity = Polarity.NORMAL if wanted.startswith("~") else Polarity.ABNORMAL
    found = [f for f in case.findings if f.kind == kind and f.polarity is polarity and (not about or about in who(f))]
    return max(found, key=lambda f: f.severity.rank).id if found else wanted


def who(finding: Finding) -> list[str]:
    subject = finding.subject
    return [str(part) for part in (subject.device, subject.comm, subject.tid) if part is not None]


def struck(name: str, text: str, wanted: list[str]) -> list[tuple[str, str]]:
    case = solved(name)
    said = ModelConclusion(chain=[Link(claim=text, findings=[cited(case, kind) for kind in wanted])])
    return [(s.code, s.what) for s in ground(said, case).struck]


@pytest.mark.parametrize(("name", "text", "wanted", "code"), list(rows("holds")))
def test_a_true_claim_in_natural_words_is_kept(name: str, text: str, wanted: list[str], code: str) -> None:
    assert struck(name, text, wanted) == []


@pytest.mark.parametrize(("name", "text", "wanted", "code"), list(rows("fails")))
def test_a_false_claim_is_struck(name: str, text: str, wanted: list[str], code: str) -> None:
    found = struck(name, text, wanted)
    assert found, "kept"
    assert not code or found[0][0] == code, found


def test_the_corpus_cites_findings_that_exist_and_is_large() -> None:
    for name, groups in CLAIMS.items():
        for row in (*groups["holds"], *groups["fails"]):
            assert all(cited(solved(name), kind).startswith("F") for kind in row[1]), (name, row)
    assert sum(len(groups["holds"]) for groups in CLAIMS.values()) >= 60
    assert sum(len(groups["fails"]) for groups in CLAIMS.values()) >= 120


NUMBER = re.compile(r"(?<![A-Za-z0-9_./*-])\d[\d,]*(?:\.\d+)?(?![A-Za-z0-9_]*[_./]\w)")


def changed(text: str) -> Iterator[str]:
    """`text` with one of its numbers 30 % larger or smaller, written with as many digits."""
    for match in NUMBER.finditer(text):
        raw = match.group(0).rstrip(",")
        digits, value = len(raw.partition(".")[2]), float(raw.replace(",", ""))
        for other in (value * 1.3 + (not value) * 3, value * 0.7 + (not value) * 7):
            if not digits and round(other) == value:
                other = value + 2
            yield text[: match.start()] + f"{other:.{digits}f}" + text[match.start() + len(raw) :]


@pytest.mark.thorough
def test_a_true_claim_with_another_number_is_struck() -> None:
    mutants = [
        (name, other, row[1]) for name, groups in CLAIMS.items() for row in groups["holds"] for other in changed(row[0])
    ]
    kept = [(name, text) for name, text, wanted in mutants if not struck(name, text, wanted)]
    assert len(mutants) > 300
    # By chance a changed number is another value of the same finding: "3 ms each" where the median is 3.1.
    assert len(kept) <= 0.01 * len(mutants), kept
