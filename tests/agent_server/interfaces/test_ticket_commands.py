"""The life of a ticket on the command line: every step, who did it, what is refused and how that is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from making import checkpoint

from whystall.agent_server.interfaces.cli import main as cli
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.ticket_models import Human, Ticket
from whystall.tools.contract.findings import Severity

AT = "2025-01-01T00:00:00Z"
Said = tuple[int, str, str]
Whystall = Callable[..., Said]


def base(home: Path) -> Stores:
    return Stores(home / "knowledge.db")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A knowledge base with a ticket of a diagnosis, 1, and one of an alert, 2, and with a diagnosis of no ticket."""
    made = tmp_path_factory.mktemp("tickets")
    with base(made) as kb:
        kb.remember(checkpoint(id="d1"), ticket=True)
        alert = Ticket(
            id="",
            created=AT,
            updated=AT,
            dedup_key="2:nccl",
            severity=Severity.CRITICAL,
            category="network",
            component="collective",
            origin="alert",
            human=Human(title="NCCL timeout"),
        )
        kb.tickets.create(alert, "engine")
        kb.save_diagnosis(checkpoint(id="d2"))
    return (made / "knowledge.db").read_bytes()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bytes) -> Path:
    """That knowledge base, and settings that name two people."""
    (tmp_path / "knowledge.db").write_bytes(stored)
    config = tmp_path / "whystall.toml"
    config.write_text('[users.ann]\n[users.bob]\n[oncall.groups]\ngpu = ["bob", "ann"]\n', "utf-8")
    config.chmod(0o600)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    monkeypatch.setenv("WHYSTALL_CONFIG", str(config))
    return tmp_path


@pytest.fixture
def whystall(home: Path, capsys: pytest.CaptureFixture[str]) -> Whystall:
    """Run ``whystall tickets ARGUMENTS`` in this process; status, standard output, standard error."""

    def run(*words: str) -> Said:
        status = cli._command(["tickets", *words])
        status = cli._deliver() or status
        out, err = capsys.readouterr()
        return status, out, err

    return run


def good(said: Said) -> str:
    assert said[0] == 0, said[2]
    return said[1].rstrip("\n")


def told(home: Path, id: str) -> list[tuple[str, str]]:
    with base(home) as kb:
        return [(event.what, event.by) for event in kb.tickets.events(id)][1:]


def test_the_whole_life_of_a_ticket(home: Path, whystall: Whystall) -> None:
    by = ("--by", "ann")
    assert good(whystall("acknowledge", "2", *by)) == "ticket 2 is acknowledged"
    assert good(whystall("comment", "2", "the switch\ndrops packets", *by)) == "ticket 2 has the comment"
    assert good(whystall("edit", "2", "--title", "Switch 3", *by)) == "ticket 2 is changed"
    assert good(whystall("assign", "2", "gpu", *by)) == 'ticket 2 is assigned to "bob, ann"'
    assert good(whystall("link", "2", "1", *by)) == "tickets 2 and 1 are linked"
    assert good(whystall("unlink", "2", "1", *by)) == "tickets 2 and 1 are not linked any more"
    assert good(whystall("resolve", "2", "--because", "another switch", *by)) == "ticket 2 is resolved"
    assert good(whystall("close", "2", "--as", "fixed", *by)) == "ticket 2 is closed"
    assert good(whystall("reopen", "2", "--because", "again", *by)) == "ticket 2 is open again"
    whats = ["acknowledged", "commented", "edited", "assigned", "linked", "unlinked", "resolved", "closed", "reopened"]
    assert told(home, "2") == [(what, "ann") for what in whats]
    shown = good(whystall("show", "2"))
    for text in ("# Ticket 2: Switch 3", "the switch\ndrops packets", "another switch", "`bob`, then `ann`"):
        assert text in shown
    with base(home) as kb:
        audited = [(entry.what, entry.by, entry.target) for entry in kb.audit.entries(what="ticket.")]
    assert audited == [(f"ticket.{what}", "ann", "ticket:2") for what in whats]


def test_a_diagnosis_is_attached_and_counted_in_the_older_ticket_of_its_fault(home: Path, whystall: Whystall) -> None:
    assert "ticket 2 is of the fault" in good(whystall("attach", "2", "d2", "--by", "ann"))
    shown = json.loads(good(whystall("show", "2", "--json")))
    assert (shown["state"], shown["closed_as"], shown["links"][0]["ticket"]) == ("closed", "duplicate", "1")
    assert json.loads(good(whystall("show", "1", "--json")))["occurrences"] == 2
    assert good(whystall("reopen", "2")) == "ticket 2 is open again"
    said = good(whystall("close", "2", "--as", "duplicate", "--of", "1"))
    assert said == "ticket 2 is closed as a duplicate of ticket 1, which was seen 2x with it"
    assert good(whystall("attach", "1", "d2")) == "ticket 1 shows the diagnosis d2"


def test_what_was_learnt_is_said(whystall: Whystall) -> None:
    said = good(whystall("resolve", "1", "--because", "written from a thread", "--lang", "zh"))
    assert "ticket-1" in said
    assert "whystall kb review" in said


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_lists_are_filtered_and_say_what_they_leave_out(whystall: Whystall, lang: str) -> None:
    for options, ids in (
        ((), ["2", "1"]),
        (("--state", "open", "--state", "closed", "--severity", "critical"), ["2"]),
        (("--origin", "diagnosis"), ["1"]),
        (("--category", "storage"), ["1"]),
        (("--component", "collective"), ["2"]),
        (("--assignee", "-"), ["2", "1"]),
        (("--assignee", "ann"), []),
    ):
        text = good(whystall("list", *options, "--lang", lang))
        assert sorted(row.split()[0] for row in text.split("\n") if ids) == sorted(ids)
        found = json.loads(good(whystall("list", *options, "--json")))
        assert sorted(ticket["id"] for ticket in found) == sorted(ids)
    rows = good(whystall("list", "--limit", "1", "--lang", lang)).split("\n")
    assert len(rows) == 2
    assert "--limit" in rows[1]


def test_the_history_is_listed(whystall: Whystall) -> None:
    good(whystall("close", "2", "--as", "wont_fix", "--because", "too old", "--by", "ann"))
    assert good(whystall("history", "2")).split("\n")[1].endswith('closed: ann; will not be fixed: "too old"')
    events = json.loads(good(whystall("history", "2", "--json")))
    assert [(event["what"], event["revision"]) for event in events] == [("opened", 1), ("closed", 2)]


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("show", "9"), "not_found: there is no ticket '9'; see `whystall tickets list`"),
    (("history", "x"), "not_found"),
    (("acknowledge", "1' OR 1=1"), "not_found"),
    (("reopen", "1"), "bad_argument: ticket 1 is not over"),
    (("resolve", "1", "--because", " "), "bad_argument: no reason is given"),
    (("resolve", "1", "--because", "x" * 2001), "bad_argument: the reason is too long"),
    (("resolve", "1"), "bad_argument"),
    (("close", "1", "--as", "fixed"), "bad_argument: ticket 1 needs a reason: what fixed it"),
    (("close", "1", "--as", "duplicate"), "bad_argument: ticket 1 has no link to its original"),
    (("close", "1", "--as", "duplicate", "--of", "1"), "bad_argument: ticket 1 is no duplicate of itself"),
    (("close", "1", "--as", "stale", "--of", "2"), "bad_argument: --of is for duplicates"),
    (("close", "1", "--as", "done"), "bad_argument"),
    (("comment", "1", " \n"), "bad_argument: no comment is given"),
    (("edit", "1"), "bad_argument: no change is given"),
    (("edit", "1", "--title", "x" * 301), "bad_argument: the title is too long"),
    (("link", "1", "9"), "not_found"),
    (("link", "1", "1"), "bad_argument: ticket 1 cannot be linked with itself"),
    (("assign", "1", "carol"), "bad_argument: no user is called 'carol'; valid: ann, bob, gpu"),
    (("assign", "1", ""), "bad_argument: no user is called ''"),
    (("attach", "2", "d9"), "not_found"),
    (("list", "--state", "gone\x1b[31m"), "bad_argument: --state 'gone\\\\x1b[31m' is not known; valid: open,"),
    (("list", "--limit", "0"), "bad_argument"),
]


@pytest.mark.parametrize(("words", "error"), REFUSED, ids=[" ".join(words)[:40] for words, _ in REFUSED])
def test_what_cannot_be_is_refused_in_one_line_and_changes_nothing(
    home: Path, whystall: Whystall, words: tuple[str, ...], error: str
) -> None:
    with base(home) as kb:
        before = kb.tickets.list(), kb.audit.entries()
    status, out, err = whystall(*words)
    assert status == (1 if error.startswith("not_found") else 2)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {error}")
    with base(home) as kb:
        assert (kb.tickets.list(), kb.audit.entries()) == before


def test_errors_are_objects_for_programs(whystall: Whystall) -> None:
    status, out, _ = whystall("reopen", "1", "--json")
    assert status == 2
    assert json.loads(out)["error"]["code"] == "bad_argument"


def test_hostile_text_is_inert_on_a_terminal(home: Path, whystall: Whystall) -> None:
    text = "\x1b]0;t\x07 </b>\u202e'); DROP TABLE tickets; --\n/close"
    good(whystall("comment", "2", text, "--by", text))
    good(whystall("edit", "2", "--title", text, "--description", text))
    for words in (("show", "2"), ("list",), ("history", "2"), ("show", "2", "--json")):
        for row in good(whystall(*words)).split("\n"):
            assert row.isprintable()
    with base(home) as kb:
        assert kb.tickets.count() == 2


def test_a_comment_may_come_from_a_pipe(
    whystall: Whystall, monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path
) -> None:
    for raw, kept in ((b"first\nsecond \xff\n", "first\nsecond \\xff"), (b"x" * 100_000, None)):
        (tmp_path / "said").write_bytes(raw)
        with (tmp_path / "said").open("r") as stream:
            monkeypatch.setattr("sys.stdin", stream)
            status, _, err = whystall("comment", "2", "-")
        assert status == (2 if kept is None else 0)
        assert ("too long" in err) == (kept is None)
    with base(home) as kb:
        assert [comment.text for comment in kb.tickets.get("2").human.comments] == ["first\nsecond \\xff"]


def test_a_life_without_settings(whystall: Whystall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHYSTALL_CONFIG", str(tmp_path / "none.toml"))
    for words in (("acknowledge", "1"), ("comment", "1", "x"), ("resolve", "1", "--because", "x"), ("show", "1")):
        good(whystall(*words))
