"""A diagnosis whose model does not answer is refused before it begins, or finished by the rules with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import model_server
import pytest
from byte_servers import bytes_server, http
from model_server import Raw, Turn, error

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.llm.wire import LlmError
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.thorough

RECORDED = Path(__file__).parents[2] / "recorded" / "checkpoint"
KEY = "sk-0123456789abcdefghij"
Set = Callable[..., None]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    for name in os.environ:
        if name.startswith("WHYSTALL_LLM_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Set:
    """Sets the model's settings, as they are named."""

    def set_them(**values: str) -> None:
        for name, value in {"MODEL": "example", "RETRIES": "0", **values}.items():
            monkeypatch.setenv(f"WHYSTALL_LLM_{name}", value)

    return set_them


def _diagnosed(failed: list[LlmError], *, llm: bool = True) -> Diagnosis:
    with App().closing() as app:
        return anyio.run(lambda: app.diagnose(DiagnoseParams(llm=llm), source=RECORDED, failed=failed.append))


def _independent_of_model(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the fields that must not depend on whether a model was asked."""
    whole = diagnosis.model_dump()
    return {name: whole[name] for name in ("verdict", "cause", "culprit", "explained_pct", "missing")}


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (error(401, f"bad key {KEY}"), "unauthorised", "API_KEY_FILE"),
        (Raw(404, '{"detail":"Not Found"}'), "rejected", "ends in /v1"),
        (error(429, "slow down", Retry_After="3600"), "rate_limited", "slow down"),
        (error(500, "boom"), "server_error", "boom"),
        (Raw(200, "<html><title>Sign in</title>", content_type="text/html"), "bad_answer", "a web page (Sign in)"),
        (Raw(200, b" " * (1 << 20), repeat=100), "too_large", "4 MiB"),
        (error(400, "gemma does not support tools"), "rejected", "can call functions"),
        (error(400, "maximum context length is 2048 tokens"), "context_full", "2048"),
    ],
    ids=["401", "404", "429", "500", "web-page", "100-MB", "no-tools", "context"],
)
def test_the_rules_finish_and_the_reason_is_reported(answer: Raw, code: str, words: str, settings: Set) -> None:
    failed: list[LlmError] = []
    with model_server.serve(lambda _: answer) as server:
        settings(BASE_URL=server.base_url, API_KEY=KEY)
        diagnosis = _diagnosed(failed)
    assert diagnosis.reasoning is not None
    assert diagnosis.reasoning.stopped == code
    assert [fault.code for fault in failed] == [code]
    assert words in str(failed[0])
    assert KEY not in str(failed[0]) + diagnosis.model_dump_json()
    transcripts = list((Path(os.environ["WHYSTALL_HOME"]) / "transcripts").iterdir())
    assert transcripts
    assert all(KEY not in path.read_text() for path in transcripts)
    assert _independent_of_model(diagnosis) == _independent_of_model(_diagnosed([], llm=False))


@pytest.mark.parametrize("where", ["nobody", "no-name", "no-tls", "silent"])
def test_a_server_that_is_not_there(where: str, settings: Set) -> None:
    failed: list[LlmError] = []
    with bytes_server(http("{}")) as url, bytes_server(b"", hold=True) as silent:
        urls = {"nobody": "http://127.0.0.1:1/v1", "no-name": "https://no-such-host.invalid/v1", "silent": silent}
        settings(BASE_URL=urls.get(where, url.replace("http:", "https:")), TIMEOUT="1")
        diagnosis = _diagnosed(failed)
    assert diagnosis.reasoning is not None
    assert diagnosis.reasoning.stopped == ("timeout" if where == "silent" else "unreachable")
    assert len(failed) == 1
    assert diagnosis.cause == "sync_checkpoint_write"


def test_a_model_that_answers_in_prose_is_corrected_once(settings: Set) -> None:
    with model_server.serve(lambda _: Turn("I believe it is the disk.")) as server:
        settings(BASE_URL=server.base_url)
        diagnosis = _diagnosed([])
    assert diagnosis.reasoning is not None
    assert diagnosis.reasoning.stopped == "prose"
    assert len(server.chats) == 2
    assert diagnosis.cause == "sync_checkpoint_write"


def test_unusable_settings_end_it_before_anything_is_observed(settings: Set) -> None:
    with pytest.raises(ToolError) as caught:
        _diagnosed([])
    assert caught.value.code is ErrorCode.NO_MODEL
    settings(BASE_URL="http://models.example/v1", API_KEY=KEY)
    with pytest.raises(ToolError, match="unencrypted"):
        _diagnosed([])
    home = Path(os.environ["WHYSTALL_HOME"])
    assert not (home / "transcripts").exists()


def test_the_command_line_reports_it_in_one_line(whystall: Callable[..., Any]) -> None:
    words = ("diagnose", "--llm", "--from", str(RECORDED), "--json")
    done = whystall(*words, env={"WHYSTALL_LLM_MODEL": "x"})
    assert done.returncode == 1
    assert done.stderr.startswith("error: no_model: WHYSTALL_LLM_BASE_URL is not set; ")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["error"]["code"] == "no_model"
    env = {"WHYSTALL_LLM_MODEL": "x", "WHYSTALL_LLM_BASE_URL": "http://127.0.0.1:1", "WHYSTALL_LLM_RETRIES": "0"}
    done = whystall(*words, env=env)
    assert done.returncode == 0
    assert "unreachable: 127.0.0.1:1: nothing listens there" in done.stderr
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["reasoning"]["stopped"] == "unreachable"
