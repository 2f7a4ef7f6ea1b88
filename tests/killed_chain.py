"""An alert's way to a tracker, with a real server that is killed at chosen steps: what tests of the chain share.

A case has a directory of its own: knowledge base, settings, a tracker (examples/tracker.py) that counts requests, and
servers (`chain_child`) one after the other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import chain_child
import httpx
from chat_server import ChatServer
from tracker import PROJECT, Tracker
from tracker_http import handler_of

TOKEN, GITLAB = "token-of-alerts-0123456789", "glpat-0123456789"
PATIENCE_S = 120.0
# One client: reading the certificates anew for each request takes 50 ms of processor time.
_HTTP = httpx.Client(timeout=10, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
_SETTINGS = """
[server]
mcp = false
[alerts]
token = {{ file = "{home}/alerts" }}
routes = "{home}/routes.yaml"
[triage]
duration = {duration}
engine = "{engine}"
[tickets]
sinks = ["tracker"]
[sinks.tracker]
kind = "gitlab"
url = "{tracker}"
project = "{project}"
token = {{ file = "{home}/gitlab" }}
settle = 0.2
"""
_ROUTES = """
route: {receiver: training, group_by: [alertname, pid], group_wait: 0s, group_interval: 100ms, repeat_interval: 1h}
receivers:
  - {name: training, triage: true, chat: [{channel: feishu}]}
"""


class Servers:
    """The tracker of a case, which kills the server that speaks to it after its `deadly`-th request was done."""

    def __init__(self) -> None:
        self.tracker = Tracker(GITLAB)
        self.requests = 0
        self.deadly = 0
        self.victim: Callable[[], int | None] = lambda: None

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """What takes requests."""
        servers = self

        class Handler(handler_of(servers.tracker)):  # type: ignore[misc]
            def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
                servers.requests += 1
                if servers.requests == servers.deadly and (pid := servers.victim()) is not None:
                    os.kill(pid, signal.SIGKILL)  # it was done, and nobody hears of it
                try:
                    super()._send(status, headers, body)
                except OSError:  # who asked is gone
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


class Case:
    """One knowledge base, its servers and its tracker."""

    def __init__(
        self, home: Path, seed: Path, engine: str, duration: float, servers: Servers, url: str, chats: ChatServer
    ) -> None:
        self.home = home
        self.servers = servers
        self.chats = chats
        self.process: BaseProcess | None = None
        self.kills = 0
        home.mkdir()
        shutil.copy(seed, home / "knowledge.db")
        for name, value in (("alerts", TOKEN), ("gitlab", GITLAB)):
            (home / name).write_text(value)
            (home / name).chmod(0o600)
        (home / "routes.yaml").write_text(_ROUTES)
        given = {"home": home, "engine": engine, "duration": duration, "tracker": url, "project": PROJECT}
        (home / "whystall.toml").write_text(_SETTINGS.format(**given) + chats.settings())
        ours = {"WHYSTALL_HOME": str(home), "WHYSTALL_CONFIG": str(home / "whystall.toml")}
        self.env = {**os.environ, **chats.environment(), **ours}
        self.port = _free_port()
        chats.whystall = f"http://127.0.0.1:{self.port}"
        servers.victim = lambda: self.process.pid if self.process is not None else None

    # --- servers ----------------------------------------------------------------------------------------------------

    def start(self, at: int = 0, after: bool = False) -> None:
        """A server; see `chain_child.start`."""
        words = ["--transport", "http", "--port", str(self.port)]
        self.process = chain_child.start(words, self.env, self.home / "errors", at, after, self.home / "commits")

    def second(self) -> None:
        """One more server of the same knowledge base, at a port of its own, which is spoken to from now on."""
        self.port = _free_port()
        self.chats.whystall = f"http://127.0.0.1:{self.port}"
        self.start()

    def restarted(self) -> None:
        """What a supervisor does: a server that was killed is started again, and is not killed any more."""
        assert self.process is not None
        if not self.process.is_alive():
            assert self.process.exitcode == -signal.SIGKILL, (self.process.exitcode, self.errors())
            self.kills += 1
            self.start()

    def stop(self) -> None:
        """End the server in order, once it has started: it may have been killed with the last word of the story."""
        assert self.process is not None
        self.process.join(0.1)
        self.until(self.answers, "it answers")
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == 128 + signal.SIGTERM, (self.process.exitcode, self.errors())

    def answers(self) -> bool:
        """Whether the server is there."""
        try:
            return _HTTP.get(f"http://127.0.0.1:{self.port}/healthz").status_code == 200
        except httpx.HTTPError:
            return False

    def errors(self) -> str:
        """What the servers said."""
        return (self.home / "errors").read_text()

    # --- the world outside ------------------------------------------------------------------------------------------

    def post(self, pid: int, status: str, starts: str) -> None:
        """What Alertmanager does: an alert, sent again until it is taken."""
        labels = {"alertname": "TrainingStalled", "severity": "critical", "pid": str(pid)}
        alert = {
            "status": status,
            "labels": labels,
            "annotations": {"summary": "training makes no progress"},
            "startsAt": starts,
            "endsAt": starts if status == "resolved" else "0001-01-01T00:00:00Z",
            "generatorURL": "http://prometheus/graph",
            "fingerprint": "0123456789abcdef",
        }
        body = {
            "version": "4",
            "groupKey": '{}:{alertname="TrainingStalled"}',
            "truncatedAlerts": 0,
            "status": status,
            "receiver": "whystall",
            "groupLabels": {"alertname": "TrainingStalled"},
            "commonLabels": labels,
            "commonAnnotations": {},
            "externalURL": "http://alertmanager",
            "alerts": [alert],
        }
        url = f"http://127.0.0.1:{self.port}/alerts/alertmanager"
        headers = {"Authorization": f"Bearer {TOKEN}"}

        def taken() -> bool:
            try:
                answer = _HTTP.post(url, json=body, headers=headers)
            except httpx.HTTPError:
                return False
            assert answer.status_code in (200, 503), answer.text
            return answer.status_code == 200

        self.until(taken, f"the alert is taken ({status})")

    def until(self, true: Callable[[], object], what: str) -> None:
        """Wait for it, starting killed servers again."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"never: {what}\n{self.state()}"
            self.restarted()
            time.sleep(0.05)

    def issues(self) -> list[Any]:
        """Those of the tracker."""
        return list(self.servers.tracker.issues)

    def state(self) -> str:
        """What there is, for whoever reads a failure."""
        rows = self.rows("SELECT kind, key, state, attempts, result FROM tasks")
        told = self.rows("SELECT sink, wanted, told, remote, underway, attempts, due, parked, error FROM deliveries")
        return f"{self.errors()}\n{rows}\n{told}\n{[(i.title, i.state) for i in self.issues()]}"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What the knowledge base says. Whoever reads after a kill first undoes what was half written: it may write."""
        with closing(sqlite3.connect(f"{(self.home / 'knowledge.db').as_uri()}?mode=rw", uri=True, timeout=30)) as db:
            return db.execute(sql).fetchall()

    def ticket(self) -> dict[str, Any]:
        """The one ticket."""
        bodies = self.rows("SELECT body FROM tickets")
        assert len(bodies) == 1, self.state()
        ticket: dict[str, Any] = json.loads(bodies[0][0])
        return ticket

    # --- the story --------------------------------------------------------------------------------------------------

    def whole_story(self, pid: int, starts: str) -> None:
        """The alert fires, its process is diagnosed, the tracker has it, the alert is over, the tracker knows."""
        self.post(pid, "firing", starts)
        self.until(lambda: self._told("SELECT count(*) FROM tickets WHERE verdict != ''"), "diagnosed")
        self.until(lambda: self._in_step() and self.issues(), "the tracker has the diagnosis")
        self.post(pid, "resolved", starts)
        self.until(lambda: self._told("SELECT count(*) FROM tickets WHERE state = 'resolved'"), "resolved")
        self.until(lambda: self._in_step() and self.issues()[0].state == "closed", "the tracker knows")
        self.until(lambda: self.done("tell") and not self.unsaid(), "the chat was told")

    def asked(self, pid: int) -> None:
        """Somebody asks in DingTalk, in Chinese, until it is taken; and hears the verdict."""
        question = f"为什么训练卡顿 pid {pid}"
        self.until(lambda: self.chats.say("dingtalk", question, id="m1")[0] == 200, "the question is taken")
        self.until(lambda: self.done("look"), "looked at")
        self.until(lambda: self.done("chat") and not self.unsaid(), "answered")

    def is_right(self) -> None:
        """Exactly one of everything, and whole."""
        issues = self.issues()
        assert len(issues) == 1, self.state()
        assert issues[0].state == "closed"
        ticket = self.ticket()
        assert (ticket["state"], ticket["occurrences"]) == ("resolved", 1), self.state()
        assert ticket["diagnosis"] is not None
        verdict = re.escape(ticket["diagnosis"]["verdict"])
        assert re.search(verdict, issues[0].description, re.I), issues[0].description
        assert [r["ref"] for r in ticket["remotes"]] == [str(issues[0].iid)]
        assert self.rows("SELECT count(*) FROM diagnoses") == [(1,)], "a diagnosis was stored and not attached"
        tasks = self.rows("SELECT kind, state, count(*) FROM tasks GROUP BY 1, 2 ORDER BY 1")
        assert tasks == [("tell", "done", 1), ("triage", "done", 1)]
        # Feishu takes an id, and shows once what it is sent twice.
        assert len(self.said("feishu")) == 3, self.said("feishu")  # it fires, the verdict, it is over
        assert self.rows("PRAGMA integrity_check") == [("ok",)]

    def done(self, kind: str) -> bool:
        """Whether there were tasks of that kind, and all are done."""
        many, done = self.rows(f"SELECT count(*), sum(state = 'done') FROM tasks WHERE kind = '{kind}'")[0]
        return bool(many) and many == done

    def unsaid(self) -> int:
        """How many messages wait."""
        return int(self.rows("SELECT count(*) FROM messages WHERE state IN ('queued', 'sending')")[0][0])

    def said(self, vendor: str) -> list[str]:
        """What was said in a chat: the titles."""
        return [one.title for one in self.chats.messages if one.by == "us" and one.vendor == vendor]

    def _told(self, sql: str) -> bool:
        return bool(self.rows(sql)[0][0])

    def _in_step(self) -> bool:
        """Whether the tracker was told the latest revision."""
        sql = "SELECT count(*), sum(d.told = t.revision) FROM deliveries d JOIN tickets t ON t.id = d.ticket"
        many, told = self.rows(sql)[0]
        return bool(many) and many == told


@contextmanager
def case(home: Path, seed: Path, engine: str = "procfs", duration: float = 1.0) -> Iterator[Case]:
    """A case in the new directory `home`; `seed`: a knowledge base to begin with."""
    servers = Servers()
    listener = _Quiet(("127.0.0.1", 0), servers.handler())
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
    thread.start()
    made: Case | None = None
    try:
        with ChatServer() as chats:
            made = Case(home, seed, engine, duration, servers, f"http://127.0.0.1:{listener.server_port}", chats)
            yield made
    finally:
        if made is not None and made.process is not None and made.process.is_alive():
            made.process.kill()
            made.process.join()
        listener.shutdown()
        listener.server_close()
        thread.join()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked was killed: that is what is tried here."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
