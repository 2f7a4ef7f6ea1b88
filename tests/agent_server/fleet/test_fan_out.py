"""A fleet of real MCP servers on loopback, and of servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from byte_servers import bytes_server, http
from fleet_servers import PID, TOKEN, RecordedHost, application, closed_port, scene, serving, settings, silent_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.fleet.answers import Target
from whystall.agent_server.fleet.ask import FleetParams, ask, health
from whystall.agent_server.fleet.fan_out import Limits, fan_out
from whystall.agent_server.fleet.inventory import Host, Inventory
from whystall.agent_server.fleet.text import TEXT_LIMIT, fleet_text
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
TOOL, ARGUMENTS = "fileslower", {"duration": 0.1}
DIES = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\nid: 1\r\ndata: {"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def host(name: str, slow: bool = False) -> RecordedHost:
    return RecordedHost(scene(slow).build(host=name))


async def test_one_slow_host_among_healthy_dead_and_silent_ones() -> None:
    hosts = {name: application(host(name, slow=name == "node2")) for name in ("node1", "node2", "node3")}
    with serving(hosts) as urls, closed_port() as dead, silent_port() as silent:
        known = settings({**urls, "node4": dead, "node5": silent}, host_deadline=30, deadline=60)
        result = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), known)
    assert (result.verdict, result.asked, result.answered) == ("abnormal", 5, 3)
    assert {one.status: one.hosts for one in result.missing} == {"unreachable": "node4", "slow": "node5"}
    assert result.suspect is not None
    assert (result.suspect.host, result.suspect.pid) == ("node2", PID)
    assert {row.hosts for row in result.findings} == {"node2"}
    for lang in ("en", "zh"):
        text = fleet_text(result, lang)
        assert len(text) <= TEXT_LIMIT
        assert "node2 -> train (pid 4000)" in text
        assert "node4" in text
        assert "node5" in text


async def test_a_fleet_with_a_dead_host_is_never_clear() -> None:
    with serving({"node1": application(host("node1"))}) as urls, closed_port() as dead:
        one = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings(urls))
        both = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings({**urls, "node2": dead}))
    assert one.verdict == "clear"
    assert both.verdict == "clear_in_part"
    assert "no abnormal finding on 1 of 2 hosts" in fleet_text(both, "en")
    assert "does not clear the fleet" in fleet_text(both, "en")


async def test_a_reply_of_another_host_is_reported_and_not_used() -> None:
    with serving({"node1": application(host("elsewhere", slow=True))}) as urls:
        strict = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings(urls))
        trusting = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings(urls, identity=False))
    assert (strict.verdict, strict.findings) == ("unknown", [])
    assert [(one.status, one.details) for one in strict.missing] == [("wrong_host", ["it calls itself elsewhere"])]
    assert trusting.verdict == "abnormal"


async def test_a_wrong_token_is_refused_and_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("FLEET_TOKEN", "another-token-0123456789")
    with serving({"node1": application(host("node1"))}) as urls:
        result = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings(urls))
    (missing,) = result.missing
    assert (missing.status, missing.details) == ("refused", ["HTTP 401; the token is not accepted"])
    assert "another-token" not in caplog.text + result.model_dump_json()


async def test_a_host_that_lists_a_core_answers_for_all_and_one_that_offers_less_says_so() -> None:
    hosts = {"node1": application(host("node1")), "node2": application(host("node2"), tools=["core", "io"])}
    with serving(hosts) as urls:
        result = await ask(FleetParams(tool="interrupts", arguments=ARGUMENTS), settings(urls))
    assert result.answered == 1
    (missing,) = result.missing
    assert (missing.status, missing.hosts) == ("refused", "node2")
    assert missing.details[0].startswith("not_found: this server does not offer 'interrupts', which is in the toolset")


async def test_an_error_of_the_tool_is_the_hosts_answer() -> None:
    class Busy(RecordedHost):
        async def run_tool(self, name: str, arguments: dict[str, Any], **_: Any) -> Any:
            raise ToolError(ErrorCode.BUSY, f"{TOKEN} \x1b[31m", "wait")

    with serving({"node1": application(Busy(scene().build()))}) as urls:
        result = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings(urls))
    (missing,) = result.missing
    assert missing.status == "refused"
    assert missing.details[0].startswith("busy: ")
    assert TOKEN not in result.model_dump_json()
    assert "\x1b" not in fleet_text(result, "en")


async def test_a_certificate_is_trusted_if_its_authority_is_named(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    words = [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    with bytes_server(http("{}"), tls=tls) as url:
        (stranger,) = await health(None, settings({"node1": url}))
        (trusted,) = await health(None, settings({"node1": url}, ca_file=cert))
        (plain,) = await health(None, settings({"node1": url.replace("https:", "http:")}))
    assert (stranger.status, trusted.status, plain.status) == ("unreachable", "answered", "unreachable")
    assert "certificate is not trusted" in stranger.detail
    bad = settings({"node1": "https://127.0.0.1:9/mcp"}, ca_file=key)
    assert [answer.status for answer in await health(None, bad)] == ["not_asked"]


async def test_the_health_of_each_host() -> None:
    with serving({"node1": application(host("node1"))}) as urls, closed_port() as dead:
        answers = await health(None, settings({**urls, "node2": dead}))
    assert [(answer.host, answer.status) for answer in answers] == [("node1", "answered"), ("node2", "unreachable")]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "unreachable"),
        (b"", "unreachable"),
        (http("<html>login</html>", headers={"Content-Type": "text/html"}), "invalid"),
        (http("{}", status="503 Service Unavailable"), "refused"),
        (http("{}", status="302 Found", headers={"Location": "http://127.0.0.1:9/steal"}), "invalid"),
        (http("{", headers={"Content-Encoding": "gzip"}), "invalid"),
        (http('{"jsonrpc": "2.0", "id": 1, "result": "' + "x" * 200_000 + '"}'), "too_large"),
        (http("[" * 20_000), "invalid"),
        (DIES, "unreachable"),
    ],
    ids=["ssh", "nothing", "html", "busy", "redirect", "compressed", "huge", "deep", "dies"],
)
async def test_servers_that_speak_no_mcp(answer: bytes, status: str) -> None:
    with bytes_server(answer) as url:
        known = settings({"node1": url}, reply_limit=100_000)
        result = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), known)
    assert [one.status for one in result.missing] == [status]
    assert result.verdict == "unknown"
    assert fleet_text(result, "en").isprintable() is False  # it has line ends ...
    assert all(line.isprintable() for line in fleet_text(result, "en").splitlines())  # ... and nothing else


def lying(result: Any) -> Starlette:
    """A server that gives `result` for every request of MCP."""

    async def answer(request: Request) -> Response:
        sent = await request.json()
        return Response(
            json.dumps({"jsonrpc": "2.0", "id": sent.get("id"), "result": result}), media_type="application/json"
        )

    return Starlette(routes=[Route("/mcp", answer, methods=["POST", "GET", "DELETE"])])


def reply(**changed: Any) -> dict[str, Any]:
    """A handshake and a tool's result in one, with findings that a tool reports."""
    shake = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    finding = {
        "kind": "path.wait",
        "fingerprint": "chosen-by-the-host",
        "subject": {"type": "thread", "comm": "\x1b[31m<script>", "pid": 7},
        "interval": {"start_ns": 0, "end_ns": 1},
        "metrics": {"window_pct": 99.0},
        "severity": "critical",
        "polarity": "abnormal",
    }
    content = {"tool": TOOL, "status": "ok", "coverage": {"host": "node1"}, "findings": [finding], "data": {}}
    return {**shake, "content": [], "structuredContent": {**content, **changed}}


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ("\x1b]0;title\x07", "invalid"),
        ({"content": []}, "invalid"),
        ({**reply(), "structuredContent": 7}, "invalid"),
        ({**reply(), "structuredContent": None}, "invalid"),
        (reply(coverage={"host": "\u202enode2"}), "wrong_host"),
    ],
    ids=["text", "no handshake", "number", "nothing", "other host"],
)
async def test_replies_that_are_no_result(result: Any, status: str) -> None:
    with serving({"node1": lying(result)}) as urls:
        merged = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings(urls))
    assert [one.status for one in merged.missing] == [status]
    assert all(line.isprintable() for line in fleet_text(merged, "en").splitlines())


async def test_a_finding_without_what_its_sentence_needs_is_shown_by_its_kind() -> None:
    with serving({"node1": lying(reply())}) as urls:
        result = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings(urls))
    (row,) = result.findings
    assert row.finding.fingerprint != "chosen-by-the-host"
    assert "\x1b" not in result.model_dump_json()
    text = fleet_text(result, "en")
    assert all(line.isprintable() for line in text.splitlines())
    assert "critical" in text


async def test_findings_of_another_vocabulary_are_counted_and_clear_nothing() -> None:
    strange: list[Any] = [{"kind": "of.the.future"}, 7, None, [], {"kind": {}}]
    with serving({"node1": lying(reply(findings=strange))}) as urls:
        result = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), settings(urls))
    assert (result.verdict, result.hosts[0].unread, result.in_full) == ("unknown", 5, 0)


async def test_a_host_whose_turn_does_not_come_was_not_asked() -> None:
    with silent_port() as silent:
        targets = [Target(Host(name, silent)) for name in ("node1", "node2")]
        answers = await fan_out(targets, TOOL, {}, Limits(30, 1, 1, 100_000))
    assert [answer.status for answer in answers] == ["slow", "not_asked"]


class NeverDone(RecordedHost):
    """A host whose tools give no result."""

    async def run_tool(self, name: str, arguments: dict[str, Any], **_: Any) -> Any:
        await asyncio.sleep(3600)


async def test_answers_that_must_be_of_one_time_are_not_awaited_for_longer() -> None:
    with serving({"node1": application(NeverDone(scene().build()))}) as urls, silent_port() as silent:
        inventory = Inventory(settings({**urls, "node2": silent, "node3": silent}))
        targets = [Target(inventory.host(f"node{number}")) for number in (1, 2, 3)]
        answers = await fan_out(targets, TOOL, ARGUMENTS, Limits(200, 200, 2, 100_000, together=3, ready=1))
    assert [(answer.status, answer.detail) for answer in answers] == [
        ("slow", "no answer within 3 s of the first call"),
        ("slow", "not ready within 1 s of the first call"),
        ("not_asked", "not its turn within 3 s of the first call"),
    ]


async def test_what_is_wrong_before_any_host_is_asked() -> None:
    known = settings({"node1": "http://127.0.0.1:9/mcp"})
    for given, holding in [
        ({"tool": "ticket_draft"}, "a fleet cannot be asked for 'ticket_draft'"),
        ({"tool": TOOL, "arguments": {"durations": 1}}, "unknown argument 'durations'"),
        ({"tool": TOOL, "hosts": "evil.example"}, "may not be asked"),
        ({"tool": TOOL, "arguments": {"pid": 7}, "job": "llama"}, "observes no process"),
    ]:
        with pytest.raises(ToolError) as caught:
            await ask(FleetParams.model_validate(given), known)
        assert holding in caught.value.message


async def test_a_token_that_cannot_be_read_is_sent_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEET_TOKEN")
    known = settings({"node1": "http://127.0.0.1:9/mcp"})
    result = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS), known)
    assert [(one.status, one.details) for one in result.missing] == [
        ("not_asked", ["[fleet] token: the variable FLEET_TOKEN is not set"])
    ]


async def test_each_host_finds_its_process_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from whystall.agent_server.interfaces.mcp import jobs
    from whystall.agent_server.job_lookup.models import Job, Rank, Resolution

    ranks = [Rank(rank=8, pid=PID), Rank(rank=9, pid=PID + 1)]
    job = Job(
        id="slurm:42", kind="slurm", name="llama", pid=PID, program="train.py", processes=2,
        pids=[PID, PID + 1], workers=[PID, PID + 1], ranks=ranks,
    )  # fmt: skip
    asked: list[str] = []

    async def find(wanted: Any) -> Resolution:
        asked.append(wanted.text)
        return Resolution(status="found", pid=PID, rank=8, job=job)

    monkeypatch.setattr(jobs, "find", find)
    slow = host("node1", slow=True)
    with serving({"node1": application(slow)}) as urls:
        result = await ask(FleetParams(tool=TOOL, arguments=ARGUMENTS, job="slurm job 42"), settings(urls))
    assert asked == ["slurm job 42"]
    assert slow.called[0]["pid"] == PID
    assert result.suspect is not None
    assert (result.suspect.rank, result.suspect.host, result.suspect.pid) == (8, "node1", PID)
    assert result.hosts[0].ranks == [8, 9]
    assert "rank 8 -> node1 -> train (pid 4000)" in fleet_text(result, "en")


def test_hosts_are_reached_as_the_settings_say() -> None:
    known = settings({"node1": "http://127.0.0.1:9/mcp"}, hosts="node2", allow=["10.0.0.0/8", "gpu-*"])
    inventory = Inventory(known)
    assert inventory.names == ["node2", "node1"]
    assert inventory.host("node1").url == "http://127.0.0.1:9/mcp"
    assert inventory.host("node2").url == "https://node2:8377/mcp"
    assert [inventory.knows(name) for name in ("node3", "10.1.2.3", "11.1.2.3", "gpu-7")] == [False, True, False, True]
    assert inventory.host("node2").identity
    assert not inventory.host("10.1.2.3").identity
