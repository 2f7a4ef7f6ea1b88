"""A clock that is set back while things are put off."""

from __future__ import annotations

from pathlib import Path

import anyio

from whystall.agent_server.journal.tasks import FARTHEST_S
from whystall.agent_server.stores import Stores
from whystall.agent_server.worker.clock_watch import ClockWatch

NOW = 1_800_000_000.0
HOUR = 3600.0


def test_what_is_put_off_is_set_back_with_the_clock(tmp_path: Path) -> None:
    with Stores(tmp_path / "k.db") as kb:
        kb.tasks.add("tell", "put off", {}, due=NOW + 20)
        kb.tasks.add("chat", "due", {}, due=NOW - 2 * HOUR)
        kb.messages.put("m", "ops", {"conversation": "room"}, {}, due=NOW + 30)
        with kb._file.write() as db:
            db.execute("INSERT INTO deliveries (sink, ticket, wanted, due) VALUES ('tracker', 1, 1, ?)", [NOW + 40])
        runs = iter([10.0, 11.0, 12.0, 13.0])
        watch = ClockWatch(kb, lambda: next(runs))
        anyio.run(watch.step, NOW)
        anyio.run(watch.step, NOW + 1)  # runs on
        assert kb.tasks.next_due(["tell"]) == NOW + 20
        anyio.run(watch.step, NOW + 2 - HOUR)
        anyio.run(watch.step, NOW + 3 - HOUR)
        assert kb.tasks.next_due(["tell"]) == NOW + 20 - HOUR
        assert kb.messages.next_due() == NOW + 30 - HOUR
        assert kb.deliveries.next_due(["tracker"]) == NOW + 40 - HOUR
        assert kb.tasks.next_due(["chat"]) == NOW - 2 * HOUR


def test_a_clock_that_is_set_forward_changes_nothing(tmp_path: Path) -> None:
    with Stores(tmp_path / "k.db") as kb:
        kb.tasks.add("tell", "put off", {}, due=NOW + 2 * HOUR)
        watch = ClockWatch(kb, iter([10.0, 11.0]).__next__)
        anyio.run(watch.step, NOW)
        anyio.run(watch.step, NOW + HOUR)
        assert kb.tasks.next_due(["tell"]) == NOW + 2 * HOUR


def test_a_clock_that_was_set_back_while_nobody_worked(tmp_path: Path) -> None:
    with Stores(tmp_path / "k.db") as kb:
        kb.tasks.add("tell", "put off", {}, due=NOW + 20)
        kb.tasks.release_all(NOW)
        assert kb.tasks.next_due(["tell"]) == NOW + 20
        kb.tasks.release_all(NOW - 2 * FARTHEST_S)
        assert kb.tasks.next_due(["tell"]) == NOW - 2 * FARTHEST_S
