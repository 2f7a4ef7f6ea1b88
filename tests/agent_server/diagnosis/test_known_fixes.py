"""Known fixes in diagnoses: of a recording's versions and evidence, and in the texts for people."""

from __future__ import annotations

import polars as pl
import pytest
from version_recordings import versions_recorded

from whystall.agent_server.diagnosis.known_fixes import known_in_recording, known_on_this_host
from whystall.agent_server.presentation.texts import diagnosis_text, ticket_markdown
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.ticket_models import Ticket
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.recording.store import Recording


def recording(*rows: tuple[str, str]) -> Recording:
    """A recording of components and their versions."""
    found = [(name, version, "package", 7, False) for name, version in rows]
    return versions_recorded(*found, machine="aarch64")


def diagnosis(cause: str | None, verdict: Verdict = Verdict.LIKELY, **words: str) -> Diagnosis:
    found = Finding(
        id="F1",
        kind="path.wait",
        subject=Subject(type="thread", pid=7, tid=7, comm="python"),
        interval=Interval(start_ns=0, end_ns=1),
        metrics={},
        attributes=words,
        severity=Severity.MAJOR,
        polarity=Polarity.ABNORMAL,
    )
    return Diagnosis(
        id="d1",
        created="2026-01-01T00:00:00Z",
        target="pid 7",
        verdict=verdict,
        cause=cause,
        findings=[found],
        chain=["F1"],
    )


def standing(found: Diagnosis) -> dict[str, str]:
    return {row.defect: row.standing for row in found.known_fixes}


def test_what_the_evidence_shows_is_relevant_and_the_same_symptom_possible() -> None:
    recorded = recording(("nccl", "2.28.9"), ("torch", "2.7.0"))
    shown = known_in_recording(diagnosis("collective_hang", chain="ncclLocalOpAppend"), recorded)
    assert standing(shown) == {"nccl_weak_cas": "relevant", "torch_nonblocking_2_7": "possible"}
    alike = known_in_recording(diagnosis("collective_hang"), recorded)
    assert set(standing(alike).values()) == {"possible"}


@pytest.mark.parametrize(
    ("cause", "verdict", "versions"),
    [
        ("disk_full", Verdict.LIKELY, [("nccl", "2.28.9"), ("torch", "2.7.0")]),  # affected, another symptom
        ("collective_hang", Verdict.LIKELY, [("nccl", "2.30.7"), ("torch", "2.8.0")]),  # fixed
        ("collective_hang", Verdict.HEALTHY, [("nccl", "2.28.9")]),
        ("collective_hang", Verdict.LIKELY, []),
    ],
    ids=["other symptom", "fixed", "healthy", "not seen"],
)
def test_nothing_else_is_stated(cause: str, verdict: Verdict, versions: list[tuple[str, str]]) -> None:
    assert known_in_recording(diagnosis(cause, verdict), recording(*versions)).known_fixes == []


def test_findings_outside_of_the_chain_show_nothing() -> None:
    found = diagnosis(None, chain="ncclLocalOpAppend").model_copy(update={"chain": []})
    assert known_in_recording(found, recording(("nccl", "2.28.9"))).known_fixes == []


def test_an_older_recording_changes_nothing() -> None:
    recorded = recording()
    bare = Recording.in_memory(recorded.manifest.model_copy(update={"collectors": {}}), dict[str, pl.DataFrame]())
    found = diagnosis("collective_hang")
    assert known_in_recording(found, bare) == found


def test_this_host_is_read() -> None:
    found = known_on_this_host(diagnosis("disk_full"), [])
    assert all(row.standing in ("relevant", "possible") for row in found.known_fixes)


@pytest.mark.parametrize(
    ("lang", "words"),
    [("en", ("Upgrade nccl to 2.29.3", "Upgrade plan")), ("zh", ("将 nccl 升级到 2.29.3", "升级计划"))],
)
def test_texts_name_the_upgrade_and_its_source(lang: str, words: tuple[str, str]) -> None:
    shown = known_in_recording(diagnosis("collective_hang", chain="ncclLocalOpAppend"), recording(("nccl", "2.28.9")))
    causes = load_causes()
    ticket = Ticket(
        id="1",
        created=shown.created,
        updated=shown.created,
        dedup_key="k",
        severity=Severity.MAJOR,
        category="accelerator",
        component="nccl",
        diagnosis=shown,
    )
    upgrade, plan = words
    text, page = diagnosis_text(shown, causes, lang), ticket_markdown(ticket, lang, causes)  # type: ignore[arg-type]
    for one in (text, page):
        assert upgrade in one
        assert "[https://github.com/NVIDIA/nccl/issues/2353, 2026-08-27]" in one
    assert plan in page
