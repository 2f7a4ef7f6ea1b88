"""Hosts report their tickets to a centre, over HTTP: each is kept once, one fault of several hosts is one ticket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from making import checkpoint
from web_servers import serving

from whystall.agent_server.app import App
from whystall.agent_server.integrations.trackers.delivery_worker import DeliveryWorker, notification_of
from whystall.agent_server.integrations.trackers.issue import SyncState
from whystall.agent_server.integrations.trackers.registry import open_notifier
from whystall.agent_server.interfaces.web.serve import routes_of
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.settings.load import load
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.agent_server.worker.service import Service
from whystall.knowledge_base.models import Diagnosis
from whystall.knowledge_base.ticket_models import Ticket

pytestmark = pytest.mark.thorough

SHARED, OWN = "token-of-all-hosts-0123456789", "token-of-node009-0123456789"
CENTRE = '[reports]\ntoken = {{ file = "{0}/shared" }}\n[reports.tokens]\nnode009 = {{ file = "{0}/own" }}\n'


class Host:
    """A host with a database of its own, which reports to the centre at `port`."""

    def __init__(self, name: str, kb: Stores, port: int, token: str) -> None:
        self.kb = kb
        secret = kb.path.parent / "token"
        secret.write_text(token)
        secret.chmod(0o600)
        sink = {
            "kind": "centre",
            "url": f"http://127.0.0.1:{port}",
            "token": {"file": str(secret)},
            "host": name,
        }
        self.settings = Settings.model_validate({"sinks": {"centre": sink}, "tickets": {"sinks": ["centre"]}})
        self.service = TicketService(kb, self.settings)
        self.now = 1_800_000_000.0

    def diagnosed(self, **changes: Any) -> Ticket:
        return self.service.settle(self.kb.tickets.draft(checkpoint(**changes)).id)

    async def report(self) -> None:
        self.now += 3600
        async with Client() as client:
            await DeliveryWorker(self.kb, self.settings, client, lambda: self.now).due("centre")

    def request(self, ticket: str) -> Any:
        """What would be sent."""
        notifier = open_notifier("centre", self.settings.sinks["centre"])
        sent = SyncState(nonce="0123456789abcdef")
        (one,) = notifier.requests(notification_of(self.kb.tickets, self.kb.tickets.get(ticket), sent, "en", self.now))
        return one


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Stores]]:
    for name, value in (("shared", SHARED), ("own", OWN)):
        (tmp_path / name).write_text(value)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "whystall.toml").write_text(CENTRE.format(tmp_path))
    monkeypatch.setenv("WHYSTALL_CONFIG", str(tmp_path / "whystall.toml"))
    with App(tmp_path / "centre.db").closing() as app:
        service = Service(app, load())
        with serving(routes_of(service)) as port:
            yield port, service.kb


@pytest.fixture
def hosts(tmp_path: Path, centre: tuple[int, Stores]) -> Iterator[list[Host]]:
    made = []
    for name in ("node001", "node002"):
        (tmp_path / name).mkdir()
        made.append(Host(name, Stores(tmp_path / name / "k.db"), centre[0], SHARED))
    yield made
    for one in made:
        one.kb.close()


@pytest.mark.anyio
async def test_a_ticket_of_a_host_is_kept_with_its_diagnosis_and_follows_it(
    hosts: list[Host], centre: tuple[int, Stores]
) -> None:
    host, (_, kb) = hosts[0], centre
    ticket = host.diagnosed()
    host.service.comment(ticket.id, "seen since\nMonday \x1b[31m", "ann")
    await host.report()
    await host.report()
    (kept,) = kb.tickets.list()
    found = host.kb.tickets.get(ticket.id).diagnosed()
    assert (kept.labels["host"], kept.category, kept.severity) == ("node001", ticket.category, ticket.severity)
    assert kept.diagnosed().id == f"node001-{found.id}"
    assert (kept.diagnosed().cause, kept.diagnosed().findings) == (found.cause, found.findings)
    (comment,) = kept.human.comments
    assert (comment.by, comment.text.splitlines()[0], "\x1b" in comment.text) == ("ann@node001", "seen since", False)

    host.service.acknowledge(ticket.id, "ann")
    await host.report()
    assert kb.tickets.get(kept.id).state == "acknowledged"
    host.service.resolve(ticket.id, "checkpoints are written by a thread", "ann")
    await host.report()
    after = kb.tickets.get(kept.id)
    assert (after.state, after.resolution) == ("resolved", "checkpoints are written by a thread")
    assert after.card is not None, "the centre learns from it"
    assert len(after.human.comments) == 1


@pytest.mark.anyio
async def test_one_fault_of_two_hosts_is_one_ticket_that_one_host_does_not_end(
    hosts: list[Host], centre: tuple[int, Stores]
) -> None:
    kb = centre[1]
    for host in hosts:
        host.diagnosed()
        await host.report()
    tickets = {one.id: one for one in kb.tickets.list()}
    assert sorted(one.state for one in tickets.values()) == ["closed", "open"]
    (live,) = [one for one in tickets.values() if one.state == "open"]
    hosts[0].service.resolve("1", "moved", "ann")
    await hosts[0].report()
    assert kb.tickets.get(live.id).state == "open"


@pytest.mark.anyio
async def test_what_people_end_at_the_centre_stays_so(hosts: list[Host], centre: tuple[int, Stores]) -> None:
    host, (_, kb) = hosts[0], centre
    ticket = host.diagnosed()
    await host.report()
    (kept,) = kb.tickets.list()
    TicketService(kb).close(kept.id, "no_fault", "bob")
    host.service.resolve(ticket.id, "moved", "ann")
    await host.report()
    assert [(one.id, one.state) for one in kb.tickets.list()] == [(kept.id, "closed")]


def test_a_repeated_report_changes_nothing(hosts: list[Host], centre: tuple[int, Stores]) -> None:
    host, (port, kb) = hosts[0], centre
    request = host.request(host.diagnosed().id)
    with httpx.Client(trust_env=False) as http:
        answers = [http.post(request.url, content=request.body, headers=dict(request.headers)) for _ in range(3)]
    assert [answer.json() for answer in answers] == [{"ticket": "1"}] * 3
    assert (kb.tickets.count(), kb.tickets.get("1").occurrences) == (1, 1)
    assert str(port) in request.url
    assert SHARED in request.secrets


def test_who_may_not_report_is_refused(hosts: list[Host], centre: tuple[int, Stores]) -> None:
    host, (port, kb) = hosts[0], centre
    body = host.request(host.diagnosed().id).body
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:

        def status(name: str, token: str, content: bytes = body) -> int:
            return http.post(
                f"/reports/{name}", content=content, headers={"Authorization": f"Bearer {token}"}
            ).status_code

        assert status("node001", "x" * 30) == 401
        assert status("node009", SHARED) == 401, "it has a token of its own"
        assert status("..%2fx", SHARED) == 404
        for malformed in (
            b"{",
            b"[]",
            b"{}",
            b'{"ref": "0123456789abcdef", "title": "x", "ticket": 1}',
            b"[" * 100_000,
        ):
            assert status("node001", SHARED, malformed) == 400
        assert status("node001", SHARED, b" " * (5 << 20)) == 413
        assert kb.tickets.count() == 0
        assert status("node009", OWN) == 200


def test_no_host_replaces_what_another_reported(hosts: list[Host], centre: tuple[int, Stores]) -> None:
    """Both send a diagnosis of one id, the second as if it were another fault."""
    kb = centre[1]
    with httpx.Client(trust_env=False) as http:
        for host, changes in zip(hosts, ({}, {"path": "/data/other.bin", "comm": "\x1b[2Jtrain"}), strict=True):
            report = json.loads(host.request(host.diagnosed(**changes).id).body)
            report["ticket"]["diagnosis"]["id"] = "d1"
            name = host.settings.sinks["centre"].host  # type: ignore[union-attr]
            answer = http.post(
                f"http://127.0.0.1:{centre[0]}/reports/{name}",
                json=report,
                headers={"Authorization": f"Bearer {SHARED}"},
            )
            assert answer.status_code == 200
    found: list[Diagnosis] = [one.diagnosed() for one in kb.tickets.list()]
    assert sorted(one.id for one in found) == ["node001-d1", "node002-d1"]
    assert not any("\x1b" in one.model_dump_json() or "\\u001b" in one.model_dump_json() for one in found)
