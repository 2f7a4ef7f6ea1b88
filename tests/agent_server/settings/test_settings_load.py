"""One settings file and the variables over it: what is wrong is named in a line, by its place, never by its value."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.settings.load import load, validate
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.settings.sources import RawSettings, tomllib
from whystall.tools.contract.errors import ErrorCode, ToolError

SECRET = "glpat-AbCdEf0123456789xyzw"
Write = Callable[..., Path]

ROTATION = """
[oncall.rotations.w]
every = "weekly"
start = 2026-01-05T09:00:00
members = ["ann"]
"""
SCHEDULE = (
    ROTATION
    + """
[oncall.schedules.s]
timezone = "Europe/Berlin"
layers = [{rotation = "w"}]
"""
)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Make this the settings file."""

    def put(text: str | bytes, mode: int = 0o600) -> Path:
        path = tmp_path / "whystall.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
        return path

    return put


def refused(*holding: str) -> ToolError:
    with pytest.raises(ToolError) as caught:
        load()
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    for words in holding:
        assert words in caught.value.message
    assert caught.value.remedy
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_without_a_file_everything_is_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WHYSTALL_CONFIG")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = load()
    assert settings == Settings()
    assert (settings.sinks, settings.chat, settings.users, settings.alerts.token) == ({}, {}, {}, None)
    assert settings.raw.path is None
    (tmp_path / "whystall").mkdir()
    (tmp_path / "whystall/whystall.toml").write_text('[tickets]\nlang = "zh"\n', encoding="utf-8")
    assert load().tickets.lang == "zh"


def test_a_file_that_was_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHYSTALL_CONFIG", str(tmp_path / "nowhere.toml"))
    refused("WHYSTALL_CONFIG", "nowhere.toml")


def test_variables_go_over_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write('[tickets]\nlang = "en"\n[users.jana-m]\nname = "Jana"\n' + SCHEDULE)
    for name, value in {
        "TICKETS__LANG": "zh",
        "SERVER__KEEP_DAYS": "7",
        "SERVER__WORKER": "false",
        "USERS__JANA_M__EMAIL": "jana@example.com",  # spelled as the file does
        "ONCALL__ROTATIONS__W__MEMBERS": '["bo", ["cy", "dan"]]',
        "ONCALL__GROUPS": '{"g": ["ann"]}',
        "ONCALL__TIMEZONE": "",  # empty ones do not count
        "SINKS__HOOK__KIND": "webhook",
        "SINKS__HOOK__URL": "https://example.com",
    }.items():
        monkeypatch.setenv(f"WHYSTALL_{name}", value)
    settings = load()
    assert settings.tickets.lang == "zh"
    assert (settings.server.keep_days, settings.server.worker) == (7.0, False)
    assert (settings.users["jana-m"].name, settings.users["jana-m"].email) == ("Jana", "jana@example.com")
    assert settings.oncall.rotations["w"].members == ["bo", ["cy", "dan"]]
    assert settings.oncall.groups == {"g": ["ann"]}
    assert settings.oncall.timezone is None
    assert settings.sinks["hook"].kind == "webhook"
    assert settings.raw.origin(("users", "jana-m", "email")) == "WHYSTALL_USERS__JANA_M__EMAIL"
    assert settings.raw.origin(("users", "jana-m", "name")) == str(settings.raw.path)


@pytest.mark.parametrize(
    ("text", "holding"),
    [
        ("[tickets]\nlnag = 'zh'", ("[tickets] lnag: there is no such setting",)),
        ("[tikets]\nlang = 'zh'", ("[tikets]: there is no such setting",)),
        ("[tickets]\nlang = 'fr'", ("[tickets] lang: give one of 'en', 'zh'",)),
        ("[tickets]\nlangs = 'en'", ("[tickets] langs: there is no such setting; is lang meant?",)),
        ("[tickets]\nsinks = 'tracker'", ('[tickets] sinks: write a list: ["..."]',)),
        ("[sinks.t]\nkind = 'gitlba'", ("[sinks] t: kind: give one of 'github', 'gitlab',",)),
        ("[sinks.t]\nurl = 'https://h'", ("[sinks] t: kind: it is missing",)),
        (SCHEDULE + "[[oncall.schedules.s.escalation]]\nafter = 15\nusers = ['ann']", ("after: give at least 60s",)),
        ("tickets = 3", ("[tickets]: ",)),
        ("[users.'a b']", ("[users] a b: a name is at most 64 letters",)),
        ("[oncall.rotations.'-x']", ("[oncall.rotations] -x: a name",)),
        (ROTATION + "until = 2026-01-05T09:00:00", ("[oncall.rotations] w: it ends before it begins",)),
        ("[sinks.x]\nkind = 'mail'", ("[sinks] x", "kind")),
        ("[sinks.x]\nurl = 'https://example.com'", ("[sinks] x", "kind")),
        (f"[sinks.x]\nkind = 'gitlab'\nproject = 'a/b'\ntoken = '{SECRET}'", ("[sinks.x] token: a secret does not",)),
        (f"[sinks.x]\nkind = 'gitlab'\nproject = 'a/b'\ntoken = {{value = '{SECRET}'}}", ("[sinks.x.token] value",)),
        ("[sinks.x]\nkind = 'gitlab'\nproject = 'a/b'", ("[sinks.x] token: it is missing",)),
        ("[sinks.x]\nkind = 'gitlab'\nproject = 'a/b'\ntoken = {}", ("[sinks.x] token: give one of file and env",)),
        ("[chat.x]\nkind = 'dingtalk'", ("[chat] x: it can neither receive nor send",)),
        ("[oncall.schedules.s]\ntimezone = 'Mars/Olympus'", ("[oncall.schedules.s] timezone: no such time zone",)),
        ("[oncall.schedules.s]\ntimezone = '../../etc/passwd'", ("[oncall.schedules.s] timezone: no such time zone",)),
        ("[oncall.schedules.s]\nlayers = []", ("[oncall.schedules.s] timezone: it is missing",)),
        (
            "[oncall.schedules.s]\ntimezone = 'UTC'\n[[oncall.schedules.s.layers]]\nusers = ['a']\n"
            "[[oncall.schedules.s.layers]]\nusers = ['a']\nfrom = '9 am'",
            ("[oncall.schedules.s.layers no. 2] from: write a time of the day",),
        ),
        (
            "[oncall.schedules.s]\ntimezone = 'UTC'\nlayers = [{users = ['a'], weekdays = ['monday']}]",
            ("[oncall.schedules.s.layers no. 1] weekdays no. 1",),
        ),
        (
            "[oncall.schedules.s]\ntimezone = 'UTC'\nlayers = [{users = ['a'], rotation = 'w'}]",
            ("[oncall.schedules.s] layers no. 1: give one of rotation and users",),
        ),
        (ROTATION.replace('["ann"]', "[]"), ("[oncall.rotations] w: the rotation has no members",)),
        (ROTATION.replace('["ann"]', "[[]]"), ("[oncall.rotations.w] members no. 1",)),
        (ROTATION.replace("weekly", "yearly"), ("[oncall.rotations.w] every: give one of 'hourly'",)),
        (ROTATION + "length = 0", ("[oncall.rotations.w] length",)),
        (ROTATION.replace("2026", "1066"), ("[oncall.rotations.w] start: give a time between 1970 and 2200",)),
        (ROTATION + "weekdays = ['mon']", ("only daily rotations have weekdays",)),
        (SCHEDULE.replace('rotation = "w"', 'rotation = "v"'), ("[oncall]: schedules.s.layers no. 1: no rotation",)),
        (SCHEDULE + "escalation = [{after = '5m', schedules = ['t']}]", ("no schedule is called 't' (s)",)),
        (SCHEDULE + "escalation = [{after = '5m'}]", ("give users or schedules",)),
        (SCHEDULE + "escalation = [{after = 'soon', users = ['a']}]", ("write a time span as 90s",)),
        (SCHEDULE + "escalation = [{after = '1s', users = ['a']}]", ("[oncall.schedules.s.escalation no. 1] after",)),
        ("[oncall]\nschedule = 'x'", ("[oncall]: schedule: no schedule is called 'x' (there is none)",)),
        ("[oncall.groups]\na = ['b']\nb = ['a']", ("'b' is a group itself",)),
        ("[oncall.groups]\na = ['a']", ("'a' is a group itself",)),
        ("[[oncall.rules]]\nid = 'r'\nusers = ['a']\n[[oncall.rules]]\nid = 'r'\nusers = ['a']", ("two rules", "'r'")),
        ("[[oncall.rules]]\nid = 'r'", ("give one of schedule and users",)),
        (
            SCHEDULE + "temporary = [{name = 'a', from = 2026-05-01T00:00:00, to = 2026-05-03T00:00:00},"
            "{name = 'b', from = 2026-05-02T00:00:00, to = 2026-05-04T00:00:00}]",
            ("temporary a and b overlap",),
        ),
        (SCHEDULE + "temporary = [{name = 'a', from = 2026-05-03T00:00:00, to = 2026-05-01T00:00:00}]", ("it ends",)),
        ("[server\n", ("no TOML", "line 1")),
        ("a = 1\na = 2\n", ("no TOML", "line 2")),
        ("a = 2026-13-45", ("no TOML",)),
        (f"a = {'[' * 5000}", ("too many lists within lists",)),
        (b"[users.a]\nname = '\xff\xfe'", ("line 2 is not UTF-8",)),
        ("a = '" + "x" * 1_100_000 + "'", ("too long",)),
        ("\0", ("no TOML",)),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(write: Write, text: str | bytes, holding: tuple[str, ...]) -> None:
    path = write(text)
    refused(str(path), *holding)


def test_a_file_that_everybody_may_write_is_not_believed(write: Write) -> None:
    write("", mode=0o666)
    assert "chmod o-w" in refused("all users may write").remedy


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_is_no_file_is_refused_and_not_waited_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "whystall.toml"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
    refused("is no regular file" if kind == "pipe" else "directory")


@pytest.mark.parametrize(
    ("name", "value", "holding"),
    [
        ("WHYSTALL_TIKETS__LANG", "zh", ("WHYSTALL_TIKETS__LANG", "no section 'tikets'")),
        ("WHYSTALL_TICKETS__LANGUAGE", "zh", ("WHYSTALL_TICKETS__LANGUAGE: there is no such setting",)),
        ("WHYSTALL_SERVER__KEEP_DAYS", SECRET, ("WHYSTALL_SERVER__KEEP_DAYS: write a number",)),
        ("WHYSTALL_ALERTS__TOKEN", SECRET, ("WHYSTALL_ALERTS__TOKEN: a secret does not belong in the settings",)),
        ("WHYSTALL_TICKETS____LANG", "zh", ("WHYSTALL_TICKETS____LANG: no name of a setting",)),
        ("WHYSTALL_TICKETS__LANG__X", "zh", ("WHYSTALL_TICKETS__LANG__X: tickets.lang is no table",)),
        ("WHYSTALL_ONCALL__GROUPS", "{not json", ("WHYSTALL_ONCALL__GROUPS: ",)),
    ],
)
def test_a_wrong_variable_is_named(
    write: Write, monkeypatch: pytest.MonkeyPatch, name: str, value: str, holding: tuple[str, ...]
) -> None:
    write('[tickets]\nlang = "en"\n')
    monkeypatch.setenv(name, value)
    refused(*holding)


def test_many_faults_are_told_by_the_first(write: Write) -> None:
    write("".join(f"[users.u{n}]\nwrong = 1\n" for n in range(9)))
    assert refused("[users.u0] wrong", "and 6 more").message.count("wrong") == 3


def test_files_that_are_named_lie_beside_the_settings(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('[alerts]\ntoken = {file = "keys/alerts"}\nroutes = "/etc/routes.yaml"\n')
    monkeypatch.chdir("/")
    (path.parent / "keys").mkdir()
    key = path.parent / "keys/alerts"
    key.write_text("s3cret\n", encoding="ascii")
    key.chmod(0o600)
    alerts = load().alerts
    assert alerts.token is not None
    assert alerts.token.read("token") == "s3cret"
    assert str(alerts.routes) == "/etc/routes.yaml"


def test_no_env_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("WHYSTALL_TICKETS__LANG=zh\nTICKETS__LANG=zh\n", encoding="ascii")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TICKETS__LANG", "zh")  # not ours
    monkeypatch.setenv("TICKETS", '{"lang": "zh"}')
    assert load().tickets.lang == "en"


def test_settings_are_not_changed_by_what_is_done_with_them(write: Write) -> None:
    write(SCHEDULE)
    settings: Any = load()
    with pytest.raises(ValueError, match="frozen"):
        settings.tickets.lang = "zh"


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ('[otlp]\nendpoint = "http://otel.example.com:4318"', "[otlp]: endpoint: use https://"),
        ('[otlp]\nendpoint = "https://a:b@otel.example.com"', "[otlp]: endpoint: give an address such as"),
        ('[otlp]\nendpoint = "https://o"\nheaders = {authorization = "Bearer x"}', "a secret does not belong in"),
        ('[otlp]\nendpoint = "https://o"\nheaders = {"a b" = {env = "X"}}', "[otlp.headers]"),
        ('[otlp]\nsignals = ["spans"]', "give one of 'metrics', 'logs', 'traces'"),
        ('[profiles]\nurl = "http://pyroscope.example.com:4040"', "[profiles]: url: use https://"),
        ('[profiles]\nurl = "https://o"\nlabels = {__name__ = "x"}', "[profiles.labels]"),
        ('[profiles]\nurl = "https://o"\nuser = "1"', "user: give token"),
        ('[metrics]\ntoken = "abc"', "[metrics] token: a secret does not belong in the settings"),
    ],
)
def test_what_would_not_work_or_leak_is_refused_in_what_is_sent(tmp_path: Path, section: str, fault: str) -> None:
    path = tmp_path / "whystall.toml"
    path.write_text(section)
    faults, settings = validate(RawSettings(path, tomllib.loads(section)))
    assert settings is None
    assert fault in faults[0]
