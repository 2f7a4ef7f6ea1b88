"""The life of a card on the command line: real processes, a terminal where one is asked for."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import making
import pytest

from whystall.agent_server.interfaces.cli import main as cli
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.models import Incident

pytestmark = pytest.mark.thorough

Run = Callable[..., "subprocess.CompletedProcess[str]"]
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
FIX = "checkpoints are written by a thread now"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """A knowledge base of its own that holds a diagnosis with its ticket, on a file with a hostile name."""
    with Stores(tmp_path / "knowledge.db") as kb:
        kb.remember(making.checkpoint(path="/data/`$(id)`\x1b[31m/**x** <b>chk_1.bin", id="d-test"), ticket=True)
    return {"WHYSTALL_HOME": str(tmp_path)}


@pytest.fixture
def solved(home: dict[str, str]) -> dict[str, str]:
    """The same after its ticket was resolved: with a draft."""
    with Stores(Path(home["WHYSTALL_HOME"]) / "knowledge.db") as base:
        base.tickets.resolve("1", FIX, "ann")
    return home


def card(home: dict[str, str]) -> Incident:
    """The card of the ticket as it is stored."""
    with Stores(Path(home["WHYSTALL_HOME"]) / "knowledge.db") as base:
        return base.cards.get("ticket-1")


@pytest.fixture
def kb(home: dict[str, str], whystall: Run) -> Callable[..., Any]:
    """Run ``whystall ARGUMENTS --json`` on that base, which must go well, and return its answer."""

    def ask(*words: str) -> Any:
        done = whystall(*words, "--json", env=home)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


def test_from_a_resolved_ticket_to_a_known_incident(
    kb: Callable[..., Any], home: dict[str, str], whystall: Run
) -> None:
    assert whystall("kb", "review", env=home).stdout.strip() == "No cards to review."
    done = whystall("tickets", "resolve", "1", "--because", FIX, "--by", "ann", env=home)
    assert "ticket-1" in done.stdout
    assert "kb review ticket-1 --accept" in done.stdout
    (draft,) = kb("kb", "review")
    assert (draft["incident"]["id"], draft["incident"]["state"]) == ("ticket-1", "draft")
    assert draft["incident"]["history"][0]["by"] == "ann"
    assert kb("tickets", "show", "1")["card"] == "ticket-1"
    assert FIX in whystall("kb", "review", "ticket-1", env=home).stdout  # no terminal: shown, and nothing is asked
    assert kb("kb", "review", "ticket-1", "--accept", "--by", "bob")["state"] == "reviewed"
    assert kb("kb", "review") == []
    with Stores(Path(home["WHYSTALL_HOME"]) / "knowledge.db") as base:  # the next day
        now = datetime.now(timezone.utc).isoformat()
        seen = [making.coverage().model_copy(update={"start": now})]
        path = base.get_diagnosis("d-test").culprit.path  # type: ignore[union-attr]
        again = base.remember(making.checkpoint(path=path or "", id="d-next", coverage=seen), ticket=True)
    assert (again.matches[0].incident, again.matches[0].known, again.matches[0].occurrences) == ("ticket-1", True, 2)
    assert kb("kb", "stats")["recurring"] == {"ticket-1": 1}
    rated = kb("kb", "feedback", "ticket-1", "helped", "--diagnosis", "d-next", "--comment", "the same")
    assert rated["record"] == {"helped": 1, "wrong": 0, "flagged": False}
    for lang, said in (("en", "reviewed by bob"), ("zh", "审核，bob")):
        text = whystall("kb", "show", "ticket-1", "--lang", lang, env=home).stdout
        assert said in text
        assert FIX in text
        assert "2x" in text or "2 次" in text
        assert "\x1b" not in text
        assert whystall("kb", "stats", "--lang", lang, env=home).returncode == 0


def test_fields_are_changed_from_a_file_and_one_by_one(
    kb: Callable[..., Any], solved: dict[str, str], tmp_path: Path
) -> None:
    changes = tmp_path / "changes.yaml"
    changes.write_text("fix: {zh: 由线程写检查点}\nchecks: [fileslower]\n")
    made = kb("kb", "review", "ticket-1", "--edit", str(changes), "--set", "fix.en=a thread = a writer", "--accept")
    assert (made["fix"], made["checks"], made["state"]) == (
        {"en": "a thread = a writer", "zh": "由线程写检查点"},
        ["fileslower"],
        "reviewed",
    )
    made = kb("kb", "review", "ticket-1", "--set", "components=nvme, checkpoint", "--set", "title=Both")
    assert (made["components"], made["title"]) == (["nvme", "checkpoint"], {"en": "Both", "zh": "Both"})
    made = kb("kb", "review", "ticket-1", "--retire", "--because", "hardware is gone", "--by", "eve")
    assert (made["state"], made["history"][-1]["by"]) == ("retired", "eve")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("review", "--accept"), ("no card is named",)),
        (("review", "ticket-1", "--accept", "--retire", "--because", "x"), ("exclude",)),
        (("review", "ticket-1", "--retire"), ("no reason",)),
        (("review", "ticket-1", "--because", "x"), ("--retire",)),
        (("review", "ticket-1", "--set", "nonsense"), ("nonsense", "fix.en=TEXT")),
        (("review", "ticket-1", "--set", "state=reviewed"), ("'state'",)),
        (("review", "ticket-1", "--set", "fix.de=x"), ("fix.de",)),
        (("review", "ticket-1", "--set", "cause=gremlins"), ("gremlins",)),
        (("review", "nope"), ("not_found", "nope")),
        (("review", "ticket-1", "--edit", "/nonexistent"), ("io_error",)),
        (("review", "ticket-1", "--edit", "/dev/null"), ("no fields",)),
        (("review", "--limit", "0"), ("--limit",)),
        (("feedback", "ticket-1"), ("verdict", "helped, wrong")),
        (("feedback", "ticket-1", "great", "--diagnosis", "d-test"), ("helped", "wrong")),
        (("feedback", "ticket-1", "wrong"), ("--diagnosis",)),
        (("feedback", "ticket-1", "wrong", "--diagnosis", "nope"), ("not_found",)),
        (("feedback", "ticket-1", "wrong", "--diagnosis", "d-test"), ("did not match",)),
        (("import", "/nonexistent"), ("io_error",)),
        (("import", "/dev/null"), ("no card",)),
        (("import", "/"), ("io_error",)),
        (("export", "-o", "/nonexistent/x"), ("io_error",)),
    ],
)
def test_what_does_not_fit_is_one_line_and_changes_nothing(
    solved: dict[str, str],
    words: tuple[str, ...],
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", solved["WHYSTALL_HOME"])
    before = card(solved)
    assert cli._command(["kb", *words]) in (1, 2)  # as `whystall` does it, without starting a process for each
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts), line
    assert card(solved) == before


def test_cards_travel_between_two_hosts(solved: dict[str, str], whystall: Run, tmp_path: Path) -> None:
    file = tmp_path / "cards.jsonl"
    assert whystall("kb", "export", "-o", str(file), env=solved).returncode == 0
    printed = whystall("kb", "export", env=solved).stdout
    assert [json.loads(line) for line in printed.splitlines()] == [
        json.loads(line) for line in file.read_text().splitlines()
    ]
    there = {"WHYSTALL_HOME": str(tmp_path / "there")}
    done = json.loads(whystall("kb", "import", str(file), "--json", env=there).stdout)
    assert (done["added"], done["left_out"]) == (1, 0)
    (draft,) = json.loads(whystall("kb", "review", "--json", env=there).stdout)
    assert draft["incident"]["fix"]["en"] == FIX
    again = whystall("kb", "import", "-", "--reviewed", env=there, input=printed)
    assert again.stdout.startswith("added 0,")
    spoiled = printed + "{broken\n"
    refused = whystall("kb", "import", "-", env=there, input=spoiled)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert f"line {len(spoiled.splitlines())}: " in line
    assert "--skip" in line
    skipped = whystall("kb", "import", "-", "--skip", env=there, input=spoiled)
    assert "left out 1" in skipped.stdout


def test_a_reader_of_an_export_that_leaves_is_not_our_failure(home: dict[str, str], env: dict[str, str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as closed:
        done = subprocess.run(
            [WHYSTALL, "kb", "export"], env={**env, **home}, stdout=closed, stderr=subprocess.PIPE, timeout=60
        )
    assert (done.returncode, done.stderr) == (141, b"")


def typed(env: dict[str, str], words: tuple[str, ...], keys: str) -> str:
    """What a terminal shows when `keys` are typed into it; the command must end well."""
    terminal, ours = pty.openpty()
    with subprocess.Popen([WHYSTALL, *words], env=env, stdin=ours, stdout=ours, stderr=ours) as child:
        os.close(ours)
        os.write(terminal, keys.encode())
        seen = b""
        try:
            while chunk := os.read(terminal, 65536):
                seen += chunk
        except OSError:  # a terminal whose last user left reads as an error
            pass
        os.close(terminal)
    assert child.returncode == 0, seen
    return seen.decode()


def test_a_person_on_a_terminal_is_asked(solved: dict[str, str], env: dict[str, str]) -> None:
    here = {**env, **solved, "TERM": "xterm"}
    review = ("kb", "review", "ticket-1")
    assert FIX in typed(here, review, "\n")
    assert card(solved).state == "draft"  # left as it was
    text = typed(here, (*review, "--by", "ann"), "e\nfix.en=use a writer\ne\nstate=reviewed\na\n")
    assert "'state' cannot be changed" in text
    made = card(solved)
    assert (made.fix.en, made.state, made.history[-1].by) == ("use a writer", "reviewed", "ann")
    typed(here, review, "r\n\nr\nnot ours\n")
    assert (card(solved).state, card(solved).history[-1].because) == ("retired", "not ours")
