"""Everything together for a long time, with faults: what is lost, what leaks, what fails.

    python -m benchmarks.soak [--minutes N] [--seed N] [--out FILE]

A centre (`whystall serve` with alerts, tickets, console, metrics and the watcher) and eight hosts of its fleet run on
loopback beside a training that stalls once a minute. Alerts arrive, pages are opened, tools and the fleet are called.
Every half minute something goes wrong: a server is killed, the disk of the centre fills, its database is locked, a
host stands still. Each alert that was accepted must be in the database afterwards. Needs root. ``--out`` replaces this
benchmark's section in a report.
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
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import Report, Row, publish

TITLE = "Soak: a centre, eight hosts, watcher, alerts and console together, with faults"
HOSTS, PORT, CENTRE = 8, 8391, "127.0.0.1"
TOKEN = "soak-token-0123456789abcdef"  # of servers on loopback that end with this program
FAULT_EVERY_S, PATIENCE_S = 30.0, 90.0
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
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    peak: Counter[str] = field(default_factory=Counter)
    first: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        config = self.home / "whystall.toml"
        config.write_text(self.settings)
        variables = {"WHYSTALL_HOME": str(self.home), "WHYSTALL_CONFIG": str(config), "SOAK_TOKEN": TOKEN}
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

    def get(self, path: str, body: bytes | None = None, token: str = TOKEN) -> int:
        """Return the status of a request; 0 if it got no answer."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}:{PORT}{path}", body, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=20) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

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

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()


class Soak:
    """The servers, what is done with them, and what happened."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        self._folder = folder
        self.centre = Server(CENTRE, folder / "centre", SETTINGS)
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

    def pages(self) -> None:
        """Open pages of the console, and the metrics."""
        while not self.stopped.wait(1):
            status = self.centre.get("/console")
            self.happened["page, no answer" if status == 0 else "page"] += 1
            status = self.centre.get("/metrics", token=TOKEN + "m")
            self.happened[f"metrics {status}"] += 1

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
        killing, standing = (self._kill_centre, self._kill_host), (self._full_disk, self._lock, self._stop_host)
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

    def run(self, minutes: float) -> None:
        """Run everything."""
        training = self._folder / "soak_training.py"
        training.write_text(TRAINING)
        job = subprocess.Popen([sys.executable, training, self._folder / "lock"], start_new_session=True)
        try:
            for server in (self.centre, *self.hosts):
                server.start()
            threads = [threading.Thread(target=one) for one in (self.alerts, self.pages, self.commands, self.faults)]
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


def rows_of(soak: Soak) -> list[Row]:
    """Return what was measured."""
    with closing(sqlite3.connect(soak.centre.home / "knowledge.db")) as file:
        sound = file.execute("PRAGMA integrity_check").fetchone()[0]
        stored = {name for (name,) in file.execute("SELECT json_extract(body, '$.labels.instance') FROM alerts")}
        tickets = file.execute("SELECT count(*) FROM tickets").fetchone()[0]
    lost = soak.accepted - stored
    logs = "".join(path.read_text("utf-8", "replace") for path in soak.centre.home.parent.glob("*.log"))
    happened = soak.happened
    grown = {server.address: server.peak["mib"] - server.first["mib"] for server in (soak.centre, *soak.hosts)}
    descriptors = {server.address: server.peak["fds"] - server.first["fds"] for server in (soak.centre, *soak.hosts)}
    counted = ", ".join(f"{what} {count}" for what, count in sorted(happened.items()))
    return [
        Row("faults", ", ".join(f"{what[7:]} {n}" for what, n in sorted(happened.items()) if what.startswith("fault"))),
        Row("alerts accepted, and lost", f"{len(soak.accepted)}, {len(lost)}", goal="0 lost", met=not lost),
        Row("tickets of the alerts and the watcher", str(tickets)),
        Row("integrity of the database", str(sound), goal="ok", met=sound == "ok"),
        Row("internal errors of commands", str(happened["internal errors of commands"]), goal="0"),
        Row("tracebacks in the logs of servers", str(logs.count("Traceback")), goal="0", met="Traceback" not in logs),
        Row("memory of the centre, MiB: at a start, most", f"{soak.centre.first['mib']}, {soak.centre.peak['mib']}"),
        Row("growth of hosts since a start, MiB, at most", str(max(grown.values()))),
        Row("growth of descriptors since a start, at most", str(max(descriptors.values()))),
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
        report = Report(f"{TITLE}, {options.minutes:g} minutes", rows_of(soak))
    publish(report, options.out)


if __name__ == "__main__":
    main()
