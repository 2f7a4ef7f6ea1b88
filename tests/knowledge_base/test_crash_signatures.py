"""The same crash is found again by its titles."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from making import checkpoint, finding, own

from whystall.knowledge_base.evidence import evidence_from, evidence_of
from whystall.knowledge_base.faults import dedup_key
from whystall.knowledge_base.indexing import put_incident
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.signatures import crash_keys, names_a_fault, signatures
from whystall.knowledge_base.store import KnowledgeBase
from whystall.tools.contract.findings import Finding

TITLE = "BUG: soft lockup in demo_submit"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shipped") / "k.db"
    KnowledgeBase(path).close()
    return path


@pytest.fixture
def kb(tmp_path: Path, shipped: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase(Path(shutil.copy(shipped, tmp_path / "k.db"))) as base:
        yield base


def crash(title: str = TITLE, what: str = "soft_lockup", also: str = "stall in demo_submit", **words: str) -> Finding:
    return finding("crash.kernel", words={"name": title, "what": what, "also": also, **words}, window_pct=100)


def diagnosed(one: Finding) -> Diagnosis:
    return checkpoint(cause="kernel_crash", findings=[one], chain=[one.id], verdict=Verdict.LIKELY, culprit=None)


def test_titles_are_signatures_that_name_a_fault() -> None:
    keys = signatures(diagnosed(crash()))
    assert keys == [f"crash:{TITLE}", "crash:stall in demo_submit"]
    assert all(names_a_fault(key) for key in keys)


@pytest.mark.parametrize(
    "one",
    [
        crash("INFO: task hung in corrupted", "hung_task", "hang in corrupted"),
        crash("hardware error: machine check", "machine_check", ""),
        finding("crash.program", words={"name": "NCCL error in f", "what": "collective_error", "reaction": "rank"}),
        finding("crash.program", words={"name": "SIGKILL", "what": "signal"}),
        finding(
            "crash.kernel", words={"name": "out of memory: killed python3", "what": "oom"}, subject={"comm": "python3"}
        ),
    ],
)
def test_titles_without_a_place_are_none(one: Finding) -> None:
    assert crash_keys(one) == []


def test_the_same_bug_is_found_again_by_any_of_its_titles(kb: KnowledgeBase) -> None:
    with kb._file.write() as db:
        put_incident(db, own("demo-lockup", cause="kernel_crash", signatures=signatures(diagnosed(crash()))))
    # elsewhere another detector reported the same loop
    again = crash("INFO: rcu detected stall in demo_submit", "rcu_stall")
    first = kb.similar(evidence_of(diagnosed(again)), 3)[0]
    assert (first.incident, first.how, first.known) == ("demo-lockup", "signature", True)
    first = kb.similar(evidence_from([again]), 3)[0]  # findings of the tool alone support no cause
    assert (first.incident, first.how) == ("demo-lockup", "signature")
    other = evidence_of(diagnosed(crash("BUG: soft lockup in other_code", also="stall in other_code")))
    assert "demo-lockup" not in [match.incident for match in kb.similar(other, 5) if match.known]


def test_a_crash_is_one_ticket_on_all_hosts_and_another_crash_another() -> None:
    one = dedup_key(diagnosed(crash()))
    assert one == dedup_key(diagnosed(crash(log="/elsewhere/console")))
    assert one != dedup_key(diagnosed(crash("BUG: soft lockup in other_code")))
