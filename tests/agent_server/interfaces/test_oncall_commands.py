"""``whystall oncall``: who, the coming shifts, exceptions and the calendar, in both languages."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from icalendar import Calendar

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli import main as cli

Run = Callable[..., tuple[int, str, str]]

SETTINGS = """
[users.ann]
name = "安 娜"
[users.bo]
[oncall]
groups = {pair = ["cy", "dan"]}
[oncall.rotations.week]
every = "weekly"
start = 2026-01-05T09:00:00
members = ["ann", "bo"]
[oncall.schedules.main]
timezone = "Europe/Berlin"
layers = [{rotation = "week"}]
[oncall.schedules.nights]
timezone = "America/New_York"
layers = [{users = ["pair"], from = "22:00", to = "06:00"}]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, with settings and a knowledge base of its own."""
    path = tmp_path / "whystall.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    path.chmod(0o600)
    monkeypatch.setenv("WHYSTALL_CONFIG", str(path))
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))

    def command(*words: str) -> tuple[int, str, str]:
        status = cli._command(["oncall", *words])
        console.deliver()
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def answer(run: Run) -> Callable[..., Any]:
    """Run a command that must go well, and return its JSON."""

    def ask(*words: str) -> Any:
        status, out, err = run(*words, "--json")
        assert status == 0, err
        return json.loads(out)

    return ask


def failed(run: Run, *words: str) -> str:
    status, out, err = run(*words)
    assert out == ""
    assert status in (1, 2)
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_who_in_both_languages(run: Run) -> None:
    at = ("--schedule", "main", "--at", "2026-03-29T02:30")  # which is left out: half past three
    assert run("who", *at)[:2] == (
        0,
        "main: bo; turn of rotation week; until 2026-03-30 09:00+02:00\ntimes in Europe/Berlin\n",
    )
    assert run("who", "--at", "2026-03-30T00:00Z", "--schedule", "nights", "--lang", "zh")[1] == (
        "nights：无人值班；这段时间没有任何安排；到 2026-03-29 22:00-04:00 为止\n时间按 America/New_York 的当地时间\n"
    )


@pytest.mark.parametrize(
    ("at", "moment"),
    [
        ("2026-03-29T02:30", "2026-03-29T01:30:00Z"),
        ("2026-03-29 03:30", "2026-03-29T01:30:00Z"),
        ("2026-10-25T02:30", "2026-10-25T00:30:00Z"),
        ("2026-10-25T02:30+01:00", "2026-10-25T01:30:00Z"),
        ("2026-10-25T02:30:15.5-0330", "2026-10-25T06:00:15Z"),
        ("2026-10-25", "2026-10-24T22:00:00Z"),
        ("2026-10-25T02:30z", "2026-10-25T02:30:00Z"),
    ],
)
def test_times_are_read_by_the_schedules_clocks(answer: Callable[..., Any], at: str, moment: str) -> None:
    assert answer("who", "--schedule", "main", "--at", at)[0]["at"] == moment


def test_who_tells_all_schedules_and_why(answer: Callable[..., Any]) -> None:
    assert answer("who", "--at", "2026-03-30T07:00:00Z") == [
        {
            "schedule": "main",
            "at": "2026-03-30T07:00:00Z",
            "users": ["ann"],
            "why": "rotation:week",
            "because": ["rotation:week"],
            "until": "2026-04-06T07:00:00Z",
        },
        {
            "schedule": "nights",
            "at": "2026-03-30T07:00:00Z",
            "users": ["cy", "dan"],
            "why": "layer:1",
            "because": ["layer:1"],
            "until": "2026-03-30T10:00:00Z",
        },
    ]


def test_the_coming_shifts(run: Run) -> None:
    assert run("schedule", "main", "--from", "2026-03-28T00:00", "--days", "9")[1] == (
        "schedule main, times in Europe/Berlin\n"
        "2026-03-28 00:00+01:00  2026-03-30 09:00+02:00  bo  turn of rotation week\n"
        "2026-03-30 09:00+02:00  2026-04-06 01:00+02:00  安 娜 (ann)  turn of rotation week\n"
    )


def test_an_exception_holds_until_it_is_taken_back_and_is_logged(run: Run, answer: Callable[..., Any]) -> None:
    before = answer("who", "--schedule", "main")[0]["users"]
    other = {"ann": "bo", "bo": "ann"}[before[0]]
    made = answer("override", "add", "--schedule", "main", "--replace", before[0], "--with", other, "--for", "4h",
                  "--because", "a swap\x1b[31m", "--by", "kim")  # fmt: skip
    assert answer("who", "--schedule", "main")[0]["users"] == [other]
    assert answer("who", "--schedule", "main")[0]["why"] == "override:1"
    assert answer("override", "list") == made
    assert answer("override", "list", "--schedule", "nights") == []
    status, out, _ = run("override", "list")
    assert status == 0
    assert "\x1b" not in out
    assert "in place of" in out
    ended = answer("override", "remove", "1", "--by", "lee")
    assert ended[0]["ends"] < made[0]["ends"]
    assert answer("who", "--schedule", "main")[0]["users"] == before
    assert answer("override", "list") == []
    assert [each["id"] for each in answer("override", "list", "--all")] == [1]  # the past stays as it was
    assert "override 1 is over" in failed(run, "override", "remove", "1")
    cli._command(["audit", "--json"])
    entries = json.loads(console._said.pop())
    assert [(e["by"], e["what"], e["target"]) for e in entries] == [
        ("kim", "override.added", "override:1"),
        ("lee", "override.removed", "override:1"),
    ]


def test_one_that_has_not_begun_leaves_nothing_when_it_is_taken_back(answer: Callable[..., Any]) -> None:
    begins = (datetime.now(timezone.utc) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%MZ")
    answer("override", "add", "--schedule", "main", "--only", "pair,bo", "--from", begins, "--for", "2d")
    during = (datetime.now(timezone.utc) + timedelta(days=4)).strftime("%Y-%m-%dT%H:%MZ")
    found = answer("who", "--schedule", "main", "--at", during)[0]
    assert (found["users"], found["why"]) == (["cy", "dan", "bo"], "temporary:1")
    answer("override", "remove", "1")
    assert answer("override", "list", "--all") == []


def test_what_began_before_now_begins_now(answer: Callable[..., Any]) -> None:
    made = answer("override", "add", "--schedule", "main", "--nobody", "--from", "2026-01-01", "--to", "2100-01-01")
    assert made[0]["begins"] > "2026-01-02"
    assert answer("who", "--schedule", "main")[0]["users"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("who --at yesterday", "--at: 'yesterday' is no time"),
        ("who --at 2026-02-30", "is no time"),
        ("who --at 2026-02-28T24:01", "is no time"),
        ("who --at 2026-02-28T12:00+99:00", "is no time"),
        ("who --at 9999-01-01", "is no time"),
        ("who --at 0001-01-01", "is no time"),
        ("who --schedule gone", "no schedule is called 'gone'; one of: main, nights"),
        ("schedule", "which schedule?; one of: main, nights"),
        ("export", "which schedule?"),
        ("MAIN --for 1h", "give one of --add, --remove"),
        ("MAIN --add bo --remove ann --for 1h", "--add and --remove"),
        ("MAIN --add bo", "give one of --to, --for"),
        ("MAIN --add bo --for soon", "is no time span"),
        ("MAIN --add bo --for 0h", "is no time span"),
        ("MAIN --add bob --for 1h", "no user or group is called 'bob'; one of: bo"),
        ("MAIN --add bo --to 2020-01-01", "the override would end in the past, at 2019-12-31T23:00"),
        ("MAIN --add bo --from 2199-03-02 --to 2199-03-01", "it ends before"),
        ("MAIN --replace bo --for 1h", "--replace and --with belong together"),
        ("MAIN --replace bo --with bo --for 1h", "bo would replace bo"),
        ("override add --schedule x --add bo --for 1h", "no schedule is called 'x'"),
        ("override remove 12", "there is no override 12"),
        ("override remove 99999999999999999999", "there is no override"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_line(run: Run, words: str, said: str) -> None:
    assert said in failed(run, *words.replace("MAIN", "override add --schedule main").split())


def test_without_schedules_it_says_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty.toml").touch(0o600)
    monkeypatch.setenv("WHYSTALL_CONFIG", str(tmp_path / "empty.toml"))
    for words in (["who"], ["schedule"], ["export"], ["override", "add", "--add", "x", "--for", "1h"]):
        assert "no schedule is set up; write [oncall.schedules.NAME]" in failed(run, *words)


def test_the_calendar_is_one_to_the_letter(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("export", "main", "--days", "30")
    assert status == 0
    assert out.startswith("BEGIN:VCALENDAR\r\n")
    users = {str(event["x-whystall-user"]) for event in Calendar.from_ical(out).walk("VEVENT")}
    assert users == {"ann", "bo"}
    status, said, _ = run("export", "main", "--days", "30", "-o", str(tmp_path / "main.ics"))
    assert (status, said) == (0, f"wrote {tmp_path}/main.ics\n")
    assert (tmp_path / "main.ics").read_bytes().startswith(b"BEGIN:VCALENDAR\r\n")
