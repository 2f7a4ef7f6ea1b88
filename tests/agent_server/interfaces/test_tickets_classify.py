"""``whystall tickets classify`` at the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from byte_servers import bytes_server, http

from whystall.agent_server.interfaces.cli import main as cli
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.classify.report import Report

Said = tuple[int, str, str]


@pytest.fixture
def whystall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """Run ``whystall tickets classify ARGUMENTS`` in this process, beside two tickets, the second left open."""
    with Stores(tmp_path / "knowledge.db") as kb:
        for text in ("CUDA out of memory on the third card of host-7", "x509 error and the invoice is wrong"):
            TicketService(kb).file(Report(origin="work_order", title=text, created="2026-01-01T00:00:00Z"))
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))

    def run(*words: str) -> Said:
        status = cli._command(["tickets", "classify", *words])
        status = cli._deliver() or status
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_a_persons_word_stands(whystall: Callable[..., Said]) -> None:
    status, out, _ = whystall("1", "--category", "network", "--severity", "critical", "--by", "ann", "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["category"], told["component"], told["severity"]) == ("network", "unknown", "critical")
    assert told["classification"]["category"]["by"] == "person:ann"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["1", "--category", "banana"], "no category"),
        (["1"], "or --llm alone"),
        (["1", "--llm", "--category", "network"], "or --llm alone"),
        (["1", "--llm"], "left open"),
        (["2", "--llm"], "no language model"),
        (["99", "--category", "network"], "no ticket"),
    ],
)
def test_what_is_wrong_is_said(
    whystall: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, words: list[str], what: str
) -> None:
    for name in ("WHYSTALL_LLM_BASE_URL", "WHYSTALL_LLM_MODEL"):
        monkeypatch.delenv(name, raising=False)
    status, out, err = whystall(*words)
    assert (status != 0, out) == (True, "")
    assert what in err


@pytest.mark.parametrize(("content", "category"), [("1", "access"), ("0", None), ("network", None)])
def test_a_model_chooses_among_what_is_left_open(
    whystall: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, content: str, category: str | None
) -> None:
    message = {"role": "assistant", "content": content}
    answer = http(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}))
    with bytes_server(answer) as address:
        monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", f"{address}/v1")
        monkeypatch.setenv("WHYSTALL_LLM_MODEL", "m")
        monkeypatch.setenv("WHYSTALL_LLM_STREAM", "false")
        status, out, err = whystall("2", "--llm", "--json")
    if category is None:
        assert (status != 0, "chose none" in err) == (True, True)
        return
    assert status == 0, err
    told = json.loads(out)
    assert (told["category"], told["classification"]["category"]["by"]) == (category, "model")


def test_a_model_that_does_not_answer_is_said(whystall: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    with bytes_server(http("{}", status="401 Unauthorized")) as address:
        monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", f"{address}/v1")
        monkeypatch.setenv("WHYSTALL_LLM_MODEL", "m")
        status, _, err = whystall("2", "--llm")
    assert status != 0
    assert "did not answer" in err
    assert err.count("\n") == 1
