"""What ``whystall doctor`` says of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.agent_server.doctor.report_model import State
from whystall.agent_server.doctor.settings import settings
from whystall.agent_server.settings.load import load
from whystall.tools.contract.errors import ToolError


def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    path = tmp_path / "whystall.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
    return path


def test_none_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WHYSTALL_CONFIG")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    check = settings()
    assert (check.state, check.found) == (
        State.OK,
        f"none ({tmp_path}/whystall/whystall.toml): alerts, trackers and chats are off",
    )


def test_good_ones_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = _file(tmp_path, monkeypatch, '[tickets]\nlang = "zh"\n')
    assert (settings().state, settings().found) == (State.OK, str(path))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[tickets]\nsinks = ["a", "b"]\n', "[tickets] sinks: there is no [sinks.a] (and 1 more)"),
        ("[tikets]\n", "[tikets]: there is no such setting"),
        ("[tickets\n", "no TOML"),
    ],
)
def test_the_first_fault_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, found: str) -> None:
    _file(tmp_path, monkeypatch, text)
    check = settings()
    assert check.state is State.LIMITED
    assert found in check.found
    assert check.fix


def test_a_home_directory_may_be_written_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _file(tmp_path, monkeypatch, '[alerts]\nroutes = "~/routes.yaml"\n')
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(load().alerts.routes) == "/home/ann/routes.yaml"
    _file(tmp_path, monkeypatch, '[alerts]\nroutes = "~nobody-of-this-name/routes.yaml"\n')
    with pytest.raises(ToolError, match="no home directory is known"):
        load()
