"""A chat with its knowledge base, people who may change things and people who may not, and looks that are quick."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from making import checkpoint

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.store_diagnosis import store_diagnosis
from whystall.agent_server.integrations.chat import chat_task, investigations
from whystall.agent_server.integrations.messages import Incoming, Outgoing, Place
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.models import Diagnosis

SETTINGS = {
    "server": {},
    "oncall": {
        "timezone": "Asia/Shanghai",
        "categories": {"storage": "storage"},
        "schedules": {
            "storage": {"timezone": "Asia/Shanghai", "layers": [{"users": ["wang"]}]},
            "network": {"timezone": "Asia/Shanghai", "layers": [{"users": ["li"]}]},
        },
    },
    "users": {"wang": {"name": "王伟", "phone": "+86 10 5555 0100", "chats": {"ops": "U1"}}, "li": {}},
    "chat": {
        "ops": {"kind": "webhook", "secret": {"env": "NONE"}, "may_change": ["U1", "U2"]},
        "open": {"kind": "webhook", "secret": {"env": "NONE"}, "may_change": ["*"], "lang": "en"},
        "model": {"kind": "webhook", "secret": {"env": "NONE"}, "may_change": ["U1"], "llm": True},
    },
}


class QuickApp(App):
    """An `App` whose looks take no window: each ends as `diagnosis`, or with `error`, once it need not `wait`, and what
    it found is stored as any is. `looked`: what was asked for.
    """

    def __init__(self, database: Path) -> None:
        super().__init__(database)
        self.diagnosis = checkpoint()
        self.error: Exception | None = None
        self.looked: list[Any] = []
        self.wait = False
        self.cancelled = 0

    async def diagnose(self, params: Any, *, progress: Any = None, then: Any = None, **_: Any) -> Diagnosis:  # type: ignore[override]
        self.looked.append(params)
        if progress is not None:
            progress(0.1, 1.0, "look 1: host_snapshot")
        try:
            while self.wait:
                await anyio.sleep(0.01)
        except BaseException:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        found = self.diagnosis.model_copy(update={"id": f"d{len(self.looked)}"})
        return store_diagnosis(self.kb(), found, TicketService(self.kb(), None) if params.ticket else None, then)


class Chat:
    """Talks as people in chats do, through the tasks that a worker would do."""

    def __init__(self, app: QuickApp, settings: Settings) -> None:
        self.app = app
        self.kb: Stores = app.kb()
        self.ticket_service = TicketService(self.kb, settings)
        self.settings = settings
        self._events = 0

    def queued(self, text: str, sender: str = "U1", channel: str = "ops", group: str = "g") -> Task:
        """A message as the route takes it in."""
        self._events += 1
        place = Place(channel=channel, conversation=group)
        incoming = Incoming(event=f"e{self._events}", place=place, sender=sender, sender_name=sender, text=text)
        key = f"chat:{channel}:{incoming.event}"
        number = self.kb.tasks.add("chat", key, {"incoming": incoming.model_dump(mode="json"), "conversation": group})
        assert number is not None
        task = self.kb.tasks.get(number)
        assert task is not None
        return task

    async def says(self, text: str, sender: str = "U1", channel: str = "ops", group: str = "g") -> str:
        """What is answered at once to `text`."""
        task = self.queued(text, sender, channel, group)
        await chat_task.handle(task, self.app, self.ticket_service, self.settings)
        done = self.kb.tasks.get(task.id)
        assert done is not None
        assert done.state == "done"
        message = self.kb.messages.by_key(f"answer:{task.key}")
        assert message is not None
        return str(message.message["text"])

    async def look(self) -> None:
        """Do the look that is due, and tell what it found."""
        task = self.kb.tasks.take(["look"], "w", time.time(), 60)
        assert task is not None
        await investigations.run_task(task, self.app, self.settings)
        while (verdict := self.kb.tasks.take(["chat"], "w", time.time(), 60)) is not None:
            if "verdict" in verdict.payload:
                await chat_task.handle(verdict, self.app, self.ticket_service, self.settings)

    def told(self, channel: str = "ops", group: str | None = None) -> list[Outgoing]:
        """All messages so far, oldest first."""
        found = self.kb.messages.latest(1000, channel)
        return [Outgoing.model_validate(m.message) for m in found if group in (None, m.conversation)]

    def ticket(self, title: str = "GPU idle", **labels: str) -> str:
        """A new ticket."""
        report = Report(origin="alert", title=title, created="2026-11-22T00:00:00Z", labels={"t": title, **labels})
        return self.ticket_service.file(report).ticket.id


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new knowledge base, made once: copies are quicker."""
    path = tmp_path_factory.mktemp("seeded") / "knowledge.db"
    Stores(path).close()
    return path


@pytest.fixture
def chat(tmp_path: Path, seeded: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    shutil.copy(seeded, tmp_path / "knowledge.db")
    with QuickApp(tmp_path / "knowledge.db").closing() as app:
        assert isinstance(app, QuickApp)
        with app.kb()._file.read() as db:  # these tests lose no power: what is stored need not reach the disk
            db.execute("PRAGMA synchronous = OFF")
        yield Chat(app, Settings.model_validate(SETTINGS))
