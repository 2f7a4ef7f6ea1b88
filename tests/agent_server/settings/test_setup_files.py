"""The files of a first installation."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from whystall.agent_server.settings.load import load, load_llm
from whystall.agent_server.settings.setup_files import Choices, SetupFile, setup_files
from whystall.tools.contract.errors import ErrorCode, ToolError


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "etc" / "whystall.toml"
    monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
    return path


def write(choices: Choices) -> dict[str, SetupFile]:
    made = {file.purpose: file for file in setup_files(choices, Path("/srv/my whystall/bin/whystall"))}
    for purpose in ("settings", "token"):
        if purpose in made:
            assert made[purpose].write()
    return made


def test_the_settings_are_what_was_chosen(config: Path) -> None:
    key = config.parent / "key"
    key.parent.mkdir()
    key.write_text("secret")
    key.chmod(0o600)
    name = 'llama "7b"\\\x7f'
    write(Choices(names=(name,), model_url="https://llm.example.com/v1", model="m", model_key_file=str(key)))
    assert load().watch.on
    assert load().watch.names == (name,)
    assert (load_llm().model, load_llm().key()) == ("m", "secret")


def test_what_exists_is_kept_and_a_token_is_private(config: Path) -> None:
    made = write(Choices(watch=False))
    assert not load().watch.on
    token = config.with_name("token")
    before = token.read_text()
    assert len(before.strip()) == 64
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert not any(file.write() for file in setup_files(Choices(), Path("/bin/whystall")))
    assert token.read_text() == before
    assert config.read_text() == made["settings"].content


def test_the_unit_runs_this_program(config: Path, tmp_path: Path) -> None:
    unit = write(Choices(unit=True))["unit"]
    assert f"LoadCredential=token:{config.with_name('token')}" in unit.content
    assert 'ExecStart="/srv/my whystall/bin/whystall" serve' in unit.content
    assert "/opt/" not in unit.content
    assert unit.write(tmp_path / "root")
    assert (tmp_path / "root/etc/systemd/system/whystall.service").read_text() == unit.content


@pytest.mark.parametrize(
    "choices",
    [Choices(model_url="ftp://x", model="m"), Choices(model_url="https://x"), Choices(names=("",))],
)
def test_a_wrong_choice_writes_nothing(config: Path, choices: Choices) -> None:
    with pytest.raises(ToolError) as caught:
        setup_files(choices, Path("/bin/whystall"))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert not config.exists()
