"""A file of version 3 of the schema keeps every record, also when its migration is killed."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from making import checkpoint
from old_files import lost, rows, sound

from whystall.agent_server.interfaces.cli.main import main
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.ticket_models import Ticket

# Written by the code of version 3 (commit d8862a0d): three curated cards, one of them retired; a card of the user's
# own, a draft, a reviewed card of a resolved ticket with a recurrence and feedback; tickets that are resolved, open,
# closed as a duplicate, and opened by an alert; four diagnoses; a row in every table of the journal but
# `ticket_alerts`.
V3 = Path(__file__).parent.parent / "recorded" / "knowledge_v3.db.gz"


@pytest.fixture
def v3(tmp_path: Path) -> Path:
    path = tmp_path / "knowledge.db"
    path.write_bytes(gzip.decompress(V3.read_bytes()))
    return path


def test_a_file_of_version_3_keeps_every_record(v3: Path) -> None:
    before = rows(v3)
    tables = {name for name, kept in before.items() if kept}
    assert {"diagnoses", "tickets", "ticket_events", "occurrences", "feedback", "hashes", "cards"} <= tables
    with Stores(v3) as kb:
        assert {card.id for card in curated()} <= {card.id for card in kb.cards.list(limit=1000)}
    assert lost(before, rows(v3)) == {}
    sound(v3)
    once = rows(v3)
    with Stores(v3):
        pass
    assert rows(v3) == once  # the second time nothing is left to do


def test_cards_and_tickets_of_version_3_go_on(v3: Path) -> None:
    with closing(sqlite3.connect(v3)) as file:
        stored = file.execute("SELECT id, body FROM tickets").fetchall()
    with Stores(v3) as kb:
        for number, body in stored:
            assert kb.tickets.get(str(number)) == Ticket.model_validate(json.loads(body))
        # A review, a retirement and feedback outlast the new index.
        seen, record, given = kb.cards.track_record("ticket-1")
        assert (seen.count, record.helped, record.wrong, len(given)) == (2, 1, 1, 2)
        assert kb.cards.get("xid-79-on-a-shared-circuit").state == "retired"
        found = kb.search("GPU has fallen off the bus", limit=20)
        assert "xid-79-on-a-shared-circuit" not in [match.incident for match in found]
        # Found by words, by a part of a word (the index that version 4 added), and by the fault.
        assert kb.search("virus scanner of the filer")[0].incident == "our-nfs-home"
        assert kb.search("frobnicators")[0].incident == "card-25a7dcbf35ddf835"
        assert kb.remember(checkpoint(id="d9"), ticket=False).matches[0].known
        # New records are numbered after the old ones, and the journal has room for what version 4 added.
        assert kb.remember(checkpoint(path="/new/chk_1.bin", comm="trainx", id="d10"), ticket=True).ticket == "5"
        assert kb.tickets.resolve("5", "moved", "ann").card == "ticket-5"
        task = kb.client_tasks.add("client", "server", "diagnose", 1.0)
        assert kb.client_tasks.get(task.id, "client", 2.0) == task


@pytest.mark.parametrize("command", [["kb", "stats"], ["tickets", "list"]])
def test_a_file_of_a_newer_schema_is_refused_in_one_line(
    v3: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(v3)) as file, file:
        file.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('whystall', 'v99', '')")
    before = v3.read_bytes()
    monkeypatch.setenv("WHYSTALL_HOME", str(v3.parent))
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code not in (0, None)
    told = capsys.readouterr()
    lines = told.err.strip().splitlines()
    assert len(lines) == 1
    assert "newer whystall" in lines[0]
    assert "upgrade whystall" in lines[0]
    assert told.out == ""
    assert v3.read_bytes() == before


_OPEN = """
import sys
from pathlib import Path
import whystall.knowledge_base.database
from whystall.agent_server.stores import Stores
print("ready", flush=True)
Stores(Path(sys.argv[1])).close()
print("done", flush=True)
"""


def opening(path: Path) -> subprocess.Popen[str]:
    """A process that is about to open `path`."""
    process = subprocess.Popen([sys.executable, "-c", _OPEN, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.thorough
def test_a_migration_that_is_killed_at_any_moment_loses_nothing(v3: Path, tmp_path: Path) -> None:
    original, before = v3.read_bytes(), rows(v3)
    process = opening(v3)
    begin = time.monotonic()
    assert process.communicate()[0] == "done\n"
    whole = time.monotonic() - begin
    complete = rows(v3)
    dice = random.Random(5)
    interrupted = 0
    for number in range(3):
        path = tmp_path / f"killed{number}.db"
        path.write_bytes(original)
        for _ in range(2):  # the file that a first kill left is killed once more
            process = opening(path)
            time.sleep(whole * dice.random())
            process.send_signal(signal.SIGKILL)
            interrupted += process.communicate()[0] == ""
            with closing(sqlite3.connect(path)) as file:  # rolls back what was not committed
                assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert lost(before, rows(path)) == {}
        with Stores(path) as kb:
            assert kb.search("virus scanner of the filer")[0].incident == "our-nfs-home"
        after = rows(path)
        for name in complete.keys() - {"_sqlite_migrations"}:  # the time of a migration differs
            assert after[name] == complete[name], name
        sound(path)
    assert interrupted


@pytest.mark.thorough
def test_a_migration_that_is_killed_between_two_statements_leaves_the_old_file(v3: Path) -> None:
    original = v3.read_bytes()
    code = (
        "import os, signal\n"
        "from whystall.knowledge_base import schema\n"
        "class Killed(tuple):\n"
        "    def __iter__(self):\n"
        "        for n, statement in enumerate(tuple.__iter__(self)):\n"
        "            n == int(sys.argv[2]) and os.kill(os.getpid(), signal.SIGKILL)\n"
        "            yield statement\n"
        "schema.MIGRATIONS['v4'] = Killed(schema.MIGRATIONS['v4'])\n"
    )
    for at in (1, 6, 8, 12):
        command = [sys.executable, "-c", f"import sys\n{code}{_OPEN}", str(v3), str(at)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, env={**os.environ})
        assert done.returncode == -signal.SIGKILL
        with closing(sqlite3.connect(v3)) as file:
            names = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
        assert "client_tasks" not in names
        assert v3.read_bytes() == original
    with Stores(v3):
        pass
    sound(v3)
