"""The settings of the model: from the environment, refused with the remedy, never with a secret."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.settings.load import load_llm
from whystall.agent_server.settings.sections.llm import LlmSettings
from whystall.tools.contract.errors import ErrorCode, ToolError

KEY = "sk-0123456789abcdefghij"
GIVEN = {"BASE_URL": "https://models.example/v1", "MODEL": "qwen3"}


def _set(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in {**GIVEN, **values}.items():
        monkeypatch.setenv(f"WHYSTALL_LLM_{name}", value)


def _refused(*, holding: tuple[str, ...]) -> ToolError:
    with pytest.raises(ToolError) as caught:
        load_llm()
    assert caught.value.code is ErrorCode.NO_MODEL
    assert caught.value.remedy
    for words in holding:
        assert words in str(caught.value)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_without_settings_it_says_which_are_needed() -> None:
    _refused(holding=("no language model is set up", "WHYSTALL_LLM_BASE_URL", "WHYSTALL_LLM_MODEL"))


def test_two_settings_are_enough_and_empty_ones_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, API_KEY="", MAX_MONEY="")
    settings = load_llm()
    assert (settings.base_url, settings.model) == ("https://models.example/v1", "qwen3")
    assert settings.api_key is None
    assert settings.max_money is None
    assert settings.temperature is None


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://localhost:11434/", "http://localhost:11434/v1"),
        ("http://[::1]:8080/v1/", "http://[::1]:8080/v1"),
        ("https://api.deepseek.com/v1/chat/completions", "https://api.deepseek.com/v1"),
        (
            "https://dashscope.aliyuncs.com/compatible-mode/v1",
            "https://dashscope.aliyuncs.com/compatible-mode/v1",
        ),
        ("http://gateway/openai//", "http://gateway/openai"),
    ],
)
def test_addresses_as_people_copy_them(given: str, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, BASE_URL=given)
    assert load_llm().base_url == used


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"BASE_URL": "localhost:8000"}, ("BASE_URL", "http://")),
        ({"BASE_URL": "ftp://host/v1"}, ("BASE_URL", "http://")),
        ({"BASE_URL": "http://"}, ("BASE_URL", "host")),
        ({"BASE_URL": "http://host:99999/v1"}, ("BASE_URL: no URL",)),
        ({"BASE_URL": "http://[::1/v1"}, ("BASE_URL: no URL",)),
        ({"BASE_URL": "http://ho st/v1"}, ("BASE_URL", "blanks")),
        ({"BASE_URL": f"https://user:{KEY}@host/v1"}, ("BASE_URL", "password", "API_KEY_FILE")),
        ({"BASE_URL": f"https://host/v1?key={KEY}"}, ("BASE_URL", "parameters")),
        ({"BASE_URL": ""}, ("BASE_URL", "not set")),
        ({"MODEL": ""}, ("MODEL", "not set")),
        ({"MODEL": "a\nb"}, ("MODEL", "unprintable")),
        ({"API_KEY": f"{KEY}\r\nX-Evil: 1"}, ("API_KEY", "printable")),
        ({"RETRIES": "-1"}, ("RETRIES", "at least 0")),
        ({"TIMEOUT": "soon"}, ("TIMEOUT", "number")),
        ({"TIMEOUT": "nan"}, ("TIMEOUT",)),
        ({"STREAM": "perhaps"}, ("STREAM", "true or false")),
        ({"TEMPERATURE": "3"}, ("TEMPERATURE", "at most 2")),
        ({"MAX_MONEY": "1"}, ("MAX_MONEY", "PRICE_IN")),
        ({"MODLE": "x"}, ("WHYSTALL_LLM_MODLE: there is no such setting", "model")),
    ],
)
def test_what_cannot_be_used_is_named(
    values: dict[str, str], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _set(monkeypatch, **values)
    _refused(holding=words)


def test_a_key_goes_unencrypted_to_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, API_KEY=KEY, BASE_URL="http://10.0.0.7:8000/v1")
    _refused(holding=("unencrypted to 10.0.0.7:8000", "https://", "WHYSTALL_LLM_PLAIN_HTTP"))
    monkeypatch.setenv("WHYSTALL_LLM_PLAIN_HTTP", "1")
    assert load_llm().unencrypted
    monkeypatch.delenv("WHYSTALL_LLM_PLAIN_HTTP")
    monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", "http://127.0.0.1.evil.example/v1")
    _refused(holding=("unencrypted",))
    monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", "http://127.0.0.2:8000/v1")
    assert not load_llm().unencrypted


def test_the_key_of_a_file_is_used_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    file.chmod(0o600)
    _set(monkeypatch, API_KEY_FILE=str(file))
    settings = load_llm()
    assert settings.key() == KEY
    assert KEY not in repr(settings) + str(settings) + str(settings.model_dump()) + settings.model_dump_json()
    monkeypatch.setenv("WHYSTALL_LLM_API_KEY", KEY)
    _refused(holding=("both set",))


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (KEY, 0o644, ("others may read", "0644", "chmod 600")),
        (KEY, 0o640, ("others may read",)),
        ("", 0o600, ("is empty", "one line")),
        (f"{KEY}\n{KEY}\n", 0o600, ("printable",)),
        ("k" * 5000, 0o600, ("4096",)),
        ("schlüssel", 0o600, ("printable ASCII",)),
    ],
)
def test_a_file_that_holds_no_usable_key(
    content: str, mode: int, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(mode)
    _set(monkeypatch, API_KEY_FILE=str(file))
    _refused(holding=("API_KEY_FILE", str(file), *words))


def test_a_key_file_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, words in ((tmp_path / "pipe", "regular file"), (tmp_path, ""), (tmp_path / "none", "No such file")):
        _set(monkeypatch, API_KEY_FILE=str(path))
        _refused(holding=("API_KEY_FILE", words))


def test_a_dot_env_of_the_directory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("WHYSTALL_LLM_TIMEOUT=7\n")
    monkeypatch.chdir(tmp_path)
    _set(monkeypatch)
    assert load_llm().timeout == LlmSettings.model_fields["timeout"].default


def test_every_setting_says_what_it_means() -> None:
    undocumented: list[Any] = [name for name, field in LlmSettings.model_fields.items() if not field.description]
    assert undocumented == []


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a settings file with the table ``[llm]`` of these lines."""

    def write(*lines: str) -> Path:
        path = tmp_path / "whystall.toml"
        path.write_text("\n".join(["[llm]", *lines, ""]), encoding="utf-8")
        monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
        return path

    return write


def test_the_settings_file_is_enough(table: Callable[..., Path], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY + "\n", encoding="ascii")
    key.chmod(0o600)
    table('base_url = "https://models.example"', 'model = "qwen3"', f'api_key = {{file = "{key}"}}', "max_steps = 3")
    settings = load_llm()
    assert (settings.base_url, settings.model, settings.max_steps) == ("https://models.example/v1", "qwen3", 3)
    assert settings.key() == KEY


def test_the_environment_goes_over_the_file_and_its_key_over_the_files(
    table: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table('base_url = "https://models.example"', 'model = "qwen3"', 'api_key_file = "/nowhere"', "timeout = 5")
    monkeypatch.setenv("WHYSTALL_LLM_MODEL", "other")
    monkeypatch.setenv("WHYSTALL_LLM__TIMEOUT", "7")  # as over every table of the file
    monkeypatch.setenv("WHYSTALL_LLM_API_KEY", KEY)
    settings = load_llm()
    assert (settings.model, settings.timeout) == ("other", 7.0)
    assert settings.key() == KEY


def test_a_key_in_a_variable_of_another_name(table: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    table('base_url = "https://models.example"', 'model = "qwen3"', 'api_key = {env = "OUR_KEY"}')
    monkeypatch.setenv("OUR_KEY", KEY)
    assert load_llm().key() == KEY


@pytest.mark.parametrize(
    ("lines", "holding"),
    [
        ([f'api_key = "{KEY}"'], ("[llm] api_key", "a secret does not belong in the settings")),
        (['base_url = "https://models.example"', 'model = "m"', "tiemout = 3"], ("[llm] tiemout", "no such setting")),
        (['base_url = "ftp://models.example"', 'model = "m"'], ("[llm] base_url", "http")),
        (['base_url = "https://models.example"'], ("WHYSTALL_LLM_MODEL is not set",)),
        (['base_url = "https://models.example"', 'model = "m"', "timeout = 0"], ("[llm] timeout",)),
    ],
)
def test_what_is_wrong_in_the_file_is_named(
    table: Callable[..., Path], lines: list[str], holding: tuple[str, ...]
) -> None:
    table(*lines)
    _refused(holding=holding)
