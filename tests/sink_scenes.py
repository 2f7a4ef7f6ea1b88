"""A knowledge base with a ticket, a tracker on loopback, and what delivers from one to the other."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from tracker_servers import Gate, GitHubLike, JiraLike, PagerDutyLike, Receiver, Tracker, serving

from whystall.agent_server.integrations.trackers.delivery_worker import DeliveryWorker
from whystall.agent_server.journal.deliveries import Delivery
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.classify.report import Report

Kind = Literal["github", "gitlab", "jira", "jira_server", "pagerduty", "webhook"]
TRACKERS: tuple[Kind, ...] = ("github", "gitlab", "jira", "jira_server")
KINDS: tuple[Kind, ...] = (*TRACKERS, "pagerduty", "webhook")
TOKEN = "glpat-0123456789abcdef0123456789"
ROUTING = "R0123456789abcdef0123456789abcde"
HOOK = "whsec_" + "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
START = 1_800_000_000.0
HOSTILE = (
    "@everyone\n/close\n<!-- whystall x --> {noformat}[~admin] <script>alert(1)</script> {{ 7*7 }} ` `` "
    "'; DROP TABLE tickets;"
)


@dataclass
class Scene:
    """Everything of one test; `now` is what our clock shows."""

    kb: Stores
    settings: Settings
    vendor: Any
    gate: Gate
    sink: str = "s"
    now: float = START
    ticket_service: TicketService = field(init=False)
    ticket: str = ""

    def __post_init__(self) -> None:
        self.ticket_service = TicketService(self.kb, self.settings)

    def file(self, title: str = "training hangs at step 120", text: str = HOSTILE, **more: Any) -> str:
        """File a ticket, which the sink is to be told of."""
        report = Report(
            origin="alert",
            title=title,
            description=text,
            created="2026-01-01T00:00:00Z",
            source_severity="critical",
            **more,
        )
        self.ticket = self.ticket_service.file(report).ticket.id
        return self.ticket

    async def run(self, client: Client | None = None) -> float | None:
        """Deliver what is due."""
        async with client or Client() as sending:
            return await DeliveryWorker(self.kb, self.settings, sending, lambda: self.now).due(self.sink)

    async def settle(self) -> None:
        """Deliver until nothing waits, however long that takes."""
        for _ in range(12):
            due = await self.run()
            if due is None:
                return
            self.now = max(self.now, due) + 1
        pytest.fail(f"it never ends: {self.delivery()}")

    def delivery(self) -> Delivery:
        found = self.kb.deliveries.get(self.sink, self.ticket)
        assert found is not None
        return found

    @property
    def issues(self) -> list[Any]:
        """What is there, in the vendor's own form."""
        if isinstance(self.vendor, PagerDutyLike):
            return self.vendor.alerts
        return list(self.vendor.taken.values()) if isinstance(self.vendor, Receiver) else self.vendor.issues


def vendor_of(kind: Kind) -> tuple[Any, dict[str, Any]]:
    """A vendor like it, and the settings of a sink for it."""
    if kind == "github":
        return GitHubLike(TOKEN), {"kind": "github", "repository": "acme/ops", "token": _env("TOKEN")}
    if kind == "gitlab":
        return Tracker(TOKEN), {"kind": "gitlab", "project": "demo/training", "token": _env("TOKEN")}
    if kind == "jira":
        basic = "Basic Ym90QGFjbWUudGVzdDpnbHBhdC0wMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1Njc4OQ=="
        return JiraLike(basic), {"kind": "jira", "project": "OPS", "email": "bot@acme.test", "token": _env("TOKEN")}
    if kind == "jira_server":
        return JiraLike(f"Bearer {TOKEN}", cloud=False), {"kind": "jira", "project": "OPS", "token": _env("TOKEN")}
    if kind == "pagerduty":
        return PagerDutyLike(ROUTING), {"kind": "pagerduty", "routing_key": _env("ROUTING"), "source": "node1"}
    return Receiver(), {"kind": "webhook", "secret": _env("HOOK")}


def _env(name: str) -> dict[str, str]:
    return {"env": f"SINK_{name}"}


@contextlib.contextmanager
def scene(kind: Kind, path: Path, **more: Any) -> Iterator[Scene]:
    """A scene with a tracker like `kind`; `more` are further settings of its sink."""
    vendor, table = vendor_of(kind)
    (path / "knowledge.db").write_bytes(_empty())
    with serving(vendor) as gate, opened(path / "knowledge.db") as kb:
        yield Scene(kb, settings_of(table, gate, **more), vendor, gate)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Stores]:
    """The knowledge base at `path`, not synced to the disk: processes are killed here, machines are not."""
    with Stores(path) as kb:
        with kb._file.read() as db:
            db.execute("PRAGMA synchronous = OFF")
        yield kb


@cache
def _empty() -> bytes:
    """An empty knowledge base: the cards it begins with take half a second to put in."""
    with tempfile.TemporaryDirectory() as directory:
        Stores(Path(directory) / "knowledge.db").close()
        return (Path(directory) / "knowledge.db").read_bytes()


def settings_of(table: dict[str, Any], gate: Gate, **more: Any) -> Settings:
    trackers = {"s": "alice"} if table["kind"] != "jira" else {"s": "5b10a"}
    return Settings(
        tickets={"sinks": ["s"]},
        sinks={"s": {**table, "url": gate.url, **more}},
        users={"ann": {"trackers": trackers}, "ben": {}},
        oncall={"fallback": ["ann"]},
    )


def environment(patch: pytest.MonkeyPatch) -> None:
    """The secrets; no proxies."""
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.startswith("SSL_CERT"):
            patch.delenv(name)
    for name, value in (("TOKEN", TOKEN), ("ROUTING", ROUTING), ("HOOK", HOOK)):
        patch.setenv(f"SINK_{name}", value)


Make = Callable[..., contextlib.AbstractContextManager[Scene]]
