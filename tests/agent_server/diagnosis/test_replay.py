"""A transcript replays to the same end without model and host, and what is not the same is told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import model_server
import pytest
from model_policies import POLICIES

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis import replay as replaying
from whystall.agent_server.diagnosis import transcript_files
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.replay import Replay
from whystall.knowledge_base.models import Diagnosis, Lang, Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.toolbox import registry

pytestmark = pytest.mark.thorough

RECORDED = Path(__file__).parents[2] / "recorded"
TOOLS = {tool.name: tool for tool in registry().all()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory for this module: the knowledge base is made once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def home(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That directory as the one that is used."""
    monkeypatch.setenv("WHYSTALL_HOME", str(shared))
    return shared


def diagnosed(source: Path | None, params: DiagnoseParams | None = None, lang: Lang = "en") -> Diagnosis:
    """A diagnosis, whose transcript is left."""
    with App().closing() as app:
        return anyio.run(lambda: app.diagnose(params or DiagnoseParams(), source=source, lang=lang))


def driven(policy: str, monkeypatch: pytest.MonkeyPatch, lang: Lang = "en") -> Diagnosis:
    """A diagnosis of the recorded stall by a model that answers by `policy`."""
    with model_server.serve(POLICIES[policy].make()) as server:
        monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", server.base_url)
        monkeypatch.setenv("WHYSTALL_LLM_MODEL", model_server.MODEL)
        params = DiagnoseParams(llm=True, symptom="training stalls every few steps")
        return diagnosed(RECORDED / "checkpoint", params, lang)


def replayed(path: Path) -> Replay:
    """The replay of a file, where nothing else is left: no knowledge base, no recording."""
    return anyio.run(lambda: replaying.replay(path, TOOLS))


def changed(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    """A transcript with its records changed."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records)
    other = path.with_name(f"{path.stem}-changed.jsonl")
    other.write_text("".join(json.dumps(record) + "\n" for record in records))
    return other


def of(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The records of a type."""
    return [record for record in records if record["type"] == kind]


@pytest.mark.parametrize("case", sorted(path.parent.name for path in RECORDED.glob("*/manifest.json")))
def test_what_the_rules_did_comes_out_the_same(case: str) -> None:
    found = diagnosed(RECORDED / case)
    done = replayed(transcript_files.path_of(found.id))
    assert done.same, done.difference
    assert (done.end.verdict, done.end.cause) == (found.verdict, found.cause)
    assert done.end.chain == found.chain
    assert done.looks == len(found.steps)
    assert done.others == []
    assert done.model is None


@pytest.mark.parametrize(
    "policy",
    [pytest.param(name, marks=pytest.mark.thorough if name.endswith("-stubborn") else ()) for name in sorted(POLICIES)],
)
def test_what_a_model_did_comes_out_the_same(policy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = driven(policy, monkeypatch)
    assert found.reasoning is not None
    assert found.reasoning.transcript == f"whystall://transcripts/{found.id}"
    path = transcript_files.path_of(found.id)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    done = replayed(path)
    assert done.same, done.difference
    assert done.model == model_server.MODEL
    assert done.end.claims == found.reasoning.claims
    assert done.end.unverified == found.reasoning.unverified
    assert done.end.struck == found.reasoning.struck
    assert done.end.stopped == found.reasoning.stopped
    assert not list(tmp_path.iterdir()), "a replay stores nothing, and leaves no transcript"


def test_a_chinese_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = driven("engineer", monkeypatch, "zh")
    assert replayed(transcript_files.path_of(found.id)).same


def test_a_budget_ends_a_replay_where_it_ended_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_LLM_MAX_STEPS", "2")
    found = driven("engineer", monkeypatch)
    assert found.reasoning is not None
    assert found.reasoning.stopped == "budget_steps"
    monkeypatch.delenv("WHYSTALL_LLM_MAX_STEPS")
    done = replayed(transcript_files.path_of(found.id))
    assert done.same, done.difference
    assert done.answers == 2


def test_struck_words_stand_in_the_transcript_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = driven("invented-number-stubborn", monkeypatch)
    done = replayed(transcript_files.path_of(found.id))
    assert done.same, done.difference
    assert done.claims
    words = [claim.text for claim in done.claims if claim.code == "literal"]
    assert words
    kept = found.model_dump_json()
    assert not any(text in kept for text in words)


def test_no_secret_stands_in_a_transcript(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-a-key-of-the-tests-0123456789"
    with model_server.serve(POLICIES["engineer"].make(), key=key) as server:
        monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", server.base_url)
        monkeypatch.setenv("WHYSTALL_LLM_MODEL", model_server.MODEL)
        monkeypatch.setenv("WHYSTALL_LLM_API_KEY", key)
        found = diagnosed(RECORDED / "checkpoint", DiagnoseParams(llm=True))
    assert found.reasoning is not None
    assert found.reasoning.stopped is None
    text = transcript_files.path_of(found.id).read_text()
    assert key not in text
    assert server.base_url not in text


def test_ranks_come_out_the_same() -> None:
    found = diagnosed(None, DiagnoseParams(traces=str(RECORDED / "ranks" / "compute")))
    done = replayed(transcript_files.path_of(found.id))
    assert done.same, done.difference
    assert done.end.missing == found.missing
    assert done.target == found.recording


def test_ranks_that_a_model_had_no_host_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with model_server.serve(POLICIES["engineer"].make()) as server:
        monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", server.base_url)
        monkeypatch.setenv("WHYSTALL_LLM_MODEL", model_server.MODEL)
        found = diagnosed(None, DiagnoseParams(traces=str(RECORDED / "ranks" / "compute"), llm=True))
    done = replayed(transcript_files.path_of(found.id))
    assert done.same, done.difference
    assert done.end.stopped == "no_host"


@pytest.mark.parametrize(
    ("change", "where", "recorded", "now"),
    [
        (lambda r: of(r, "end")[0].update(verdict="likely"), "verdict", "likely", "confirmed"),
        (lambda r: of(r, "end")[0].update(cause="slow_device"), "cause", "slow_device", "sync_checkpoint_write"),
        (lambda r: of(r, "end")[0].update(chain=["F99"]), "chain", "F99", "F"),
        (lambda r: of(r, "look")[1].update(tools=["heat_map"]), "look 2", "heat_map", "fileslower"),
        (lambda r: r.remove(of(r, "look")[1]), "look 2", "none", "fileslower"),
        (lambda r: r.insert(2, of(r, "look")[0]), "look 2", "host_snapshot", "fileslower"),
        (lambda r: r.insert(-1, of(r, "look")[0]), "look 3", "host_snapshot", "none"),
        (lambda r: of(r, "look")[0]["results"][0].update(tool="oracle"), "look 1: results", "oracle", "no such"),
        (lambda r: of(r, "look")[0]["results"][0]["data"].clear(), "look 1: results", "host_snapshot", "another shape"),
        (lambda r: of(r, "look")[0]["results"].__setitem__(0, {}), "look 1: results", "", "no such tool"),
        (lambda r: of(r, "look")[1].update(options={"fileslower": {"min_ms": 1}}), "look 2", "min_ms", "fileslower"),
    ],
    ids=["verdict", "cause", "chain", "tools", "less", "twice", "more", "tool", "shape", "empty", "options"],
)
def test_where_it_first_differs_is_told(
    change: Callable[[list[dict[str, Any]]], object], where: str, recorded: str, now: str
) -> None:
    found = diagnosed(RECORDED / "checkpoint")
    done = replayed(changed(transcript_files.path_of(found.id), change))
    assert not done.same
    assert done.difference is not None
    assert done.difference.where == where
    assert recorded in done.difference.recorded
    assert now in done.difference.replayed


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda r: r.remove(of(r, "reply")[-1]), "answer "),
        (lambda r: r.insert(-1, of(r, "reply")[0]), "answer "),
        (lambda r: of(r, "reply")[0]["reply"].update(calls=[], content="I do not know"), ""),
        (lambda r: of(r, "end")[0].update(claims=[]), "claims"),
        (lambda r: of(r, "end")[0].update(struck=["share"]), "struck"),
        (lambda r: of(r, "end")[0].update(stopped="timeout"), "stopped"),
        (lambda r: of(r, "case")[0].update(settings={}), "settings"),
        (lambda r: of(r, "case")[0]["settings"].update(limits={"steps": -1}), "settings"),
    ],
    ids=["less", "more", "another", "claims", "struck", "stopped", "settings", "limits"],
)
def test_another_conversation_is_told(
    change: Callable[[list[dict[str, Any]]], object], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = driven("engineer", monkeypatch)
    done = replayed(changed(transcript_files.path_of(found.id), change))
    assert not done.same
    assert done.difference is not None
    assert done.difference.where.startswith(where)


@pytest.mark.parametrize(
    ("policy", "verdict"), [("invented-number", Verdict.CONFIRMED), ("invented-number-stubborn", Verdict.LIKELY)]
)
def test_a_conclusion_in_prose_of_an_older_version_comes_out_the_same(
    policy: str, verdict: Verdict, tmp_path: Path
) -> None:
    """Recorded with version 1: its sentences are shown as a hypothesis, and what was removed then stays removed."""
    path = tmp_path / "old.jsonl"
    path.write_bytes(gzip.decompress((RECORDED / "transcripts_v1" / f"{policy}.jsonl.gz").read_bytes()))
    done = replayed(path)
    assert done.same, done.difference
    assert (done.end.verdict, done.end.cause) == (verdict, "sync_checkpoint_write")
    assert "waits until a file is written" in done.end.unverified.hypothesis
    assert "8642.7" not in done.end.unverified.hypothesis
    assert [claim.code for claim in done.claims] == ["number"] * (2 if policy.endswith("stubborn") else 1)


def test_what_is_of_another_version_is_named() -> None:
    def older(records: list[dict[str, Any]]) -> None:
        records[0].update(whystall="0.0.1", causes="0" * 16, tools="0" * 16)

    found = diagnosed(RECORDED / "checkpoint")
    done = replayed(changed(transcript_files.path_of(found.id), older))
    assert done.same
    assert done.others == ["whystall", "causes", "tools"]
    assert done.made_with == "0.0.1"


def test_a_diagnosis_that_fails_leaves_no_transcript(tmp_path: Path) -> None:
    """Nothing to replay: the error was the answer."""
    before = transcript_files.ids()
    with pytest.raises(ToolError):
        diagnosed(tmp_path / "nothing")
    assert transcript_files.ids() == before


def test_a_transcript_that_cannot_be_written_costs_no_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transcripts").write_text("in the way")
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    found = diagnosed(RECORDED / "checkpoint")
    assert found.verdict is Verdict.CONFIRMED
    with pytest.raises(ToolError) as error:
        transcript_files.path_of(found.id)
    assert error.value.code is ErrorCode.NOT_FOUND
