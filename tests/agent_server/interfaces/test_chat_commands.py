"""``whystall chat`` and ``whystall jobs``, in this process."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from chat_jobs import job, named

from whystall.agent_server.interfaces.cli import main as cli

SETTINGS = """
[oncall.schedules.storage]
timezone = "Asia/Shanghai"
layers = [{ users = ["wang"] }]
[users.wang]
name = "王伟"
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whystall.toml").write_text(SETTINGS, encoding="utf-8")
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    monkeypatch.setenv("WHYSTALL_CONFIG", str(tmp_path / "whystall.toml"))
    monkeypatch.setattr(cli.signals, "install", lambda: None)
    monkeypatch.setattr(cli.signals, "ignore", lambda: None)


def whystall(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    return int(ended.value.code or 0)


def test_jobs_finds_lists_and_asks(capsys: pytest.CaptureFixture[str]) -> None:
    with job(**named(1)) as one, job(**named(2)) as other:
        name = named(1)["TORCHELASTIC_RUN_ID"]
        assert whystall("jobs", name) == 0
        assert f"pid {one}" in capsys.readouterr().out
        assert whystall("jobs") == 0
        listed = capsys.readouterr().out
        assert str(one) in listed
        assert str(other) in listed
        assert whystall("jobs", name.rpartition("-")[0], "--lang", "zh") == 0
        assert "有多个相符" in capsys.readouterr().out
        assert whystall("jobs", "--json", "pid", str(one)) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["status"], found["pid"], found["rank"]) == ("found", one, 0)
        assert whystall("jobs", "--json") == 0
        assert {"jobs", "missed"} == json.loads(capsys.readouterr().out).keys()


def test_a_job_that_is_not_here_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert whystall("jobs", "unheard-of-7b") == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: no_such_process: ")
    assert "name `unheard-of-7b`" in said.err


def test_chat_reads_lines_and_a_fault_ends_only_its_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "谁值班\n\nticket 7\nack 7\nwho is on call tomorrow 9am\n" + "x" * 10_000 + "\nhelp"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert whystall("chat") == 0
    said = capsys.readouterr()
    assert "王伟" in said.out
    assert "no ticket" in said.out
    assert "09:00" in said.out
    assert "acknowledge 12" in said.out
    assert "error: not_found" in said.err


def test_chat_answers_one_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert whystall("chat", "why", "is", "unheard-of-7b", "slow", "--lang", "zh") == 0
    assert "没有这样的作业" in capsys.readouterr().out
    assert whystall("chat", "--lang", "fr", "help") == 2
