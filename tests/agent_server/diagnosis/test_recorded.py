"""Real recordings (see tests/recorded/make.py), judged without root: each must be told from all the others."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import polars as pl
import pytest

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording

RECORDED = Path(__file__).parents[2] / "recorded"
EXPECTED = {
    "checkpoint": (Verdict.CONFIRMED, "sync_checkpoint_write"),
    "background": (Verdict.HEALTHY, None),
    "random": (Verdict.CONFIRMED, "kernel_cpu_in_syscall"),
    "healthy": (Verdict.HEALTHY, None),
    "quota": (Verdict.CONFIRMED, "cgroup_cpu_throttling"),
    "neighbour": (Verdict.CONFIRMED, "cpu_contention"),
    "hang": (Verdict.CONFIRMED, "stuck_file_operation"),
    "thrash": (Verdict.CONFIRMED, "page_cache_thrash"),
}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def diagnose(recording: Path) -> Diagnosis:
    with App().closing() as app:
        return anyio.run(lambda: app.diagnose(DiagnoseParams(), source=recording))


@pytest.mark.parametrize("case", EXPECTED)
def test_each_recording_has_its_own_verdict(case: str) -> None:
    found = diagnose(RECORDED / case)
    assert (found.verdict, found.cause) == EXPECTED[case], found.model_dump_json(indent=1)


def test_every_recorded_case_is_expected() -> None:
    assert {path.parent.name for path in RECORDED.glob("*/manifest.json")} == set(EXPECTED)


def test_the_random_run_rules_the_disk_out() -> None:
    found = diagnose(RECORDED / "random")
    assert found.culprit is not None
    assert found.culprit.syscall == "getrandom"
    states = {a.cause: a.state for a in found.assessments}
    assert states["slow_device"] is CauseState.RULED_OUT


def test_redaction_changes_names_and_nothing_else(tmp_path: Path) -> None:
    original = Recording.open(RECORDED / "checkpoint", COLLECTORS)
    redact(original).save(tmp_path / "redacted")
    here, there = diagnose(RECORDED / "checkpoint"), diagnose(tmp_path / "redacted")
    assert (there.verdict, there.cause) == (here.verdict, here.cause)
    assert [f.kind for f in there.findings] == [f.kind for f in here.findings]
    assert [f.metrics for f in there.findings] == [f.metrics for f in here.findings]
    assert here.culprit is not None
    assert there.culprit is not None
    assert here.culprit.path != there.culprit.path
    assert here.culprit.period_s == there.culprit.period_s


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "columns"])
def test_a_damaged_recording_is_refused(tmp_path: Path, damage: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(RECORDED / "checkpoint", copy)
    table = copy / "syscalls.calls.parquet"
    if damage == "truncate":
        table.write_bytes(table.read_bytes()[:100])
    elif damage == "remove":
        table.unlink()
    elif damage == "manifest":
        (copy / "manifest.json").write_bytes((copy / "manifest.json").read_bytes()[:200])
    else:
        pl.read_parquet(table).drop("comm").write_parquet(table)
    with pytest.raises(ToolError) as refused:
        diagnose(copy)
    assert refused.value.code is ErrorCode.BAD_RECORDING


def test_an_answer_that_there_is_no_room_to_store_is_given_all_the_same() -> None:
    with App().closing() as app:
        with closing(sqlite3.connect(app.kb().path)) as file:
            file.execute("VACUUM")  # merging the index leaves free pages
        with app.kb()._file.read() as db:
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {pages}")
            free = db.execute("PRAGMA freelist_count").fetchone()[0]
        assert free < 10  # a diagnosis needs more
        found = anyio.run(lambda: app.diagnose(DiagnoseParams(ticket=True), source=RECORDED / "checkpoint"))
        assert app.kb().tickets.list() == []
    assert (found.verdict, found.cause) == EXPECTED["checkpoint"]
    assert found.ticket is None
    assert found.matches
    assert "not_stored" in {spot.code for look in found.coverage for spot in look.not_seen}
