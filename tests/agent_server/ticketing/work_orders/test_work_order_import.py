"""A backlog becomes tickets, each once, whatever happens meanwhile."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.agent_server.ticketing.work_orders.columns import Columns, created
from whystall.agent_server.ticketing.work_orders.importing import BATCH, Imported, import_work_orders
from whystall.agent_server.ticketing.work_orders.reading import Table
from whystall.agent_server.ticketing.work_orders.trial_copy import trial_copy
from whystall.knowledge_base.classify.centroids import work_orders
from whystall.tools.contract.errors import ToolError

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A base as it comes, made once."""
    path = tmp_path_factory.mktemp("seeded") / "k.db"
    Stores(path).close()
    return path.read_bytes()


@pytest.fixture
def kb(tmp_path: Path, seeded: bytes) -> Iterator[Stores]:
    (tmp_path / "k.db").write_bytes(seeded)
    with Stores(tmp_path / "k.db") as base:
        yield base


def table(rows: list[dict[str, str]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def backlog(count: int) -> list[dict[str, str]]:
    """Work orders of the catalogue about hosts of their own, one in four told twice."""
    orders = [*work_orders("en").tuned, *work_orders("zh").tuned]
    rows = []
    for n in range(count):
        order = orders[(n - n % 4 // 3) % len(orders)]
        host = f"gpu-{(n - n % 4 // 3) % 997}"
        text = f"{order.text} ({n} times, job-{n})"
        rows.append(
            {"id": f"W-{n}", "title": order.text[:60], "description": text, "host": host, "label": order.category}
        )
    return rows


def take(kb: Stores, data: bytes, columns: Columns | None = None, **how: Any) -> Imported:
    return import_work_orders(kb, TicketService(kb), Table(io.BytesIO(data)), columns or Columns(), **how)


def snapshot(kb: Stores) -> list[tuple[Any, ...]]:
    """All that is known of the tickets, but for when it happened."""
    return [
        (t.id, t.dedup_key, t.occurrences, t.category, t.severity, t.human.title, [(k.kind, k.ticket) for k in t.links])
        for number in sorted(map(int, kb.tickets.ids(limit=10_000)))
        for t in [kb.tickets.get(str(number))]
    ]


def test_a_backlog_is_filed_counted_and_scored(kb: Stores) -> None:
    rows = backlog(240)
    done = take(kb, table(rows), Columns(category="label"))
    assert (done.rows, done.new + done.again, done.known, done.left_out) == (240, 240, 0, 0)
    assert done.again >= 50
    assert kb.tickets.count() == done.new
    assert sum(t.occurrences for t in kb.tickets.list(limit=1000)) == 240
    twice = next(t for t in kb.tickets.list(limit=1000) if t.occurrences > 1)
    assert kb.tickets.events(twice.id)[-1].detail.startswith("W-")  # which one it was that is counted here
    assert done.score is not None
    assert done.score.right is not None
    assert done.score.right.value > 0.9
    assert done.by["rule"] > done.by.get("default", 0)
    first = kb.tickets.get("1")
    assert (first.origin, first.labels["host"]) == ("work_order", "gpu-0")


def test_again_changes_nothing_and_reports_the_same(kb: Stores) -> None:
    data = table(backlog(150))
    first = take(kb, data, Columns(category="label"))
    before, audited = snapshot(kb), kb.audit.entries(limit=1)[-1].n
    second = take(kb, data, Columns(category="label"))
    assert (second.new, second.again, second.known) == (0, 0, 150)
    assert snapshot(kb) == before
    assert kb.audit.entries(limit=1)[-1].n == audited
    for name in ("by", "categories", "severities", "score", "labelled"):
        assert getattr(second, name) == getattr(first, name)


def test_rows_that_say_something_else_now_are_told_and_left(kb: Stores) -> None:
    rows = backlog(8)
    take(kb, table(rows))
    before = snapshot(kb)
    rows[3]["description"] = "something else entirely"
    assert take(kb, table(rows)).changed == 1
    assert snapshot(kb) == before


def test_rows_without_an_id_are_known_by_what_they_say(kb: Stores) -> None:
    data = b"title\nno space left on device on the login host\nno space left on device on the login host\n"
    done = take(kb, data)
    assert (done.new, done.known) == (1, 1)
    assert take(kb, data).known == 2


_RUN = """
import sys
from pathlib import Path
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.agent_server.ticketing.work_orders.columns import Columns
from whystall.agent_server.ticketing.work_orders.importing import import_work_orders
from whystall.agent_server.ticketing.work_orders.reading import Table
from whystall.agent_server.stores import Stores
with Stores(Path(sys.argv[1])) as kb, open(sys.argv[2], "rb") as stream:
    columns = Columns(category="label")
    say = lambda rows, _: print(rows, flush=True)
    import_work_orders(kb, TicketService(kb), Table(stream), columns, learn=True, progress=say)
"""


def test_killed_in_the_middle_and_run_again_is_as_one_run(kb: Stores, seeded: bytes, tmp_path: Path) -> None:
    data = table(backlog(6 * BATCH))
    file = tmp_path / "orders.csv"
    file.write_bytes(data)
    take(kb, data, Columns(category="label"), learn=True)
    cut = tmp_path / "cut.db"
    cut.write_bytes(seeded)
    for stop in (BATCH, 3 * BATCH):
        child = subprocess.Popen([sys.executable, "-c", _RUN, cut, file], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= stop:
                os.kill(child.pid, signal.SIGKILL)
                break
        child.stdout.close()
        child.wait()
    with Stores(cut) as other:
        assert 0 < other.tickets.count() < kb.tickets.count()
        take(other, data, Columns(category="label"), learn=True)
        assert snapshot(other) == snapshot(kb)
        assert other.classifier.centroids.examples() == kb.classifier.centroids.examples()


def test_a_bad_row_ends_it_with_its_line_and_nothing_is_lost(kb: Stores) -> None:
    rows = table(backlog(130)).decode().splitlines(keepends=True)
    rows[121] = "too,few\r\n"
    with pytest.raises(ToolError, match=r"line 122: .*2/5.*120 rows before it are stored"):
        take(kb, "".join(rows).encode())
    assert sum(t.occurrences for t in kb.tickets.list(limit=1000)) == 120
    done = take(kb, "".join(rows).encode(), skip=True)
    assert (done.known, done.new + done.again, done.left_out) == (120, 9, 1)
    assert (done.refused[0].line, done.refused[0].why) == (122, "cells")


def test_a_row_that_says_nothing_is_none(kb: Stores) -> None:
    done = take(kb, b"id,title\n1,\n2,  \n3,disk of the host is full since noon\n", skip=True)
    assert (done.new, done.left_out) == (1, 2)


def test_behind_a_cell_too_large_nothing_is_guessed(kb: Stores) -> None:
    data = b'id,title\n1,"' + b"x" * (5 << 20) + b'\n2,y\n3,z"\n4,slow nfs\n'
    with pytest.raises(ToolError, match=r"line 2: .*too large"):
        take(kb, data, skip=True)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("id,title,description", {}),
        ("编号,标题,描述", {}),
        ("Issue key,Summary,Description", {}),
        ("a,b,c", {"id": "a", "title": "b", "text": "c"}),
    ],
)
def test_columns_go_by_their_usual_names_or_by_flags(kb: Stores, header: str, wanted: dict[str, str]) -> None:
    take(kb, f"{header}\n7,slow reads,from the nfs export of team a\n".encode(), Columns(**wanted))  # type: ignore[arg-type]
    human = kb.tickets.get("1").human
    assert (human.title, human.description) == ("slow reads", "from the nfs export of team a")


def test_columns_that_are_not_there_are_named(kb: Stores) -> None:
    with pytest.raises(ToolError, match="no column 'nope'"):
        take(kb, b"id,title\n1,x\n", Columns(text="nope"))
    with pytest.raises(ToolError, match="no column for the title"):
        take(kb, b"a,b\n1,x\n")


def test_labels_may_be_words_of_their_own(kb: Stores) -> None:
    data = (
        "title,类别\nno space left on device on host-1 again,存储\nXid 79 on the third card of host-2,硬件\n".encode()
    )
    done = take(kb, data, Columns(category="类别"))  # what we call a category ourselves is one
    assert done.foreign == {"硬件": 1}
    done = take(kb, data.replace("存储".encode(), b"disks"), Columns(category="类别", classes={"disks": "storage"}))
    assert (done.labelled, done.foreign) == (2, {"硬件": 1})
    assert done.score is not None
    assert done.score.right is not None
    assert done.score.right.of == 1


def test_lines_of_json_are_taken_like_rows(kb: Stores) -> None:
    lines = [
        {"id": n, "summary": f"checkpoint writes to the nas of cell {n} stall all ranks", "severity": "P1"}
        for n in "abc"
    ]
    done = take(kb, "\n".join(map(json.dumps, lines)).encode())
    assert (done.new, done.severities) == (3, {"critical": 3})


def test_hostile_cells_become_inert_text(kb: Stores) -> None:
    text = "=cmd()|'x' \x1b[31m\u202e @all <script> {{7*7}} '; DROP TABLE tickets; -- slow nfs"
    take(kb, table([{"id": "1\x00", "title": text, "description": "a\nb\u200b"}]))
    human = kb.tickets.get("1").human
    assert "\x1b" not in human.title
    assert "\u202e" not in human.title
    assert human.description.startswith("a\nb")
    assert kb.tickets.count() == 1


def test_a_dry_run_stores_nothing(kb: Stores) -> None:
    data = table(backlog(20))
    with trial_copy(kb) as copy:
        assert take(copy, data).rows == 20
        assert copy.tickets.count() > 0
    assert kb.tickets.count() == 0
    assert kb.work_orders.known("work_orders", ["id:W-0"]) == {}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02 03:04:05", "2026-01-02T03:04:05Z"),
        ("2026/1/2 3:04", "2026-01-02T03:04:00Z"),
        ("2026年1月2日", "2026-01-02T00:00:00Z"),
        ("1767323045", "2026-01-02T03:04:05Z"),
        ("1767323045000", "2026-01-02T03:04:05Z"),
        ("yesterday", "2026-06-01T00:00:00Z"),
        ("2026-13-45", "2026-06-01T00:00:00Z"),
        ("2999-01-01", "2026-06-01T00:00:00Z"),
        ("", "2026-06-01T00:00:00Z"),
    ],
)
def test_moments_in_all_the_usual_ways(text: str, moment: str) -> None:
    assert created(text, datetime(2026, 6, 1, tzinfo=timezone.utc)) == moment
