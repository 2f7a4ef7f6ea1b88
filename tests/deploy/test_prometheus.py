"""The metrics, rules and dashboard in a real Prometheus, whose alerts a real Alertmanager brings back as tickets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from watch_status import HOSTILE, status, write_status

from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.stall_tickets import file_stall, labels_of
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.knowledge_base.times import now
from whystall.tools.node.vantage import host_name

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/rules.yaml"
SCRAPE, ALERTS = "token-of-metrics-0123456789", "token-of-alerts-0123456789"
PATIENCE_S = 60.0
SETTINGS = """
[server]
mcp = false
[metrics]
token = { file = "scrape" }
[alerts]
token = { file = "alerts" }
routes = "routes.yaml"
"""
ROUTES = "route: {receiver: r, group_by: [alertname, job_name, cause], group_wait: 0s}\nreceivers: [{name: r}]\n"
CAUSE = "file_lock_held"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="no Prometheus here"),
]


def promtool(*words: str | Path, given: str = "") -> str:
    """What promtool prints; it must succeed."""
    done = subprocess.run(["promtool", *map(str, words)], input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_rules_and_they_pass_their_tests() -> None:
    assert "8 rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", RULES.with_name("rules_test.yaml"))
    tested = RULES.with_name("rules_test.yaml").read_text()
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert f"alertname: {rule['alert']}" in tested, f"{rule['alert']} has no test"


def eventually(what: Callable[[], Any]) -> Any:
    """The first true result of `what`."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TransportError):
            if found := what():
                return found
        time.sleep(0.2)
    raise AssertionError("it never came")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def running(*words: str | Path, log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file, subprocess.Popen([*map(str, words)], stdout=file, stderr=file, env=env) as process:
        try:
            yield process
        finally:
            process.terminate()


@dataclass
class Site:
    """A server of whystall, scraped by a Prometheus."""

    home: Path
    server: str
    prometheus: str

    def query(self, expr: str, **how: Any) -> list[dict[str, Any]]:
        path = "query_range" if how else "query"
        answer = httpx.get(f"{self.prometheus}/api/v1/{path}", params={"query": expr, **how}, timeout=30)
        assert answer.status_code == 200, (expr, answer.text)
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def scrape(self, token: str | None) -> httpx.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{self.server}/metrics", headers=headers, timeout=30)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Prometheus reads the rules and the scrape configuration that are shipped, with other addresses and intervals."""
    tmp_path = tmp_path_factory.mktemp("site")
    home = tmp_path / "home"
    write_status(home, status(HOSTILE, 2, written=time.time() + 600, stalls=[[HOSTILE, "3", CAUSE, 42.5]]))
    for name, text in (("whystall.toml", SETTINGS), ("scrape", SCRAPE), ("alerts", ALERTS), ("routes.yaml", ROUTES)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    with Stores(home / "knowledge.db") as kb, kb.transaction():
        found = Diagnosis(id="d1", created=now(), target="pid 7", verdict=Verdict.LIKELY, cause=CAUSE)
        kb.save_diagnosis(found)
        file_stall(kb, TicketService(kb), found, labels_of(f"{HOSTILE}0", host_name(), 3), time.time())
    env = {**os.environ, "WHYSTALL_HOME": str(home), "WHYSTALL_CONFIG": str(tmp_path / "whystall.toml")}
    words = [sys.executable, "-m", "whystall.agent_server", "serve", "--transport", "http", "--port", "0"]
    with contextlib.ExitStack() as stack:
        log = tmp_path / "serve.log"
        stack.enter_context(running(*words, log=log, env=env))
        server = str(eventually(lambda: re.search(r"metrics at (http://\S+)/metrics", log.read_text()))[1])

        alertmanager, prometheus = free_port(), free_port()
        config = yaml.safe_load((DEPLOY / "prometheus/alertmanager.yaml").read_text())
        config["route"]["group_wait"] = "0s"
        (hook,) = config["receivers"][0]["webhook_configs"]
        hook["url"] = hook["url"].replace("http://127.0.0.1:8377", server)
        hook["http_config"]["authorization"]["credentials_file"] = str(tmp_path / "alerts")
        (tmp_path / "alertmanager.yaml").write_text(yaml.safe_dump(config))
        if shutil.which("prometheus-alertmanager") is not None:
            stack.enter_context(
                running(
                    "prometheus-alertmanager",
                    f"--config.file={tmp_path / 'alertmanager.yaml'}",
                    f"--storage.path={tmp_path / 'alertmanager'}",
                    f"--web.listen-address=127.0.0.1:{alertmanager}",
                    "--cluster.listen-address=",
                    log=tmp_path / "alertmanager.log",
                )
            )

        config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
        config["global"]["scrape_timeout"] = "500ms"
        (scraped,) = config["scrape_configs"]
        scraped["authorization"]["credentials_file"] = str(tmp_path / "scrape")
        scraped["static_configs"] = [{"targets": [server.removeprefix("http://")]}]
        config["rule_files"] = [str(RULES)]
        config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        promtool("check", "config", tmp_path / "prometheus.yaml")
        stack.enter_context(
            running(
                "prometheus",
                f"--config.file={tmp_path / 'prometheus.yaml'}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{prometheus}",
                log=tmp_path / "prometheus.log",
            )
        )
        made = Site(home, server, f"http://127.0.0.1:{prometheus}")
        eventually(lambda: httpx.get(f"{made.prometheus}/-/ready").status_code == 200)
        yield made


def test_prometheus_scrapes_what_promtool_accepts(site: Site) -> None:
    for token in (None, "wrong", ALERTS):
        refused = site.scrape(token)
        assert refused.status_code == 401
        assert "whystall" not in refused.text
    page = site.scrape(SCRAPE)
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert promtool("check", "metrics", given=page.text) == ""

    stalled, _ = eventually(lambda: site.query("whystall_watch_stalled_seconds"))
    assert stalled["value"][1] == "400"
    assert stalled["metric"]["job_name"].startswith('x"\\x0a\\{evil="1"} \\udcff\\u202e')
    assert stalled["metric"]["job"] == "whystall"
    (known,) = site.query("whystall_watch_stall_seconds_total * on (job, instance) group_left (host) whystall_info")
    assert (known["metric"]["host"], known["metric"]["cause"], known["value"][1]) == (host_name(), CAUSE, "42.5")

    dashboard = json.loads((DEPLOY / "grafana/whystall.json").read_text())
    eventually(lambda: len(site.query("count_over_time(up[1m]) > 4")))
    until = time.time()
    empty = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1m")
            query = query.replace("$instance", ".*").replace("$job", ".*")
            if not site.query(query, start=until - 20, end=until, step=1):
                empty.append(panel["title"])
    # of the past, of ranks that no diagnosis found, or an increase where there was none
    assert set(empty) <= {
        "Step against an hour ago",
        "Lateness of ranks in collectives",
        "Longest stalled, in the time shown",
    }


@pytest.mark.skipif(shutil.which("prometheus-alertmanager") is None, reason="no Alertmanager here")
def test_alerts_on_stalls_come_back_as_tickets_and_are_counted_in_the_watchers(site: Site) -> None:
    """The watcher has a ticket of the first job, and none of the second."""
    with Stores(site.home / "knowledge.db") as kb:
        eventually(lambda: len(site.query('ALERTS{alertname="WhystallJobStalled", alertstate="firing"}')) == 2)
        eventually(lambda: len(kb.tickets.list()) == 2 and sum(t.occurrences for t in kb.tickets.list()) == 3)
        watched, alone = sorted(kb.tickets.list(), key=lambda ticket: int(ticket.id))
        for ticket, occurrences, cause in ((watched, 2, CAUSE), (alone, 1, None)):
            (alert,) = kb.alerts.find(ticket=ticket.id)
            assert alert.alert.labels["job_name"] == ticket.labels["job_name"]
            assert (ticket.labels["host"], ticket.occurrences) == (host_name(), occurrences)
            assert (ticket.diagnosis.cause if ticket.diagnosis else None) == cause
