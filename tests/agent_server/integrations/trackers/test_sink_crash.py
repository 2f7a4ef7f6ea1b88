"""Killed at every commit and around every request, and begun anew by another process: one issue, each comment once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from sink_scenes import KINDS, TRACKERS, Kind, Scene, opened, scene

from whystall.agent_server.integrations.trackers.delivery_worker import DeliveryWorker
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.outbound.request import Request, Response

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
_MANY = 60


class Killed(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


class _Doomed(Client):
    """Dies before it sends, or once it has the answer."""

    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__()
        self._step = step

    async def send(
        self,
        request: Request,
        allowed: Collection[int] = (),
        timeout: float | None = None,
        limit: int | None = None,
    ) -> Response:
        self._step()
        response = await super().send(request, allowed, timeout, limit)
        self._step()
        return response


async def _until_killed(s: Scene, at: int) -> bool:
    """Deliver until step `at`; whether it came to that. Nothing is left then but the file."""
    left = at
    dead = False

    def step() -> None:
        nonlocal left, dead
        left -= 1
        if left == 0 or dead:  # who is dead does nothing more, also while its errors are handled
            dead = True
            raise Killed

    with opened(s.kb.path) as kb, kb.after_commit(step):
        try:
            async with _Doomed(step) as client:
                await DeliveryWorker(kb, s.settings, client, lambda: s.now).due(s.sink)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_at_every_step(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        for at in range(1, _MANY):
            s.file(f"{at} trouble", labels={"alertname": f"a{at}"})
            killed = await _until_killed(s, at)
            s.kb.deliveries.release()
            await s.settle()
            s.ticket_service.resolve(s.ticket, f"restarted {at}", "ann")
            changed = await _until_killed(s, at)
            s.kb.deliveries.release()
            await s.settle()
            if kind != "webhook":
                assert len(s.issues) == at
            else:
                assert len([n for n in s.issues if n["type"] == "ticket.opened" and n["ticket"]["id"] == s.ticket]) == 1
            assert not s.delivery().pending
            assert len(s.kb.tickets.get(s.ticket).remotes) == 1
            comments = str(getattr(s.vendor, "comments", "")) + str([getattr(i, "notes", "") for i in s.issues])
            assert comments.count(f"restarted {at}`") == (kind in TRACKERS)
            if not killed and not changed:
                assert at > 5
                return
        pytest.fail("it has more steps than were tried")
