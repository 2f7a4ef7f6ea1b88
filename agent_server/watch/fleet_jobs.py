"""The jobs of the fleet's hosts and what they wait for now, asked in the background: no caller waits for a host."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
from pydantic import ValidationError

from whystall.agent_server.fleet.answers import Answer, Target, line
from whystall.agent_server.fleet.fan_out import Limits, fan_out
from whystall.agent_server.fleet.inventory import Host, Inventory, same_host
from whystall.agent_server.watch.overview import RESOURCE, Watch, Watched
from whystall.knowledge_base.times import now as instant

if TYPE_CHECKING:
    from whystall.agent_server.settings.sections.fleet import FleetSettings
    from whystall.agent_server.watch.history import HistoryParams

FRESH_S, OLD_S = 5.0, 60.0
"""Hosts are not asked again before `FRESH_S`; what is older than `OLD_S` is no answer any more."""
_HOST_S, _ALL_S = 5.0, 60.0
_AT_ONCE = 32  # a call takes some 20 ms of our CPU time: with more at once, a host would wait for us and count as slow
_THREADS, _HISTORIES = 8, 200
_HOSTS = "hosts"
_log = logging.getLogger("whystall.fleet")


@dataclass(frozen=True)
class HostState:
    """What is known of a host. `status`: of its last answer, as in `fleet.answers`; ``too_old``: its version cannot
    answer this; ``asking``: no answer yet. `seen`: when it last answered, RFC 3339, empty if it has not since this
    server started; `watch`: what it stated then; `at`: when `status` was found, monotonic seconds.
    """

    name: str
    status: str = "asking"
    detail: str = ""
    seen: str = ""
    watch: Watch | None = None
    at: float = 0.0

    @property
    def answers(self) -> bool:
        return self.status == "answered"

    @property
    def jobs(self) -> Sequence[Watched]:
        """Return its jobs, those with stalled processes first; those that it had if it does not answer any more."""
        found = [*self.watch.jobs, *self.watch.unwatched] if self.watch else []
        return sorted(found, key=lambda job: -job.stalled)

    @property
    def stalled(self) -> bool:
        return self.answers and any(job.stalled for job in self.jobs)

    def job(self, id: str) -> Watched | None:
        return next((job for job in self.jobs if job.id == id), None)


class FleetJobs:
    """The states of the hosts that `settings` name. All methods return at once and may be called by any thread."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._states: dict[str, HostState] = {}
        self._asked = float("-inf")
        self._histories: dict[str, tuple[float, Answer]] = {}

    def hosts(self) -> list[HostState]:
        """Return the state of each host; they are asked again if that was `FRESH_S` ago.

        Raises `ToolError`: a wrong hostlist, or file of hosts.
        """
        inventory = Inventory(self._settings)
        hosts = [inventory.host(name) for name in inventory.names]
        now = time.monotonic()
        if hosts and now - self._asked > FRESH_S:
            self._in_background(_HOSTS, lambda: self._ask(hosts))
        states = (self._states.get(host.name) or HostState(host.name) for host in hosts)
        return [one if now - one.at <= OLD_S else replace(one, status="asking", detail="") for one in states]

    @property
    def asking(self) -> bool:
        """Return whether hosts are being asked."""
        return _HOSTS in self._running

    def history(self, host: str, params: HistoryParams) -> Answer | None:
        """Return what the tool ``history`` answered on `host`, one of `hosts`; None while it is asked."""
        given = params.model_dump(mode="json", exclude_defaults=True)
        key = f"{host} {sorted(given.items())}"
        at, answer = self._histories.get(key, (float("-inf"), None))
        if answer is not None and time.monotonic() - at <= OLD_S:
            return answer

        async def ask() -> None:
            target = Target(Inventory(self._settings).host(host))
            (found,) = await fan_out([target], "history", given, self._limits())
            with self._lock:
                self._histories.pop(key, None)
                self._histories[key] = time.monotonic(), found
                while len(self._histories) > _HISTORIES:
                    del self._histories[next(iter(self._histories))]

        self._in_background(key, ask)
        return None

    def _limits(self) -> Limits:
        own = self._settings
        at_once = min(own.at_once, _AT_ONCE)
        return Limits(min(own.host_deadline, _HOST_S), min(own.deadline, _ALL_S), at_once, own.reply_limit)

    def _in_background(self, key: str, ask: Callable[[], Awaitable[None]]) -> None:
        """Call `ask` in a thread, unless one with this `key` runs, or too many for histories do."""
        with self._lock:
            if key in self._running or (key != _HOSTS and len(self._running) >= _THREADS):
                return
            self._running.add(key)

        def run() -> None:
            try:
                anyio.run(ask)
            except Exception:
                _log.exception("asking the fleet failed unexpectedly")
            finally:
                with self._lock:
                    self._running.discard(key)

        threading.Thread(target=run, name="whystall-fleet", daemon=True).start()

    async def _ask(self, hosts: Sequence[Host]) -> None:
        demanded = {host.name: host.identity for host in hosts}
        noted: set[str] = set()

        def note(answer: Answer) -> None:
            noted.add(answer.host)
            self._states[answer.host] = _state(answer, self._states.get(answer.host), demanded[answer.host])

        unknown = HostState("")
        oldest = sorted(hosts, key=lambda host: self._states.get(host.name, unknown).at)
        targets = [Target(host) for host in oldest]
        try:
            answers = await fan_out(targets, "", {}, self._limits(), resource=lambda _: RESOURCE, arrived=note)
        finally:
            self._asked = time.monotonic()
        for answer in answers:
            if answer.host not in noted and answer.status != "not_asked":  # its turn comes first in the next round
                note(answer)


def _state(answer: Answer, before: HostState | None, identity: bool) -> HostState:
    """Return the state of a host after `answer`. `identity`: it must state its name."""
    status, detail = str(answer.status), answer.detail
    if status == "answered":
        try:
            stated = Watch.model_validate(answer.reply)
        except ValidationError as error:
            status, detail = "invalid", line(str(error.errors()[0]["msg"]))
        else:
            if not identity or same_host(stated.host, answer.host):
                return HostState(answer.host, status, "", instant(), stated, time.monotonic())
            status, detail = "wrong_host", line(f"it calls itself {stated.host}")
    elif status == "refused" and detail.startswith("not_found:"):
        status, detail = "too_old", ""
    known = before or HostState(answer.host)
    return replace(known, status=status, detail=detail, at=time.monotonic())
