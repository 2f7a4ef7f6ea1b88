"""doctor says whether a model is set up, and answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model_server
import pytest
from byte_servers import bytes_server, http

from whystall.agent_server.doctor import model as doctor_model
from whystall.agent_server.doctor.report_model import Check, Health, State

Run = Callable[..., Any]
Ask = Callable[..., Check]
KEY = "sk-0123456789abcdefghij"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("WHYSTALL_LLM_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """What is found with these settings."""

    def run(**settings: str) -> Check:
        with monkeypatch.context() as only:
            for name, value in settings.items():
                only.setenv(f"WHYSTALL_LLM_{name}", value)
            found = doctor_model.model()
        assert KEY not in found.model_dump_json()
        assert found.state is State.OK or (found.means and found.fix)
        return found

    return run


def test_doctor_asks_and_its_answer_stays_one_of_the_host(whystall: Run) -> None:
    with model_server.serve([]) as server:
        env = {"WHYSTALL_LLM_BASE_URL": server.base_url, "WHYSTALL_LLM_MODEL": "example"}
        done = whystall("doctor", "--json", env=env)
    health = Health.model_validate_json(done.stdout)
    assert [found.state for found in health.checks if found.name == "model"] == [State.OK]
    assert done.returncode == (0 if health.engines else 1)


def test_without_settings_it_says_how_to_set_one_up(check: Ask) -> None:
    found = check()
    assert (found.state, found.found) == (State.LIMITED, "none is set up")
    assert "WHYSTALL_LLM_BASE_URL and WHYSTALL_LLM_MODEL" in found.fix


def test_a_model_that_answers_is_found_and_asked_for_nothing(check: Ask, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    with model_server.serve([], key=KEY) as server:
        url = server.base_url
        found = check(BASE_URL=url, MODEL="example", API_KEY_FILE=str(key))
        assert found.state is State.OK
        assert f"example at 127.0.0.1:{server.port} answers" in found.found
        assert [request.method for request in server.requests] == ["GET"]
        assert check(BASE_URL=url, MODEL="example", API_KEY_FILE=str(key), PROTOCOL="anthropic").state is State.OK
        refused = check(BASE_URL=url, MODEL="example")
        assert "unauthorised" in refused.found
        assert "WHYSTALL_LLM_PROTOCOL" in refused.fix
        assert "'other', but example" in check(BASE_URL=url, MODEL="other", API_KEY=KEY).found
    assert "connection refused" in check(BASE_URL=url, MODEL="example").found


def test_settings_that_cannot_be_used_are_named(check: Ask) -> None:
    assert "WHYSTALL_LLM_BASE_URL is not set" in check(MODEL="example").found
    assert "unencrypted" in check(BASE_URL="http://models.example/v1", MODEL="m", API_KEY=KEY).found


def test_servers_without_a_list(check: Ask) -> None:
    for answer in (http("<html><title>Sign in</title>"), http('{"detail":"Not Found"}', status="404 x"), http("{}")):
        with bytes_server(answer) as url:
            found = check(BASE_URL=url, MODEL="m")
        assert found.state is State.LIMITED
        assert "BASE_URL" in found.fix
    with bytes_server(http('{"data": [{"id": "m:latest"}]}')) as url:
        assert check(BASE_URL=url, MODEL="m").state is State.OK


def test_no_http_is_imported_where_no_model_is_set_up() -> None:
    code = (
        "import sys\n"
        "from whystall.agent_server import app, doctor\n"
        "from whystall.agent_server.diagnosis import diagnose\n"
        "from whystall.agent_server.doctor import model as doctor_model\n"
        "doctor_model.model()\n"
        "sys.exit(' '.join({'httpx', 'pydantic_settings', 'ssl'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "")
