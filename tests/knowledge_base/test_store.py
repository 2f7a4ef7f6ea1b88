"""The store: seeding, searching, matching, tickets."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from making import checkpoint, own

from whystall.knowledge_base import incidents, seeding
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.models import Diagnosis, Verdict, Words
from whystall.knowledge_base.store import KnowledgeBase, default_path
from whystall.knowledge_base.ticket_models import Verification
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase(tmp_path / "k.db") as base:
        yield base


def test_the_copies_that_tests_begin_with_are_what_seeding_writes(tmp_path: Path) -> None:
    """See seeded_files.py."""
    with closing(Database(tmp_path / "seeded.db")) as seeded:
        seeding.seed(seeded)
    with KnowledgeBase(tmp_path / "copied.db"):
        pass
    dumps = []
    for name in ("seeded.db", "copied.db"):
        with closing(sqlite3.connect(tmp_path / name)) as db:
            dumps.append([line for line in db.iterdump() if 'INTO "_sqlite_migrations"' not in line])
    assert dumps[0] == dumps[1]


# --- curated incidents --------------------------------------------------------------------------------------------


def test_curated_incidents_cover_every_cause() -> None:
    found = curated()
    assert len(found) >= 14
    assert {i.cause for i in found if i.cause} == set(load_causes())
    assert sum(i.cause == "sync_checkpoint_write" for i in found) >= 3
    for incident in found:
        assert incident.source
        assert incident.source_url.startswith("https://") or not incident.source_url
        for words in (incident.title, incident.symptom, incident.root_cause, incident.fix):
            assert words.en.isascii()
            assert any("\u4e00" <= c <= "\u9fff" for c in words.zh), incident.id


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    KnowledgeBase(path).close()
    before = path.read_bytes()
    KnowledgeBase(path).close()
    assert path.read_bytes() == before


def test_an_upgrade_replaces_curated_incidents_and_leaves_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "k.db"
    shipped = curated()
    old = [i.model_copy(update={"symptom": Words(en="outworn phrases", zh="旧")}) for i in shipped[:3]]
    gone = own("no-longer-shipped", cause="lock_wait")
    monkeypatch.setattr(seeding, "curated", lambda: [*old, gone])
    monkeypatch.setattr(seeding, "curated_hash", lambda: "older")
    with KnowledgeBase(path) as kb:
        assert kb.cards.get("no-longer-shipped").cause == "lock_wait"
        kb.cards.add(own())
        kb.tickets.draft(checkpoint())
    monkeypatch.undo()
    with KnowledgeBase(path) as kb:
        assert [kb.cards.get(i.id) for i in shipped] == shipped
        with pytest.raises(ToolError):
            kb.cards.get("no-longer-shipped")
        assert kb.cards.get("mine").origin == "user"
        assert kb.tickets.get("1").occurrences == 1
        assert [m.incident for m in kb.search("frobnicator")] == ["mine"]
        assert "outworn" not in " ".join(w for m in kb.search("outworn phrases") for w in m.shared)


def test_the_hash_changes_with_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("[]")
    monkeypatch.setattr(incidents, "_files", lambda: [file])
    first = incidents.curated_hash()
    file.write_text("[ ]")
    assert incidents.curated_hash() != first


_ENTRY = "- {id: x, title: &w {en: a, zh: b}, symptom: *w, root_cause: *w, fix: *w, source: s, "


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("id: x", "document"),
        ("- {id: x}", "0.title"),
        (_ENTRY + "cause: gremlins}", "x.cause"),
        (_ENTRY + "cause: null, kinds: [file.slow_think]}", "x.kinds"),
        (
            _ENTRY + "cause: null}\n- {id: x, title: *w, symptom: *w, root_cause: *w, fix: *w, source: s, cause: null}",
            "1.id",
        ),
    ],
)
def test_a_bad_incident_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    monkeypatch.setattr(incidents, "_files", lambda: [tmp_path / "bad.yaml"])
    with pytest.raises(ToolError) as caught:
        curated()
    assert caught.value.message.startswith(f"bad.yaml: {fault}")


# --- tickets ------------------------------------------------------------------------------------------------------


def test_a_reported_symptom_is_kept_when_the_fault_recurs_without_one(kb: KnowledgeBase) -> None:
    kb.tickets.draft(checkpoint(symptom="stalls every fifth step"))
    again = kb.tickets.draft(checkpoint(id="d2", created="2025-01-02T00:00:00Z", symptom=""))
    assert (again.occurrences, again.diagnosis.id) == (2, "d2")
    assert again.diagnosis.symptom == "stalls every fifth step"
    newer = kb.tickets.draft(checkpoint(id="d3", created="2025-01-03T00:00:00Z", symptom="every step now"))
    assert newer.diagnosis.symptom == "every step now"


def test_the_same_fault_gets_one_ticket(kb: KnowledgeBase) -> None:
    first = kb.tickets.draft(checkpoint())
    assert (first.id, first.occurrences, first.state) == ("1", 1, "open")
    assert (first.category, first.component) == ("storage", "checkpoint")
    later = checkpoint("/data/ckpt/chk_000125.bin", id="d2", created="2025-01-02T00:00:00Z")
    again = kb.tickets.draft(later)
    assert (again.id, again.occurrences) == ("1", 2)
    assert again.diagnosis.id == "d2"
    assert again.diagnosis.ticket == "1"
    assert kb.get_diagnosis("d2").ticket == "1"
    older = kb.tickets.draft(checkpoint(id="d0", created="2024-01-01T00:00:00Z"))
    assert (older.occurrences, older.diagnosis.id) == (3, "d2")
    assert kb.tickets.get("1") == older


def test_one_diagnosis_counts_once(kb: KnowledgeBase) -> None:
    diagnosis = checkpoint()
    kb.save_diagnosis(diagnosis)
    kb.tickets.draft(diagnosis)
    kb.save_diagnosis(kb.get_diagnosis("d1"))
    assert kb.tickets.draft("d1").occurrences == 1
    kb.tickets.draft(checkpoint(id="d2"))
    assert kb.tickets.draft("d1").occurrences == 2


@pytest.mark.parametrize(
    "other",
    [
        checkpoint("/data/other/chk_000120.bin", id="d2"),
        checkpoint(comm="eval", id="d2"),
        checkpoint(cause="slow_device", id="d2"),
    ],
)
def test_another_fault_gets_another_ticket(kb: KnowledgeBase, other: Diagnosis) -> None:
    kb.tickets.draft(checkpoint())
    assert kb.tickets.draft(other).id == "2"


def test_a_resolved_ticket_is_not_reopened(kb: KnowledgeBase) -> None:
    kb.tickets.draft(checkpoint())
    done = kb.tickets.resolve("1", "asynchronous now", "ann")
    assert (done.state, done.resolution) == ("resolved", "asynchronous now")
    assert kb.tickets.draft(checkpoint(id="d2")).id == "2"
    assert [t.id for t in kb.tickets.list(Wanted(states=("open",)))] == ["2"]
    assert [t.id for t in kb.tickets.list(Wanted(states=("resolved",)))] == ["1"]
    assert {t.id for t in kb.tickets.list()} == {"1", "2"}
    with pytest.raises(ToolError, match="resolved"):
        kb.tickets.resolve("1", "again", "ann")


@pytest.mark.parametrize("verdict", [Verdict.HEALTHY, Verdict.IDLE])
def test_a_job_without_a_fault_gets_no_ticket(kb: KnowledgeBase, verdict: Verdict) -> None:
    with pytest.raises(ToolError, match=verdict.value) as caught:
        kb.tickets.draft(checkpoint(verdict=verdict, cause=None))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert kb.tickets.list() == []


@pytest.mark.parametrize(
    ("verdict", "explained", "expected"),
    [
        (Verdict.CONFIRMED, 100, Severity.CRITICAL),
        (Verdict.CONFIRMED, 90, Severity.MAJOR),
        (Verdict.CONFIRMED, 20, Severity.MINOR),
        (Verdict.LIKELY, 100, Severity.MAJOR),
        (Verdict.INCONCLUSIVE, 100, Severity.MINOR),
    ],
)
def test_severity_follows_verdict_and_loss(
    kb: KnowledgeBase, verdict: Verdict, explained: float, expected: Severity
) -> None:
    assert kb.tickets.draft(checkpoint(verdict=verdict, explained_pct=explained)).severity is expected


def test_verifications_are_kept_when_the_fault_returns(kb: KnowledgeBase) -> None:
    kb.tickets.draft(checkpoint())
    done = kb.tickets.verified("1", Verification(at="2025-01-03T00:00:00Z", checks=[], solved=None))
    assert len(done.verifications) == 1
    assert len(kb.tickets.draft(checkpoint(id="d2")).verifications) == 1


@pytest.mark.parametrize("id", ["2", "0", "-1", "", "x", "1; DROP TABLE tickets", "٣", "9" * 40, "\udcff"])
def test_unknown_ids_are_not_found(kb: KnowledgeBase, id: str) -> None:
    for ask in (kb.tickets.get, kb.cards.get, kb.get_diagnosis, lambda i: kb.tickets.resolve(i, "x", "ann")):
        with pytest.raises(ToolError) as caught:
            ask(id)
        assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_reason_is_needed_to_resolve(kb: KnowledgeBase) -> None:
    kb.tickets.draft(checkpoint())
    with pytest.raises(ToolError, match="reason"):
        kb.tickets.resolve("1", "  \n ", "ann")
    assert kb.tickets.get("1").state == "open"


def test_an_own_incident_keeps_its_id_to_itself(kb: KnowledgeBase) -> None:
    assert kb.cards.add(own()).origin == "user"
    for id in ("mine", curated()[0].id, "ticket-1"):
        with pytest.raises(ToolError) as caught:
            kb.cards.add(own(id))
        assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_what_was_stored_comes_back_whole(tmp_path: Path) -> None:
    diagnosis = checkpoint(path="/d/\\x1b[31m\"$(x)`|<b>'.bin")
    with KnowledgeBase(tmp_path / "k.db") as kb:
        kb.save_diagnosis(diagnosis)
        ticket = kb.tickets.draft(diagnosis)
    with KnowledgeBase(tmp_path / "k.db") as kb:
        assert kb.get_diagnosis("d1") == diagnosis.model_copy(update={"ticket": "1"})
        assert kb.tickets.get("1") == ticket


def test_threads_share_one_store(kb: KnowledgeBase) -> None:
    failed: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(10):
                kb.tickets.draft(checkpoint(id=f"d{n}.{i}"))
                kb.search("checkpoint")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert kb.tickets.get("1").occurrences == 40


def test_home_decides_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "state"))
    assert default_path() == tmp_path / "state" / "knowledge.db"
    KnowledgeBase(default_path()).close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert default_path().stat().st_mode & 0o777 == 0o600


def test_nothing_heavy_is_imported_before_a_store_is_opened() -> None:
    code = (
        "import sys; import whystall.knowledge_base.store, whystall.knowledge_base.tickets.drafting;"
        " print([m for m in ('jinja2', 'mcp', 'numpy', 'polars') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "[]"


def test_the_index_follows_its_table(kb: KnowledgeBase, tmp_path: Path) -> None:
    kb.cards.add(own())
    with closing(sqlite3.connect(tmp_path / "k.db")) as other:
        other.execute("INSERT INTO incidents_fts (incidents_fts, rank) VALUES ('integrity-check', 1)")
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
