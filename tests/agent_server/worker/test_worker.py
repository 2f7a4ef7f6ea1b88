"""The worker: what is queued is done once, in order where it matters, by one process, whatever fails or ends it."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.stores import Stores
from whystall.agent_server.task_handler import Handler, RetryLater
from whystall.agent_server.worker.lock import worker_lock
from whystall.agent_server.worker.task_runner import ATTEMPTS
from whystall.agent_server.worker.work_loop import Step, every
from whystall.agent_server.worker.worker import Work, Worker
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path / "knowledge.db") as opened:
        yield opened


@asynccontextmanager
async def working(
    kb: Stores,
    handlers: dict[str, Handler] | None = None,
    width: int = 1,
    given_up: dict[str, Callable[[Task], None]] | None = None,
    **steps: Step,
) -> AsyncIterator[Worker]:
    """A worker while the block runs."""
    tasks = {"tasks": (width, handlers)} if handlers else {}
    worker = Worker(kb, Work(tasks, steps, given_up=given_up or {}))
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        yield worker
        group.cancel_scope.cancel()


async def until(true: Callable[[], object]) -> None:
    """Wait for it; a minute is for machines that are busy with other things."""
    with anyio.fail_after(60):
        while not true():
            await anyio.sleep(0.005)


def state_of(kb: Stores, key: str) -> str:
    task = kb.tasks.by_key(key)
    assert task is not None
    return task.state


async def test_a_task_is_done_when_it_is_queued_and_only_once(kb: Stores) -> None:
    done: list[str] = []

    async def work(task: Task) -> None:
        with kb.transaction():
            kb.audit.put("engine", "test.made", task.key)
            kb.tasks.done(task.id, "made")
        done.append(task.key)

    kb.tasks.add("a", "before", {})
    async with working(kb, {"a": work}):
        await until(lambda: done == ["before"])
        kb.tasks.add("a", "during", {})
        assert kb.tasks.add("a", "during", {}) is None
        await until(lambda: len(done) == 2)
        kb.tasks.add("other", "nobody's", {})
        kb.tasks.add("a", "later", {}, due=time.time() + 0.3)
        await until(lambda: len(done) == 3)
    assert done == ["before", "during", "later"]
    assert [state_of(kb, key) for key in (*done, "nobody's")] == ["done", "done", "done", "queued"]


async def test_what_another_process_queues_is_done(kb: Stores) -> None:
    done: list[str] = []

    async def work(task: Task) -> None:
        done.append(task.key)

    async with working(kb, {"a": work}):
        await anyio.sleep(0.1)
        program = "import sys; from pathlib import Path; from whystall.agent_server.stores import Stores as K\n"
        program += "K(Path(sys.argv[1])).tasks.add('a', 'theirs', {})"
        await anyio.run_process([sys.executable, "-c", program, str(kb.path)])
        await until(lambda: done)
        await until(lambda: state_of(kb, "theirs") == "done")  # nobody said so: the worker did


async def test_a_conversation_keeps_its_order_and_holds_up_no_other(kb: Stores) -> None:
    begun: list[str] = []
    go = anyio.Event()

    async def work(task: Task) -> None:
        begun.append(task.key)
        if task.key == "a1":
            await go.wait()

    for key in ("a1", "a2", "a3", "b1"):
        kb.tasks.add("chat", key, {"conversation": key[0]})
    async with working(kb, {"chat": work}, width=4):
        await until(lambda: "b1" in begun)
        assert begun == ["a1", "b1"]
        go.set()
        await until(lambda: len(begun) == 4)
    assert begun == ["a1", "b1", "a2", "a3"]


async def test_no_more_than_the_width_at_once(kb: Stores) -> None:
    inside = most = ended = 0
    full = anyio.Event()

    async def work(_task: Task) -> None:
        nonlocal inside, most, ended
        inside += 1
        most = max(most, inside)
        if inside == 3:
            full.set()
        await full.wait()
        await anyio.sleep(0.01)
        inside -= 1
        ended += 1

    for n in range(12):
        kb.tasks.add("a", str(n), {})
    async with working(kb, {"a": work}, width=3):
        await until(lambda: ended == 12)
    assert most == 3


async def test_failures_end_a_task_or_begin_it_again(kb: Stores, caplog: pytest.LogCaptureFixture) -> None:
    tries: dict[str, int] = {}

    async def work(task: Task) -> None:
        tries[task.key] = tries.get(task.key, 0) + 1
        if task.key == "waits" and tries[task.key] < 8:
            raise RetryLater(0.0, "not yet")
        if task.key == "never":
            raise ToolError(ErrorCode.NOT_FOUND, "no such ticket", "give one")
        if task.key == "defect":
            raise RuntimeError("a secret of somebody")

    for key in ("waits", "never", "defect", "good"):
        kb.tasks.add("a", key, {})
    with caplog.at_level(logging.CRITICAL):
        async with working(kb, {"a": work}):
            await until(lambda: state_of(kb, "waits") == "done" and state_of(kb, "good") == "done")
            await until(lambda: state_of(kb, "defect") == "queued" and tries.get("defect"))
    assert tries["waits"] == 8  # waiting does not count as failing
    never, defect = kb.tasks.by_key("never"), kb.tasks.by_key("defect")
    assert never is not None
    assert (never.state, tries["never"]) == ("failed", 1)
    assert "no such ticket" in never.result
    assert [e.target for e in kb.audit.entries(what="task.failed")] == ["never"]
    assert defect is not None
    assert (defect.state, defect.result, defect.attempts) == ("queued", "RuntimeError", 1)
    assert defect.due > time.time()


async def test_a_task_that_ends_the_process_again_and_again_is_given_up(kb: Stores) -> None:
    async def work(_task: Task) -> None:
        raise AssertionError("it is not begun")

    kb.tasks.add("a", "poison", {})
    for _ in range(ATTEMPTS):  # processes that were killed in the middle of it
        assert kb.tasks.take(["a"], "dead", time.time(), 60) is not None
        kb.tasks.release_all(time.time())
    told: list[str] = []
    async with working(kb, {"a": work}, given_up={"a": lambda task: told.append(task.key)}):
        await until(lambda: state_of(kb, "poison") == "failed")
    assert told == ["poison"]


async def test_stopping_unwinds_what_runs_and_gives_it_back(kb: Stores) -> None:
    unwound: list[str] = []
    started = anyio.Event()

    async def work(task: Task) -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            unwound.append(task.key)

    kb.tasks.add("a", "long", {})
    async with working(kb, {"a": work}) as worker:
        await started.wait()
    assert unwound == ["long"]
    assert worker.state == "stopped"
    task = kb.tasks.by_key("long")
    assert task is not None
    assert (task.state, task.attempts, task.owner) == ("queued", 0, "")


async def test_a_clock_that_is_set_begins_nothing_twice(kb: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    go = anyio.Event()

    async def work(task: Task) -> None:
        begun.append(task.key)
        if task.key == "first":
            await go.wait()

    real = time.time
    kb.tasks.add("a", "first", {})
    async with working(kb, {"a": work}, width=2):
        await until(lambda: begun)
        for jump in (10**6, -(10**6)):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            kb.tasks.add("a", f"after{jump}", {})
            await until(lambda jump=jump: state_of(kb, f"after{jump}") == "done")
        go.set()
        await until(lambda: state_of(kb, "first") == "done")
    assert begun == ["first", f"after{10**6}", f"after{-(10**6)}"]


async def test_a_lane_that_fails_goes_on_and_holds_up_no_other(
    kb: Stores, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whystall.agent_server.worker.work_loop._BACKOFF_S", (0.01, 0.02))
    calls = {"bad": 0, "good": 0}

    def counting(name: str) -> Callable[[float], Awaitable[None]]:
        async def step(_now: float) -> None:
            calls[name] += 1
            if name == "bad" and calls[name] < 4:
                raise (RuntimeError("a defect") if calls[name] < 3 else ToolError(ErrorCode.DATABASE, "locked", "wait"))

        return step

    with caplog.at_level(logging.CRITICAL):
        async with working(kb, None, bad=counting("bad"), good=every(3600, counting("good"))) as worker:
            await until(lambda: calls["bad"] >= 4)
            await until(lambda: worker.lanes[0].failures == 0)
    assert calls["good"] == 1


async def test_one_process_works_and_the_next_takes_over_when_it_is_killed(kb: Stores) -> None:
    program = "import sys; from pathlib import Path; from whystall.agent_server.worker.lock import worker_lock\n"
    program += "with worker_lock(Path(sys.argv[1])) as ours: print(ours, flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(kb.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with worker_lock(kb.path) as ours:
            assert not ours
        kb.tasks.add("a", "theirs", {})
        assert kb.tasks.take(["a"], "other", time.time(), 3600) is not None
        done: list[str] = []

        async def work(task: Task) -> None:
            done.append(task.key)

        async with working(kb, {"a": work}) as worker:
            await until(lambda: worker.state == "standing_by")
            assert not done
            os.kill(other.pid, signal.SIGKILL)
            other.wait()
            await until(lambda: done == ["theirs"])
    finally:
        other.kill()
        other.communicate()


def test_where_nothing_can_be_locked_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot lock"), worker_lock(tmp_path / "nowhere" / "knowledge.db"):
        pass


def test_ended_tasks_are_forgotten_and_no_others(kb: Stores) -> None:
    for key in ("ended", "waiting"):
        kb.tasks.add("a", key, {})
    first = kb.tasks.by_key("ended")
    assert first is not None
    kb.tasks.done(first.id)
    assert kb.tasks.forget("2000-01-01T00:00:00Z") == 0
    assert kb.tasks.forget("9999-01-01T00:00:00Z") == 1
    with sqlite3.connect(kb.path) as db:
        assert db.execute("SELECT key FROM tasks").fetchall() == [("waiting",)]
