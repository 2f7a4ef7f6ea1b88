"""Old files, and writers that are killed, concurrent, or out of space: nothing confirmed is lost."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from making import checkpoint

from whystall.agent_server.stores import Stores
from whystall.knowledge_base import seeding
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.models import Diagnosis
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent
# Written by the code of version 1 of the schema: three curated cards, one of the user's own, a ticket resolved and
# verified and one that is open, three diagnoses.
V1 = HERE.parent / "recorded" / "knowledge_v1.db.gz"
# By that of version 2: three curated cards of another catalogue, one of the user's own, a ticket seen twice that was
# verified and resolved, its card reviewed and rated, a ticket that is open, five diagnoses.
V2 = HERE.parent / "recorded" / "knowledge_v2.db.gz"


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    path = tmp_path / "k.db"
    path.write_bytes(gzip.decompress(V1.read_bytes()))
    return path


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    path = tmp_path / "k.db"
    path.write_bytes(gzip.decompress(V2.read_bytes()))
    return path


def whole(path: Path) -> None:
    """The file is sound, and its index of words is that of its cards."""
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        other.execute("INSERT INTO incidents_fts (incidents_fts, rank) VALUES ('integrity-check', 1)")
        told = "SELECT count(*) FROM features WHERE n NOT IN (SELECT n FROM incidents)"
        assert other.execute(told).fetchone() == (0,)
        counts = "SELECT count(*) FROM feature_counts c WHERE feature != '' AND cards != "
        counts += "(SELECT count(*) FROM features f WHERE f.feature = c.feature)"
        assert other.execute(counts).fetchone() == (0,)


# --- files of other versions --------------------------------------------------------------------------------------


def test_a_file_of_version_1_becomes_one_of_this_version(v1: Path) -> None:
    for _ in range(2):  # the second time nothing is left to do
        with Stores(v1) as kb:
            assert {card.id for card in curated()} <= {card.id for card in kb.cards.list(limit=1000)}
            lesson = kb.cards.get("ticket-1")
            assert (lesson.state, lesson.origin) == ("draft", "ticket")  # nobody has reviewed it yet
            assert "loss of time every fifth step" in lesson.symptom.en
            assert lesson.fix.en == "the checkpoint is written by a thread now"
            assert lesson.source.endswith("fix verified")
            own = kb.cards.get("our-nfs-home")
            assert (own.state, own.origin) == ("reviewed", "user")
            assert "our-nfs-home" in [m.incident for m in kb.search("virus filer")]
            assert [t.id for t in kb.tickets.list(Wanted(states=("open",)))] == ["2"]
            assert kb.tickets.get("1").verifications[0].solved
            assert kb.get_diagnosis("d1").ticket == "1"
            assert kb.get_diagnosis("d3").matches == []
            assert kb.match(checkpoint(id="d4"))[0].incident == "ticket-1"
            assert kb.cards.track_record("ticket-1")[0].count == 1
        whole(v1)
    with Stores(v1) as kb:
        kb.cards.accept("ticket-1", "ann")
        assert kb.remember(checkpoint(id="d5"), ticket=False).matches[0].known


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_tickets_of_older_versions_go_on(version: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(version)
    with closing(sqlite3.connect(path)) as other:
        rows = other.execute("SELECT id, body FROM tickets ORDER BY id").fetchall()
        before = {str(id): json.loads(body) for id, body in rows}
    with Stores(path) as kb:
        for id, old in before.items():
            ticket = kb.tickets.get(id)
            assert ticket.diagnosis == Diagnosis.model_validate(old["diagnosis"])
            now = json.loads(ticket.model_dump_json())
            same = old.keys() - {"schema_version", "diagnosis"}
            assert {name: now[name] for name in same} == {name: old[name] for name in same}
            assert (ticket.schema_version, ticket.revision, ticket.origin) == ("2", 1, "diagnosis")
            assert ticket.fault == ticket.dedup_key
            assert ticket.ended == (ticket.updated if ticket.state == "resolved" else None)
        line = kb.tickets.lines(Wanted(states=("resolved",)))[0]
        assert (line.id, line.cause, line.verdict) == ("1", "sync_checkpoint_write", "confirmed")
        assert (line.occurrences, line.target) == (before["1"]["occurrences"], before["1"]["diagnosis"]["target"])
        told = [(event.what, event.at, event.detail) for event in kb.tickets.events("1")]
        assert told == [
            ("opened", before["1"]["created"], ""),
            ("resolved", before["1"]["updated"], "the checkpoint is written by a thread now"),
        ]
        assert [event.what for event in kb.tickets.events("2")] == ["opened"]
        # They live on as those of this version do.
        assert kb.tickets.live(before["2"]["dedup_key"]) == kb.tickets.get("2")
        assert kb.tickets.live(before["1"]["dedup_key"]) is None
        assert kb.tickets.acknowledge("2", "ann").revision == 2
        again = kb.remember(checkpoint(id="d9"), ticket=True)
        assert again.ticket == "3"
        with pytest.raises(ToolError, match="ticket 3 is open"):
            kb.tickets.reopen("1", "ann")
        assert kb.tickets.duplicate("3", "1", "ann").occurrences == before["1"]["occurrences"] + 1
    with Stores(path) as kb:  # the second time nothing is left to do
        assert kb.tickets.get("2").state == "acknowledged"
    whole(path)


def test_a_file_of_version_2_becomes_one_of_this_version(v2: Path) -> None:
    for _ in range(2):
        with Stores(v2) as kb:
            assert {card.id for card in curated()} <= {card.id for card in kb.cards.list(limit=1000)}
            lesson = kb.cards.get("ticket-1")
            assert (lesson.state, [deed.what for deed in lesson.history]) == ("reviewed", ["drafted", "reviewed"])
            seen, record, said = kb.cards.track_record("ticket-1")
            assert (seen.count, record.helped, len(said)) == (1, 1, 1)
            assert kb.cards.get("our-nfs-home").origin == "user"
            assert kb.tickets.get("1").verifications[0].solved
            assert {id: kb.get_diagnosis(id).ticket for id in ("d1", "d2", "d3", "d4", "d5")} == {
                "d1": "1",
                "d2": "1",
                "d3": "2",
                "d4": None,
                "d5": None,
            }
            assert kb.match(checkpoint(id="d6"))[0].incident == "ticket-1"
        whole(v2)


def test_a_file_of_version_2_whose_migration_is_killed_is_still_one(v2: Path) -> None:
    before = v2.read_bytes()
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from whystall.knowledge_base import schema\n"
        "from whystall.agent_server.stores import Stores\n"
        "at = int(sys.argv[2])\n"
        "class Killed(tuple):\n"
        "    def __iter__(self):\n"
        "        for n, statement in enumerate(tuple.__iter__(self)):\n"
        "            n == at and os.kill(os.getpid(), signal.SIGKILL)\n"
        "            yield statement\n"
        "schema.MIGRATIONS['v3'] = Killed(schema.MIGRATIONS['v3'])\n"
        "Stores(Path(sys.argv[1]))\n"
    )
    for at in (1, 4, 9):
        done = subprocess.run([sys.executable, "-c", code, str(v2), str(at)], check=False)
        assert done.returncode == -signal.SIGKILL
        with closing(sqlite3.connect(v2)) as other:  # what is left of it is rolled back by whoever comes next
            assert other.execute("SELECT count(*) FROM sqlite_master WHERE name = 'ticket_events'").fetchone() == (0,)
            assert other.execute("SELECT count(*) FROM tickets").fetchone() == (2,)
    assert v2.read_bytes() == before
    with Stores(v2) as kb:
        assert kb.tickets.ids() == ["2", "1"]


def test_a_file_of_version_1_that_cannot_be_read_is_left_as_it_was(v1: Path) -> None:
    with closing(sqlite3.connect(v1)) as other, other:
        other.execute("UPDATE incidents SET body = json_set(body, '$.telepathy', 1) WHERE id = 'our-nfs-home'")
    before = v1.read_bytes()
    with pytest.raises(ToolError) as caught:
        Stores(v1)
    assert caught.value.code is ErrorCode.DATABASE
    assert caught.value.remedy
    with closing(sqlite3.connect(v1)) as other:
        kept = other.execute("SELECT count(*) FROM incidents").fetchone()
        assert kept == (5,)
    with closing(sqlite3.connect(v1)) as other, other:
        other.execute("UPDATE incidents SET body = json_remove(body, '$.telepathy') WHERE id = 'our-nfs-home'")
    with Stores(v1) as kb:  # nothing was lost meanwhile
        assert kb.cards.get("ticket-1").state == "draft"
        assert kb.cards.get("our-nfs-home").fix.en == "Put the environment on local disk"
    assert before[:16] == v1.read_bytes()[:16]


def test_a_file_of_version_1_that_may_not_be_written_is_refused_with_a_remedy(v1: Path) -> None:
    before = v1.read_bytes()
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "import whystall.knowledge_base.database\n"
        "from whystall.agent_server.stores import Stores\n"
        "from whystall.tools.contract.errors import ToolError\n"
        "os.geteuid() == 0 and os.seteuid(65534)\n"
        "try: Stores(Path(sys.argv[1]))\n"
        "except ToolError as error: print(error.code.value, '|', error.message, '|', error.remedy)\n"
    )
    with tempfile.TemporaryDirectory() as own:  # a test's own directory may lie where others may not even look
        there = Path(own) / "k.db"
        there.write_bytes(before)
        there.chmod(0o444)
        there.parent.chmod(0o555)
        argv = [sys.executable, "-c", code, str(there)]
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ})
        assert there.read_bytes() == before
    assert done.stdout.startswith("database | "), done.stderr
    assert "cannot be written" in done.stdout


def test_a_state_of_a_later_time_is_seeded_again_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.db"
    with Stores(path) as kb:
        kb.tickets.resolve(kb.tickets.draft(checkpoint()).id, "threads", "ann")
        kb.cards.accept("ticket-1")
        kb.remember(checkpoint(id="d2"), ticket=False)
        kb.cards.feedback("ticket-1", "helped", diagnosis="d2")
        before = kb.cards.get("ticket-1"), kb.cards.track_record("ticket-1")
    monkeypatch.setattr(seeding, "index_hash", lambda: "another")
    with Stores(path) as kb:
        assert (kb.cards.get("ticket-1"), kb.cards.track_record("ticket-1")) == before
        assert kb.match(checkpoint(id="d3"))[0].known
    whole(path)


# --- writers that are killed --------------------------------------------------------------------------------------

_LIFE = """
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from making import checkpoint, coverage
from whystall.agent_server.stores import Stores
who = sys.argv[2]
with Stores(Path(sys.argv[1])) as kb:
    for i in range(100000):
        now = datetime.now(timezone.utc).isoformat()
        seen = [coverage().model_copy(update={"start": now})]
        made = checkpoint(f"/data/{who}{i // 3}/chk_1.bin", comm=f"{who}{i // 3}", id=f"{who}{i}", coverage=seen)
        ticket = kb.remember(made, ticket=True).ticket
        print("remembered", who + str(i), ticket, flush=True)
        card = kb.tickets.resolve(ticket, f"remedy {who}{i}", who).card
        print("resolved", ticket, card, flush=True)
        kb.cards.accept(card, who)
        print("accepted", card, who + str(i), flush=True)
"""


def living(path: Path, who: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _LIFE, str(path), who]
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def confirmed(output: str) -> list[list[str]]:
    return [line.split() for line in output.split("\n")[:-1]]


def kept(path: Path, told: list[list[str]]) -> None:
    """Everything that was told is in the file."""
    with Stores(path) as kb:
        for what, first, second in told:
            if what == "remembered":
                assert kb.get_diagnosis(first).ticket == second
            elif what == "resolved":
                assert kb.tickets.get(first).card == second
                card = kb.cards.get(second)
                assert kb.tickets.get(first).resolution in (card.fix.en, *(note.text for note in card.notes))
            else:
                assert kb.cards.get(first).history
                assert kb.cards.get(first).state in ("reviewed",)
        # A ticket and its card are one transaction, a diagnosis and its occurrence too.
        for ticket in kb.tickets.list(Wanted(states=("resolved",)), limit=100_000):
            assert ticket.card is not None
            card = kb.cards.get(ticket.card)
            assert ticket.id == card.id.removeprefix("ticket-") or ticket.id in [note.ticket for note in card.notes]
    whole(path)


def test_a_kill_at_any_moment_of_a_cards_life_loses_nothing_confirmed(tmp_path: Path) -> None:
    dice = random.Random(23)
    path = tmp_path / "k.db"
    Stores(path).close()
    told: list[list[str]] = []
    for round in range(6):
        process = living(path, f"w{round}x")
        assert process.stdout is not None
        begun = "".join(process.stdout.readline() for _ in range(dice.randrange(3, 9)))
        time.sleep(dice.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        told += confirmed(begun + process.stdout.read())
        process.stdout.close()
        process.wait()
        kept(path, told)
    assert len(told) > 12


def test_a_kill_during_an_import_leaves_all_or_nothing(tmp_path: Path) -> None:
    path, file = tmp_path / "k.db", tmp_path / "cards.jsonl"
    text = {"en": "the frobnicator waits", "zh": "等待"}
    card = {"title": text, "symptom": text, "cause": None, "root_cause": text, "fix": text}
    file.write_text("".join(json.dumps({**card, "id": f"c{n}", "source": str(n)}) + "\n" for n in range(3000)))
    with Stores(path) as kb:
        before = kb.cards.stats().cards
    code = (
        "import sys; from pathlib import Path; from whystall.agent_server.stores import Stores\n"
        "with Stores(Path(sys.argv[1])) as kb, open(sys.argv[2], 'rb') as file:\n"
        "    print('begin', flush=True); kb.cards.import_(file); print('done', flush=True)\n"
    )
    dice = random.Random(5)
    for _ in range(4):
        command = [sys.executable, "-c", code, str(path), str(file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        time.sleep(dice.uniform(0.2, 1.2))
        process.kill()
        done = "done" in process.stdout.read()
        process.stdout.close()
        process.wait()
        with Stores(path) as kb:
            cards = kb.cards.stats().cards
            assert cards in (before, before + 3000)
            assert cards == before + 3000 or not done
        whole(path)


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    Stores(path).close()
    writers = [living(path, who) for who in "ab"]
    told: list[list[str]] = []
    for process in writers:  # while one is listened to, the other goes on
        assert process.stdout is not None
        told += confirmed("".join(process.stdout.readline() for _ in range(15)))
    for process in writers:
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        told += confirmed(process.stdout.read())
        process.stdout.close()
        process.wait()
    kept(path, told)
    for who in "ab":
        assert any(what == "accepted" and by.startswith(who) for what, _, by in told)


_TICKETS = """
import sys, time
from pathlib import Path
from making import checkpoint
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.ticket_models import Comment, Link, Ticket
from whystall.tools.contract.findings import Severity
who, at = sys.argv[2], "2025-01-01T00:00:00Z"
common = dict(created=at, updated=at, severity=Severity.MINOR, category="none", component="unknown", origin="alert")
with Stores(Path(sys.argv[1])) as kb:
    t, first = kb.tickets, None
    def told(what, ticket):
        print(what, ticket.id, ticket.revision, ticket.state, flush=True)
    for i in range(8):
        with kb.transaction():
            one = t.create(Ticket(id="", dedup_key=f"2:{who}{i}", **common), who)
            kb.tasks.add("triage", f"triage:{one.id}", {"ticket": one.id})
        told("opened", one)
        told("commented", t.comment(one.id, Comment(by=who, at=at, text=f"{who} {i}", key=str(i))))
        told("diagnosed", t.attach(one.id, checkpoint(comm=f"{who}{i}", id=f"{who}{i}"), who))
        told("acknowledged", t.acknowledge(one.id, who))
        if first is not None and i % 2:
            told("merged", t.duplicate(one.id, first, who))
        else:
            told("resolved", t.resolve(one.id, f"remedy {who}{i}", who))
            told("closed", t.close(one.id, "fixed", who))
            told("reopened", t.reopen(one.id, who))
            first = one.id
        told("seen", t.seen_again("1", who))
time.sleep(600)
"""


def told_of_tickets(path: Path, told: list[list[str]]) -> None:
    """Everything that was told is in the file, and each ticket is in step with its history and its other ends."""
    with Stores(path) as kb:
        for _, id, revision, _ in told:
            assert kb.tickets.get(id).revision >= int(revision)
        duplicates = dict.fromkeys(kb.tickets.ids(limit=100_000), 0)
        seen_again = sum(line[0] == "seen" for line in told)
        for ticket in kb.tickets.list(limit=100_000):
            events = kb.tickets.events(ticket.id, limit=100_000)
            assert [event.revision for event in events] == list(range(1, ticket.revision + 1))
            assert kb.tasks.by_key(f"triage:{ticket.id}") is not None
            for link in ticket.links:
                back = {(far.kind, far.ticket) for far in kb.tickets.get(link.ticket).links}
                other = {"duplicate": "duplicated_by", "duplicated_by": "duplicate"}[link.kind]
                assert (other, ticket.id) in back
                duplicates[ticket.id] += link.kind == "duplicated_by"
            assert (ticket.closed_as == "duplicate") == any(link.kind == "duplicate" for link in ticket.links)
            if ticket.id != "1":
                assert ticket.occurrences == 1 + duplicates[ticket.id]
        assert kb.tickets.get("1").occurrences >= 1 + seen_again
        assert kb.tickets.get("1").occurrences == 1 + duplicates["1"] + sum(
            event.what == "seen_again" and not event.detail for event in kb.tickets.events("1", limit=100_000)
        )
    whole(path)


def test_a_kill_at_any_moment_of_a_tickets_life_and_two_writers_leave_both_ends_whole(tmp_path: Path) -> None:
    dice = random.Random(7)
    path = tmp_path / "k.db"
    Stores(path).close()
    told: list[list[str]] = []
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    for round in range(2):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", _TICKETS, str(path), f"{who}{round}x"],
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for who in "ab"
        ]
        for process in writers:
            assert process.stdout is not None
            told += confirmed("".join(process.stdout.readline() for _ in range(dice.randrange(4, 30))))
        time.sleep(dice.uniform(0.0, 0.1))
        for process in writers:
            process.send_signal(signal.SIGKILL)
            assert process.stdout is not None
            told += confirmed(process.stdout.read())
            process.stdout.close()
            process.wait()
        told_of_tickets(path, told)
    assert {line[0] for line in told} >= {"opened", "diagnosed", "resolved", "closed", "reopened", "merged", "seen"}


# --- no room, no permission ---------------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Stores]:
    """A base whose file may not grow."""
    with Stores(tmp_path / "k.db") as kb:
        kb.remember(checkpoint(), ticket=True)
        with closing(sqlite3.connect(tmp_path / "k.db")) as file:
            file.execute("VACUUM")  # merging the index leaves free pages
        with kb._file.read() as db:
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {pages + 2}")
        yield kb


def test_a_full_disk_leaves_ticket_and_card_together(full: Stores, tmp_path: Path) -> None:
    def live() -> None:
        for n in range(100):
            made = checkpoint(f"/data/{n}/chk_1.bin", id=f"e{n}")
            full.tickets.resolve(full.remember(made, ticket=True).ticket or "", "x " * 900, "ann")

    with pytest.raises(ToolError) as caught:
        live()
    assert caught.value.code is ErrorCode.DISK_FULL
    assert full.tickets.list(Wanted(states=("open",))) != []
    for ticket in full.tickets.list():
        if ticket.state == "resolved":
            assert full.cards.get(ticket.card or "").fix.en
        else:
            assert ticket.card is None
    full.close()
    whole(tmp_path / "k.db")


def test_an_import_without_room_imports_nothing(full: Stores, tmp_path: Path) -> None:
    before = full.cards.stats().cards
    file = tmp_path / "cards.jsonl"
    text = {"en": "the frobnicator waits", "zh": "等待"}
    long = {"en": "the frobnicator waits " * 60, "zh": "等待"}  # more than the free pages within the file
    card = {"title": text, "symptom": long, "cause": None, "root_cause": long, "fix": long}
    file.write_text("".join(json.dumps({**card, "id": f"c{n}", "source": str(n)}) + "\n" for n in range(400)))
    with file.open("rb") as stream, pytest.raises(ToolError) as caught:
        full.cards.import_(stream)
    assert caught.value.code is ErrorCode.DISK_FULL
    assert full.cards.stats().cards == before
    full.close()
    whole(tmp_path / "k.db")


def test_a_full_disk_within_a_transaction_leaves_nothing_of_it(full: Stores, tmp_path: Path) -> None:
    """Whoever goes on after the fault is refused, rather than that the rest is stored without what came before it."""
    before = full.tickets.list(), len(full.audit.entries())
    with pytest.raises(ToolError) as caught, full.transaction():  # noqa: PT012  the whole block is what fails
        full.audit.put("ann", "begun", "x")
        with contextlib.suppress(ToolError):
            for n in range(100):
                full.remember(checkpoint(f"/data/{n}/chk_1.bin", id=f"e{n}"), ticket=True)
        full.audit.put("ann", "went.on", "x")
    assert caught.value.code in (ErrorCode.DATABASE, ErrorCode.DISK_FULL)
    assert (full.tickets.list(), len(full.audit.entries())) == before
    full.tickets.acknowledge("1", "ann")
    full.close()
    whole(tmp_path / "k.db")
