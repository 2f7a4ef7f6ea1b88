#!/usr/bin/env python3
"""Follow an alert from Alertmanager to a tracker: its process is diagnosed, and the server is killed meanwhile.

Starts a training program that stalls, a tracker with GitLab's API, a DingTalk-like chat, and ``whystall serve`` with
settings for them.  Posts an alert as Alertmanager does; during the diagnosis the server is killed (SIGKILL) and
restarted.  The tracker then has one issue with the diagnosis and the chat has the verdict; a question in Chinese, why
training stalls, is answered.  When the alert is resolved, the issue is closed.

The diagnosis is compared with the program's own log.  Nothing leaves this machine.

Exit status: 0 when all of it is right, 1 when it is not, 2 when the demo could not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import demo
from _command import Parser, between
from chat_server import ChatServer
from demo import DemoError, Row, heading
from tracker import PROJECT, Tracker
from tracker_http import handler_of

PATIENCE_S = 120.0
QUESTION = "为什么训练卡顿 pid {pid}"
SETTINGS = """[server]
mcp = false

[alerts]
token = {{ env = "DEMO_ALERTS" }}
routes = "routes.yaml"

[triage]
duration = {duration:g}

[tickets]
sinks = ["tracker"]

[sinks.tracker]
kind = "gitlab"
url = "{tracker}"
project = "{project}"
token = {{ env = "DEMO_TRACKER" }}
settle = 1

"""
ROUTES = """route:
  receiver: training
  group_by: [alertname, pid]
  group_wait: 1s
  group_interval: 1s
receivers:
  - name: training
    triage: true
    lang: {lang}
    chat: [{{channel: dingtalk}}]
"""


@dataclass
class World:
    """The services around whystall, and the program."""

    tracker: Tracker
    chats: ChatServer
    pid: int
    started: str

    def alert(self, status: str) -> dict[str, Any]:
        """Return what Alertmanager posts (webhook version 4)."""
        labels = {"alertname": "TrainingStalled", "severity": "critical", "pid": str(self.pid)}
        return {
            "version": "4",
            "groupKey": '{}:{alertname="TrainingStalled"}',
            "truncatedAlerts": 0,
            "status": status,
            "receiver": "whystall",
            "groupLabels": {"alertname": "TrainingStalled"},
            "commonLabels": labels,
            "commonAnnotations": {},
            "externalURL": "http://alertmanager.example",
            "alerts": [
                {
                    "status": status,
                    "labels": labels,
                    "annotations": {"summary": "training stalls every few steps"},
                    "startsAt": self.started,
                    "endsAt": now() if status == "resolved" else "0001-01-01T00:00:00Z",
                    "generatorURL": "http://prometheus.example/graph",
                    "fingerprint": "b3f1c0de00000001",
                }
            ],
        }


class Server:
    """``whystall serve`` in `home`; it keeps its port when restarted."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.environment = environment
        self.log = home / "serve.log"
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = int(taken.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        argv = [sys.executable, "-m", "whystall.agent_server", "serve", "--transport", "http"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*argv, "--port", str(self.port)], env=self.environment, stderr=log)
        wait(self._ready, "whystall serve answers")

    def kill(self) -> None:
        """Send SIGKILL if the server runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def post(self, path: str, body: dict[str, Any], token: str) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)  # noqa: S310
        try:
            with direct().open(request, timeout=30) as answer:
                body_of: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise DemoError(f"POST {path}: {error.code} {error.read(200)!r}") from None
        return body_of

    def _ready(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            tail = self.log.read_text()[-500:]
            raise DemoError(f"whystall serve ended with status {self.process.returncode}: {tail}")
        try:
            with direct().open(f"{self.url}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def direct() -> urllib.request.OpenerDirector:
    """Return an opener that ignores proxies."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def now() -> str:
    """Return the time as RFC 3339."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def wait(true: Callable[[], object], what: str) -> None:
    """Wait for a condition; raise DemoError after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise DemoError(f"timeout: {what}")
        time.sleep(0.05)


def indented(text: str, lines: int = 40) -> str:
    """Return `text` as a quotation, at most its first `lines`."""
    kept = text.splitlines()
    more = [f"... ({len(kept) - lines} more lines)"] if len(kept) > lines else []
    return "\n".join(f"   | {line}" for line in [*kept[:lines], *more])


@contextlib.contextmanager
def tracker() -> Iterator[Tracker]:
    """Run a tracker."""
    made = Tracker(secrets.token_hex(16))
    server = ThreadingHTTPServer(("127.0.0.1", 0), quiet(made))
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def quiet(of: Tracker) -> type:
    """Return the tracker's handler without a line per request."""

    class Handler(handler_of(of)):  # type: ignore[misc]
        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def play(world: World, server: Server, options: Namespace) -> tuple[dict[str, Any], list[Row]]:
    """Run the scenario; return the ticket's diagnosis, and further rows of the comparison."""
    token = server.environment["DEMO_ALERTS"]
    heading("Alertmanager: TrainingStalled fires")
    print(indented(json.dumps(server.post("/alerts/alertmanager", world.alert("firing"), token))), flush=True)
    if not options.no_kill:
        wait(lambda: tickets(server), "a ticket")
        time.sleep(options.duration / 2)
        heading("during the diagnosis the server is killed (SIGKILL), and started again")
        server.kill()
        server.start()
        # Alertmanager repeats the alert, which has no effect.
        print(indented(json.dumps(server.post("/alerts/alertmanager", world.alert("firing"), token))), flush=True)
    wait(lambda: any(ticket["diagnosis"] for ticket in tickets(server)), "a diagnosis")
    ticket = tickets(server)[0]
    verdict = ticket["diagnosis"]["verdict"]
    wait(lambda: any(verdict in issue.description.lower() for issue in world.tracker.issues), "an issue with it")
    wait(lambda: len(world.chats.wait(0, 0, "dingtalk")) >= 2, "the verdict in the chat")
    heading("DingTalk: the alert, and its verdict")
    for message in world.chats.wait(0, 0, "dingtalk"):
        print(f"{indented(message.content)}\n", flush=True)
    issue = world.tracker.issues[0]
    heading(f"the tracker: issue {issue.iid}, {issue.state}")
    print(indented(f"{issue.title}\n\n{issue.description}", 36), flush=True)
    rows = [counted("tickets", len(tickets(server))), counted("issues", len(world.tracker.issues)), asked(world)]
    heading("Alertmanager: TrainingStalled is over")
    print(indented(json.dumps(server.post("/alerts/alertmanager", world.alert("resolved"), token))), flush=True)
    wait(lambda: issue.state == "closed", "the issue is closed")
    rows.append(Row("issue", "the alert is over", issue.state, True))
    return {**ticket["diagnosis"], "ticket": ticket["id"]}, rows


def asked(world: World) -> Row:
    """Ask in the chat, in Chinese."""
    question = QUESTION.format(pid=world.pid)
    before = len(world.chats.wait(0, 0, "dingtalk"))
    heading(f"DingTalk: {question}")
    status, _ = world.chats.say("dingtalk", question)
    answers = world.chats.wait(before + 2, PATIENCE_S, "dingtalk")[before:]
    for message in answers:
        print(f"{indented(message.content)}\n", flush=True)
    chinese = len(answers) >= 2 and any("\u4e00" <= letter <= "\u9fff" for letter in answers[-1].title)
    return Row("question in Chinese", question, answers[-1].title if answers else f"HTTP {status}", chinese)


def counted(name: str, many: int) -> Row:
    """Judge that there is exactly one."""
    return Row(name, "one alert, and a kill", str(many), many == 1)


def tickets(server: Server) -> list[dict[str, Any]]:
    """Return the tickets of `whystall tickets list`."""
    found: list[dict[str, Any]] = json.loads(demo.whystall("tickets", "list", "--json", environment=server.environment))
    return found


def secret_settings(home: Path, world: World, options: Namespace) -> dict[str, str]:
    """Write and print the settings of a server in `home`; return its environment with the secrets."""
    given = {"duration": options.duration, "tracker": world.tracker.url, "project": PROJECT}
    text = SETTINGS.format(**given) + world.chats.settings().partition("\n[chat.feishu]")[0]
    (home / "whystall.toml").write_text(text)
    (home / "routes.yaml").write_text(ROUTES.format(lang=options.lang))
    heading("whystall.toml")
    print(indented(text), flush=True)
    heading("routes.yaml")
    print(indented(ROUTES.format(lang=options.lang)), flush=True)
    ours = {"DEMO_ALERTS": secrets.token_hex(16), "DEMO_TRACKER": world.tracker.token}
    homes = {"WHYSTALL_HOME": str(home), "WHYSTALL_CONFIG": str(home / "whystall.toml")}
    return {**os.environ, **world.chats.environment(), **ours, **homes}


def run(options: Namespace) -> int:
    """Run the demo; return the exit status."""
    scenario = demo.SCENARIOS["checkpoint"]
    with tempfile.TemporaryDirectory(prefix="whystall-demo-") as directory, contextlib.ExitStack() as stack:
        home = Path(directory)
        log = home / "simulator.jsonl"
        found = stack.enter_context(tracker())
        chats = stack.enter_context(ChatServer())
        process = stack.enter_context(demo.simulator(scenario, log))
        world = World(found, chats, process.pid, now())
        server = Server(home, secret_settings(home, world, options))
        chats.whystall = server.url
        stack.callback(server.kill)
        server.start()
        began = time.monotonic_ns()
        try:
            diagnosis, rows = play(world, server, options)
        except DemoError as error:
            lines = server.log.read_text().splitlines() or ["nothing"]
            raise DemoError(f"{error}; the end of its log: {' / '.join(lines[-3:])}") from None
        span = demo.measured_span(diagnosis, began, time.monotonic_ns())
        heading("compared with the program's log")
        judged = scenario.judge(diagnosis, demo.between_times(demo.read_log(log), *span))
        return 0 if demo.show([*judged, *rows]) else 1


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    command = Parser(description=(__doc__ or "").split("\n\n")[0])
    command.add_argument("--duration", type=between(float, 5, 60), default=12.0, help="seconds (default: %(default)s)")
    command.add_argument("--lang", choices=("en", "zh"), default="en", help="of the alert's messages")
    command.add_argument("--no-kill", action="store_true", help="do not kill the server")
    return demo.guarded(run, command.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
