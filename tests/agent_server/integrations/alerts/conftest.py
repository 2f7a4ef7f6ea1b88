"""A knowledge base with alerts coming in, and a clock that stands still until it is told otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.integrations.alerts.groups import Flushed, Groups
from whystall.agent_server.integrations.alerts.intake import Intake, Receipt
from whystall.agent_server.integrations.alerts.routefile import from_text
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.ticket_models import Ticket
from whystall.knowledge_base.times import rfc3339

START = 1_800_000_000.0  # 2027-01-15T08:00:00Z
SIMPLE = "route: {receiver: r, group_by: [alertname]}\nreceivers: [{name: r}]\n"


def stamp(seconds: float) -> str:
    """RFC 3339."""
    from datetime import datetime, timezone

    return rfc3339(datetime.fromtimestamp(seconds, timezone.utc))


class House:
    """What takes alerts in and works on them, as a server would. `restart` is what a crash leaves: the file."""

    def __init__(self, path: Path, routes: str, **settings: Any) -> None:
        self.path = path
        self.settings = Settings(**settings)
        self.now = START
        self.open(routes)

    def open(self, routes: str) -> None:
        self.kb = Stores(self.path)
        self.use(routes)

    def use(self, routes: str) -> None:
        """Begin again with this routing tree."""
        self.text = routes
        tree = from_text(routes.encode())
        self.intake = Intake(self.kb, self.settings, tree)
        self.groups = Groups(self.kb, self.settings, tree)

    def restart(self, routes: str | None = None) -> None:
        self.kb.close()
        self.open(self.text if routes is None else routes)

    def post(self, *alerts: dict[str, Any], group: str = "{}:{}", form: str = "alertmanager", **more: Any) -> Receipt:
        body = {"version": "4", "groupKey": group, "status": "firing", "alerts": list(alerts), **more}
        return self.intake.receive(json.dumps(body).encode(), self.now, form)

    def later(self, seconds: float) -> list[Flushed]:
        """Let time pass, and look at each group when it is due; what was told of them."""
        end = self.now + seconds
        done: list[Flushed] = []
        for _ in range(1000):
            due = self.groups.next_due(self.now)
            if due is None or due > end:
                self.now = end
                return [f for f in done if f.what not in ("nothing", "gone")]
            self.now = max(self.now, due)
            done += self.groups.work(self.now)
        raise AssertionError("groups are due without end")

    def tickets(self) -> list[Ticket]:
        """All tickets, the oldest first."""
        return sorted(self.kb.tickets.list(limit=100_000), key=lambda t: int(t.id))


def alert(
    name: str = "DiskSlow", status: str = "firing", start: float = START, fingerprint: str | None = None, **labels: str
) -> dict[str, Any]:
    """An alert as Alertmanager sends it."""
    own = {"alertname": name, **labels}
    return {
        "status": status,
        "labels": own,
        "annotations": {"summary": f"{name} is bad"},
        "startsAt": stamp(start),
        "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else stamp(start + 60),
        "generatorURL": "http://prometheus/graph",
        "fingerprint": fingerprint if fingerprint is not None else "-".join(f"{k}.{v}" for k, v in sorted(own.items())),
    }


@pytest.fixture
def firing() -> Callable[..., dict[str, Any]]:
    """Makes alerts."""
    return alert


@pytest.fixture
def start() -> float:
    """When the clock stands still."""
    return START


@pytest.fixture
def open_house(tmp_path: Path) -> Iterator[Callable[..., House]]:
    """Opens houses, and closes them at the end."""
    houses: list[House] = []

    def make(routes: str = SIMPLE, **settings: Any) -> House:
        houses.append(House(tmp_path / f"k{len(houses)}.db", routes, **settings))
        return houses[-1]

    yield make
    for house in houses:
        house.kb.close()


@pytest.fixture
def house(open_house: Callable[..., House]) -> House:
    """One with a route that groups by name."""
    return open_house()
