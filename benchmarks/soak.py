"""Everything together for a long time, with faults: what is lost, what leaks, what fails.

    python -m benchmarks.soak [--minutes N] [--seed N] [--out FILE]

A centre (`whystall serve` with alerts, tickets, chat, console, metrics and the watcher) and eight hosts of its fleet
run on loopback beside a training that stalls once a minute. Alerts and questions in a chat arrive, pages are opened,
tools and the fleet are called. Every half minute something goes wrong: a server is killed, the disk of the centre
fills, its database is locked, a host stands still, the centre's clock jumps by an hour (``src/clock_jump.c``). Each
alert that was accepted must be in the database afterwards. Needs root and cc. ``--out`` replaces this benchmark's
section in a report.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from benchmarks.common import Report, Row, compiled, publish
from whystall.agent_server.outbound import standard_webhooks

TITLE = "Soak: a centre, eight hosts, watcher, alerts and console together, with faults"
HOSTS, PORT, CHAT_PORT, CENTRE = 8, 8391, 8392, "127.0.0.1"
TOKEN = "soak-token-0123456789abcdef"  # of servers on loopback that end with this program
FAULT_EVERY_S, PATIENCE_S = 30.0, 90.0
JUMP_S, JUMPED_S = 3600, 8.0
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
SETTINGS = f"""[access.tokens.soak]
token = {{env = "SOAK_TOKEN"}}
scopes = ["admin"]

[alerts]
token = {{env = "SOAK_TOKEN"}}

[metrics]
token = {{env = "SOAK_METRICS"}}

[watch]
on = true
names = ["soak_training.py"]
learn_s = 30

[chat.soak]
kind = "webhook"
secret = {{env = "SOAK_TOKEN"}}
url = "http://127.0.0.1:{CHAT_PORT}/"

[fleet]
hosts = "127.0.0.[2-{HOSTS + 1}]"
url = "http://{{host}}:{PORT}/mcp"
token = {{env = "SOAK_TOKEN"}}
plain_http = true
"""
TRAINING = """import fcntl, os, sys, threading, time, zlib
lock = sys.argv[1]
def hold():
    while True:
        time.sleep(60)
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(3)
if os.fork() == 0:
    hold()
while True:
    time.sleep(0.08)
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        zlib.crc32(bytes(65536))
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
"""


@dataclass
class Server:
    """``whystall serve`` on an address of loopback."""

    address: str
    home: Path
    settings: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    peak: Counter[str] = field(default_factory=Counter)
    grown: Counter[str] = field(default_factory=Counter)
    """At most, since the start of the same process."""
    first: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        config = self.home / "whystall.toml"
        config.write_text(self.settings)
        variables = {"WHYSTALL_HOME": str(self.home), "WHYSTALL_CONFIG": str(config), "SOAK_TOKEN": TOKEN}
        variables |= self.variables
        command = [WHYSTALL, "serve", "--transport", "http", "--host", self.address, "--port", str(PORT)]
        with (self.home.parent / f"{self.address}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **variables, "WHYSTALL_TOKEN": TOKEN + "x", "SOAK_METRICS": TOKEN + "m"},
                stderr=log,
            )
        self.starts += 1
        self.first = Counter()
        deadline = time.monotonic() + PATIENCE_S
        while self.get("/healthz") != 200:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.address} does not answer; see its log in {self.home.parent}")
            time.sleep(0.3)

    def get(
        self, path: str, body: bytes | None = None, token: str = TOKEN, headers: dict[str, str] | None = None
    ) -> int:
        """Return the status of a request; 0 if it got no answer."""
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} if headers is None else headers
        request = urllib.request.Request(f"http://{self.address}:{PORT}{path}", body, sent)
        return asked(urllib.request.build_opener(urllib.request.ProxyHandler({})), request)[0]

    def measure(self) -> None:
        """Note memory and descriptors since the last start."""
        if self.process is None or self.process.poll() is not None:
            return
        with suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            descriptors = len(os.listdir(f"/proc/{self.process.pid}/fd"))
            now = Counter(mib=pages * os.sysconf("SC_PAGE_SIZE") >> 20, fds=descriptors)
            self.first = self.first or now
            self.peak |= now
            self.grown |= now - self.first

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()


def asked(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> tuple[int, str]:
    """Return status and address of the page that answers a request, after redirections; status 0 without an answer."""
    try:
        with opener.open(request, timeout=20) as answer:
            answer.read()
            return int(answer.status), answer.url
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


class Answers(BaseHTTPRequestHandler):
    """What the chat's side receives."""

    received: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append(body["text"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Write nothing."""


class Soak:
    """The servers, what is done with them, and what happened."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        self._folder = folder
        self._clock = folder / "clock"
        self._clock.write_bytes(bytes(8))
        library = compiled("clock_jump.c", folder, "-O2", "-shared", "-fPIC")
        jumping = {"LD_PRELOAD": str(library), "CLOCK_JUMP": str(self._clock)}
        self.centre = Server(CENTRE, folder / "centre", SETTINGS, jumping)
        self.hosts = [Server(f"127.0.0.{n}", folder / f"host{n}") for n in range(2, HOSTS + 2)]
        self.happened: Counter[str] = Counter()
        self.accepted: set[str] = set()
        self.stopped = threading.Event()

    def alerts(self) -> None:
        """Send an alert each 2 s."""
        for number in range(1 << 30):
            if self.stopped.wait(2):
                return
            name = f"soak-{number}"
            labels = {"alertname": "TrainingSlow", "instance": name, "severity": "warning"}
            alert = {"status": "firing", "labels": labels, "annotations": {"summary": name}, "fingerprint": name}
            alert |= {"startsAt": "2026-01-01T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z"}
            body = {"version": "4", "groupKey": "{}", "status": "firing", "truncatedAlerts": 0, "alerts": [alert]}
            status = self.centre.get("/alerts/alertmanager", json.dumps(body).encode())
            self.happened[f"alert {status}"] += 1
            if status == 200:
                self.accepted.add(name)

    def questions(self) -> None:
        """Ask in the chat each 3 s."""
        texts = ("who is on call", "what is broken", "谁值班", "ticket 1", "how do I fix xid 79")
        for number in range(1 << 30):
            if self.stopped.wait(3):
                return
            text = texts[number % len(texts)]
            body = json.dumps({"conversation": "room", "sender": "alice", "text": text, "direct": True}).encode()
            headers = standard_webhooks.signature_headers(TOKEN, f"msg_{number}", str(int(time.time())), body)
            headers |= {"Content-Type": "application/json"}
            self.happened[f"question {self.centre.get('/chat/soak', body, headers=headers)}"] += 1

    def pages(self) -> None:
        """Open pages of the console with a session, and the metrics."""
        site = f"http://{CENTRE}:{PORT}/console"
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        )
        pages = ("", "/diagnoses", "/tickets", "/alerts")
        for number in range(1 << 30):
            if self.stopped.wait(1):
                return
            status, url = asked(opener, urllib.request.Request(site + pages[number % len(pages)]))
            if "/login" in url:  # the session ended with the server
                form = urllib.parse.urlencode({"token": TOKEN}).encode()
                headers = {"Origin": f"http://{CENTRE}:{PORT}"}
                self.happened[f"login {asked(opener, urllib.request.Request(f'{site}/login', form, headers))[0]}"] += 1
            else:
                self.happened[f"page {status}"] += 1
            self.happened[f"metrics {self.centre.get('/metrics', token=TOKEN + 'm')}"] += 1

    def commands(self) -> None:
        """Run commands on the state of the centre."""
        config = {"WHYSTALL_HOME": str(self.centre.home), "WHYSTALL_CONFIG": str(self.centre.home / "whystall.toml")}
        variables = {**os.environ, **config, "SOAK_TOKEN": TOKEN, "SOAK_METRICS": TOKEN + "m"}
        while not self.stopped.wait(5):
            for text in ("tickets list", "fleet hosts", "fleet run host_snapshot --json", "doctor"):
                words = text.split()
                done = subprocess.run([WHYSTALL, *words], env=variables, capture_output=True, text=True)
                self.happened[f"{text}: {done.returncode}"] += 1
                if "Traceback" in done.stderr or "error: internal" in done.stderr:
                    self.happened["internal errors of commands"] += 1

    def faults(self) -> None:
        """Let something go wrong each half minute."""
        killing = (self._kill_centre, self._kill_host)
        standing = (self._full_disk, self._lock, self._stop_host, self._clock_jump)
        ways: list[Callable[[], None]] = [*killing, *standing]
        while not self.stopped.wait(FAULT_EVERY_S):
            way = self._dice.choice(ways)
            self.happened[f"fault: {way.__name__.strip('_').replace('_', ' ')}"] += 1
            way()

    def _kill_centre(self) -> None:
        self.centre.kill()
        self.centre.start()

    def _kill_host(self) -> None:
        host = self._dice.choice(self.hosts)
        host.kill()
        host.start()

    def _full_disk(self) -> None:
        filler = self.centre.home / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        self.stopped.wait(8)
        filler.unlink(missing_ok=True)

    def _lock(self) -> None:
        with closing(sqlite3.connect(self.centre.home / "knowledge.db", timeout=20)) as file, suppress(sqlite3.Error):
            file.execute("BEGIN EXCLUSIVE")
            self.stopped.wait(8)
            file.execute("ROLLBACK")

    def _stop_host(self) -> None:
        host = self._dice.choice(self.hosts)
        if host.process is not None:
            host.process.send_signal(signal.SIGSTOP)
            self.stopped.wait(8)
            host.process.send_signal(signal.SIGCONT)

    def _clock_jump(self) -> None:
        self._shift_clock(self._dice.choice((-1, 1)) * JUMP_S)
        self.stopped.wait(JUMPED_S)
        self._shift_clock(0)

    def _shift_clock(self, seconds: int) -> None:
        with self._clock.open("r+b") as file:  # the file is mapped
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def run(self, minutes: float) -> None:
        """Run everything."""
        training = self._folder / "soak_training.py"
        training.write_text(TRAINING)
        chat = ThreadingHTTPServer((CENTRE, CHAT_PORT), Answers)
        threading.Thread(target=chat.serve_forever, daemon=True).start()
        job = subprocess.Popen([sys.executable, training, self._folder / "lock"], start_new_session=True)
        try:
            for server in (self.centre, *self.hosts):
                server.start()
            ways = (self.alerts, self.questions, self.pages, self.commands, self.faults)
            threads = [threading.Thread(target=one) for one in ways]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end:
                time.sleep(5)
                for server in (self.centre, *self.hosts):
                    server.measure()
            self.stopped.set()
            for thread in threads:
                thread.join()
            time.sleep(10)
        finally:
            self.stopped.set()
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            for server in (self.centre, *self.hosts):
                server.kill(signal.SIGTERM)
            chat.shutdown()


def rows_of(soak: Soak) -> list[Row]:
    """Return what was measured."""
    with closing(sqlite3.connect(soak.centre.home / "knowledge.db")) as file:
        sound = file.execute("PRAGMA integrity_check").fetchone()[0]
        stored = {name for (name,) in file.execute("SELECT json_extract(body, '$.labels.instance') FROM alerts")}
        tickets = file.execute("SELECT count(*) FROM tickets").fetchone()[0]
    lost = soak.accepted - stored
    logs = "".join(path.read_text("utf-8", "replace") for path in soak.centre.home.parent.glob("*.log"))
    happened = soak.happened
    errors = [what for what in happened if what.startswith("page 5")]
    counted = ", ".join(f"{what} {count}" for what, count in sorted(happened.items()))
    return [
        Row("faults", ", ".join(f"{what[7:]} {n}" for what, n in sorted(happened.items()) if what.startswith("fault"))),
        Row("alerts accepted, and lost", f"{len(soak.accepted)}, {len(lost)}", goal="0 lost", met=not lost),
        Row("tickets of the alerts and the watcher", str(tickets)),
        Row("integrity of the database", str(sound), goal="ok", met=sound == "ok"),
        Row(
            "internal errors of commands",
            str(internal := happened["internal errors of commands"]),
            goal="0",
            met=not internal,
        ),
        Row("tracebacks in the logs of servers", str(logs.count("Traceback")), goal="0", met="Traceback" not in logs),
        Row("questions of the chat accepted, messages sent", f"{happened['question 200']}, {len(Answers.received)}"),
        Row("pages that failed", str(failed := sum(happened[what] for what in errors)), goal="0", met=not failed),
        Row("memory of the centre, MiB: most, most growth", f"{soak.centre.peak['mib']}, {soak.centre.grown['mib']}"),
        Row("memory of hosts, MiB: most growth", str(max(one.grown["mib"] for one in soak.hosts))),
        Row("descriptors: most growth", str(max(one.grown["fds"] for one in (soak.centre, *soak.hosts)))),
        Row("all that happened", counted),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whystall-soak-")))
        centre = folder / "centre"
        for place in (centre, *(folder / f"host{n}" for n in range(2, HOSTS + 2))):
            place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "none", centre], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", centre])
        soak = Soak(folder, options.seed)
        soak.run(options.minutes)
        report = Report(TITLE, rows_of(soak))
        report.notes.append(f"{options.minutes:g} minutes, seed {options.seed}")
    publish(report, options.out)


if __name__ == "__main__":
    main()
