"""Damaged, locked, foreign and removed files: nothing is lost, and errors have a remedy."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from making import checkpoint

from whystall.knowledge_base import database
from whystall.knowledge_base.store import KnowledgeBase
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent


def refused(path: Path) -> ToolError:
    """The error of opening `path`."""
    with pytest.raises(ToolError) as caught:
        KnowledgeBase(path)
    assert caught.value.remedy
    return caught.value


def filled(path: Path, diagnoses: int = 200) -> Path:
    with KnowledgeBase(path) as kb:
        for i in range(diagnoses):
            kb.save_diagnosis(checkpoint(id=f"d{i}"))
        kb.tickets.draft(checkpoint())
    return path


@pytest.mark.parametrize("content", [b"just a text file\n" * 20, b"\x7fELF" + bytes(500), b"S", os.urandom(5000)])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "k.db"
    path.write_bytes(content)
    assert refused(path).code is ErrorCode.DATABASE
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE incidents (id TEXT)")
    before = path.read_bytes()
    assert "another program" in refused(path).message
    assert path.read_bytes() == before


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    path = filled(tmp_path / "k.db", 1)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('whystall', 'v99', '')")
    before = path.read_bytes()
    assert "newer" in refused(path).message
    assert path.read_bytes() == before


def test_a_record_of_a_newer_version_is_named(tmp_path: Path) -> None:
    path = filled(tmp_path / "k.db", 1)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE diagnoses SET body = json_set(body, '$.telepathy', 1)")
    with KnowledgeBase(path) as kb, pytest.raises(ToolError) as caught:
        kb.get_diagnosis("d0")
    assert caught.value.code is ErrorCode.DATABASE


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "k.db").touch()
    with KnowledgeBase(tmp_path / "k.db") as kb:
        assert kb.search("checkpoint")


def test_a_directory_and_a_missing_one_are_named(tmp_path: Path) -> None:
    assert "directory" in refused(tmp_path).message
    assert refused(tmp_path / "no" / "k.db").code is ErrorCode.DATABASE


def use(path: Path) -> list[ToolError]:
    """Do everything with the store in `path`; the errors, which may only be `ToolError`."""
    errors: list[ToolError] = []
    try:
        kb = KnowledgeBase(path)
    except ToolError as error:
        return [error]
    for act in (
        lambda: kb.search("checkpoint"),
        lambda: kb.match(checkpoint()),
        lambda: [kb.get_diagnosis(f"d{i}") for i in range(0, 200, 7)],
        kb.tickets.list,
        lambda: kb.tickets.draft(checkpoint(id="new")),
    ):
        try:
            act()
        except ToolError as error:
            errors.append(error)
    kb.close()
    return errors


def test_a_truncated_database_is_reported(tmp_path: Path) -> None:
    path = filled(tmp_path / "k.db")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 3)
    errors = use(path)
    assert errors
    assert {e.code for e in errors} == {ErrorCode.DATABASE}
    assert any("recover" in e.remedy for e in errors)


def test_damaged_pages_never_raise_anything_else(tmp_path: Path) -> None:
    good = filled(tmp_path / "good.db")
    dice, seen = random.Random(3), 0
    for round in range(25):
        path = tmp_path / f"bad{round}.db"
        shutil.copy(good, path)
        with path.open("r+b") as file:
            for _ in range(4):
                file.seek(dice.randrange(100, path.stat().st_size - 600))
                file.write(dice.randbytes(500))
        errors = use(path)
        assert {e.code for e in errors} <= {ErrorCode.DATABASE, ErrorCode.NOT_FOUND}
        seen += bool(errors)
    assert seen > 5


def test_a_locked_database_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.05)
    path = filled(tmp_path / "k.db", 1)
    with KnowledgeBase(path) as kb:
        other = sqlite3.connect(path)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ToolError) as caught:
            kb.tickets.draft(checkpoint(id="d9"))
        other.rollback()
        other.close()
        assert "in use" in caught.value.message
        assert kb.tickets.draft(checkpoint(id="d9")).occurrences == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB (as root), or any directory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], capture_output=True).returncode == 0
    )
    yield disk
    if mounted:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "k.db"
    kb = KnowledgeBase(path)
    if not os.path.ismount(small_disk):
        with kb._file.read() as db:
            db.execute("PRAGMA max_page_count = 1250")
    done = 0

    def fill() -> None:
        nonlocal done
        while done < 1000:
            kb.save_diagnosis(checkpoint(id=f"d{done}"))
            done += 1

    with pytest.raises(ToolError) as caught:
        fill()
    assert caught.value.code is ErrorCode.DISK_FULL
    assert 0 < done < 1000
    assert kb.get_diagnosis(f"d{done - 1}").id == f"d{done - 1}"
    with pytest.raises(ToolError, match="no diagnosis"):
        kb.get_diagnosis(f"d{done}")
    kb.close()
    with closing(sqlite3.connect(path)) as other, other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


_WRITER = """
import sys
from pathlib import Path
from making import checkpoint
from whystall.knowledge_base.store import KnowledgeBase
kb = KnowledgeBase(Path(sys.argv[1]))
for i in range(100000):
    ticket = kb.tickets.draft(checkpoint(id=f"d{i}"))
    print(i, ticket.occurrences, flush=True)
"""


def writer(path: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=env)


def test_a_kill_at_any_moment_loses_nothing_acknowledged(tmp_path: Path) -> None:
    dice = random.Random(11)
    for round in range(4):
        path = tmp_path / f"k{round}.db"
        process = writer(path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(dice.uniform(0.01, 0.3))
        process.send_signal(signal.SIGKILL)
        last = process.stdout.read().split("\n")[-2:]
        process.stdout.close()
        process.wait()
        told = max(int(line.split()[0]) for line in last if len(line.split()) == 2) if any(last) else 0
        with KnowledgeBase(path) as kb:
            assert kb.get_diagnosis(f"d{told}").ticket == "1"
            # A ticket and its diagnosis are one transaction: the count is that of the diagnoses stored.
            with kb._file.read() as db:
                stored = db.execute("SELECT count(*) FROM diagnoses").fetchone()[0]
            assert kb.tickets.get("1").occurrences == stored >= told + 1


def test_processes_count_one_ticket_together(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    KnowledgeBase(path).close()
    # All begin at the same moment, so that they really meet.
    start = time.time() + 1.5
    code = _WRITER.replace("100000", "40").replace('f"d{i}"', 'f"{sys.argv[2]}.{i}"')
    code = code.replace("for i", f"import time; time.sleep(max(0, {start} - time.time()))\nfor i", 1)
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", code, str(path)]
    writers = [subprocess.Popen([*command, name], env=env, stdout=subprocess.DEVNULL) for name in "abc"]
    assert [process.wait() for process in writers] == [0, 0, 0]
    with KnowledgeBase(path) as kb:
        assert [t.occurrences for t in kb.tickets.list()] == [120]


@pytest.fixture
def nobody() -> Iterator[None]:
    """Runs as root become another user for a while: permissions mean nothing to root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A store in a directory that nobody may write."""
    with tempfile.TemporaryDirectory() as name:
        path = filled(Path(name) / "k.db", 1)
        path.chmod(0o444)
        Path(name).chmod(0o555)
        yield path
        Path(name).chmod(0o755)


def test_a_database_that_may_not_be_written_can_be_read(sealed: Path, nobody: None) -> None:
    before = sealed.read_bytes()
    with KnowledgeBase(sealed) as kb:
        assert kb.read_only
        assert kb.search("checkpoint")
        assert kb.match(checkpoint())
        assert kb.tickets.get("1").id == "1"
        assert kb.cards.backlog() == []
        assert kb.cards.export(lambda line: None) == kb.cards.stats().cards
        curated = "random-bytes-from-the-kernel"
        for act in (
            lambda: kb.save_diagnosis(checkpoint()),
            lambda: kb.tickets.draft(checkpoint()),
            lambda: kb.tickets.resolve("1", "x", "ann"),
            lambda: kb.remember(checkpoint(), ticket=True),
            lambda: kb.cards.accept(curated),
            lambda: kb.cards.retire(curated, "x"),
            lambda: kb.cards.record(title="a", symptom="b", fix="c"),
        ):
            with pytest.raises(ToolError, match="cannot be written") as caught:
                act()
            assert caught.value.code is ErrorCode.DATABASE
    assert sealed.read_bytes() == before


def test_a_closed_store_may_be_closed_again(tmp_path: Path) -> None:
    kb = KnowledgeBase(tmp_path / "k.db")
    kb.close()
    kb.close()
    with pytest.raises(ToolError):
        kb.tickets.list()


def test_waits_are_bounded_and_shorter_on_an_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "k.db", 1)
    other = sqlite3.connect(path)

    async def draft() -> None:
        with pytest.raises(ToolError, match="in use"):
            kb.tickets.draft(checkpoint(id="d9"))

    with KnowledgeBase(path) as kb:
        monkeypatch.setattr(database, "_LOOP_S", 0.05)  # _BUSY_S is longer than a test may take
        other.execute("BEGIN EXCLUSIVE")
        asyncio.run(draft())
        other.rollback()
        with kb.transaction(), ThreadPoolExecutor(1) as pool:  # another thread of ours
            pool.submit(asyncio.run, draft()).result()
        assert kb.tickets.draft(checkpoint(id="d9")).occurrences == 2
    other.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_removed_file_is_reported_as_moved(tmp_path: Path, replaced: bool) -> None:
    path = filled(tmp_path / "k.db", 1)
    with KnowledgeBase(path) as kb:
        kb.version()
        if replaced:
            shutil.copy(path, tmp_path / "other.db")
            (tmp_path / "other.db").rename(path)
        else:
            path.unlink()
        with pytest.raises(ToolError, match="moved, deleted or replaced"):
            kb.version()
        with pytest.raises(ToolError, match="moved, deleted or replaced"):
            kb.tickets.draft(checkpoint(id="d9"))
