"""A ticket's life through both doors: drafted, listed, read, verified, resolved, remembered."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import making
import pytest
from mcp import Client

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import Comment
from whystall.prompts.render import words
from whystall.tools.contract.errors import ToolError

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
HOSTILE = "/data/`$(id)`\x1b[31m/**x** <b>chk_000120.bin"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A knowledge base of its own that holds one diagnosis, on a file with a hostile name."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    with App().closing() as app:
        app.kb().save_diagnosis(making.checkpoint(path=HOSTILE, id="d-test"))
    return {"WHYSTALL_HOME": str(tmp_path)}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_ticket_is_drafted_once_listed_and_read(mode: str, home: dict[str, str], whystall: Run) -> None:
    with App().closing() as app:
        async with Client(McpServer(app).server, mode=mode) as client:
            first = await client.call_tool("ticket_draft", {"diagnosis": "d-test"})
            again = await client.call_tool("ticket_draft", {"diagnosis": "d-test"})
            assert not first.is_error, first.content
            assert first.structured_content is not None
            assert first.structured_content == again.structured_content
            uri = f"whystall://tickets/{first.structured_content['id']}"
            uris = [str(r.uri) for r in (await client.list_resources()).resources]
            assert [found for found in uris if not found.startswith(("whystall://incidents/", "skill://"))] == [uri]
            text = (await client.read_resource(uri)).contents[0].text  # type: ignore[union-attr]
            assert "chk_000120.bin" in text
            page = await client.call_tool("artifact_read", {"uri": uri, "limit": 20_000})
            assert page.structured_content is not None
            assert page.structured_content["text"] == text
    listed = json.loads(whystall("tickets", "list", "--json", env=home).stdout)
    assert listed == [first.structured_content]
    shown = whystall("tickets", "show", listed[0]["id"], env=home)
    assert shown.stdout == text
    for printed in (text, shown.stdout, whystall("tickets", "list", env=home).stdout):
        assert "\x1b" not in printed


@pytest.mark.parametrize("lang", ["en", "zh"])
async def test_a_ticket_of_an_alert_is_a_resource_with_its_history(lang: Lang, home: dict[str, str]) -> None:
    text = "drops of packets since noon @all <b>"
    with App().closing() as app:
        tickets = app.kb().tickets
        report = Report(origin="alert", title="NCCL timeout", description=text, created="2025-01-01T00:00:00Z")
        id = TicketService(app.kb()).file(report).ticket.id
        tickets.comment(id, Comment(by="ann", at="2025-01-01T00:00:00Z", text="the switch"))
        async with Client(McpServer(app, lang=lang).server) as client:
            listed = [r for r in (await client.list_resources()).resources if "/tickets/" in str(r.uri)]
            assert [(str(r.uri), r.mime_type) for r in listed] == [(f"whystall://tickets/{id}", "text/markdown")]
            shown = (await client.read_resource(listed[0].uri)).contents[0].text  # type: ignore[union-attr]
            assert f"```text\n{text}\n```" in shown
            assert "```text\nthe switch\n```" in shown
            for part in ("history", "comments", "reported", "decided", "analysis"):
                assert f"## {words(lang)['tickets'][part]}" in shown
            draft = await client.call_tool("ticket_draft", {"diagnosis": "none"})
            assert draft.is_error
        with pytest.raises(ToolError, match=f"ticket {id} has no diagnosis"):
            await app.verify(id)


def test_a_ticket_is_verified_and_resolved_from_the_command_line(
    home: dict[str, str], recording: Path, whystall: Run
) -> None:
    with App().closing() as app:
        ticket = app.kb().tickets.draft("d-test").id
    done = whystall("verify", ticket, "--from", str(recording), "--json", env=home)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["verifications"]) == 1
    for lang in ("en", "zh"):
        assert whystall("tickets", "show", ticket, "--lang", lang, env=home).returncode == 0
    done = whystall("tickets", "resolve", ticket, "--because", "checkpoints are written by a thread now", env=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(whystall("tickets", "list", "--state", "open", "--json", env=home).stdout) == []
    assert whystall("tickets", "list", "--state", "open", env=home).stdout.strip() == "No tickets."
    assert len(json.loads(whystall("tickets", "list", "--state", "resolved", "--json", env=home).stdout)) == 1
    again = whystall("tickets", "resolve", ticket, "--because", "twice", env=home)
    assert again.returncode == 2
    lesson = whystall("kb", "show", f"ticket-{ticket}", env=home)
    assert "checkpoints are written by a thread now" in lesson.stdout


async def test_a_database_that_is_none_is_said_through_both_doors(tmp_path: Path, whystall: Run) -> None:
    database = tmp_path / "knowledge.db"
    database.write_bytes(b"this is no database" * 1000)
    done = whystall("tickets", "list", env={"WHYSTALL_HOME": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith("error: database: ")
    assert len(done.stderr.splitlines()) == 1
    started = time.monotonic()
    done = whystall("diagnose", "--duration", "600", env={"WHYSTALL_HOME": str(tmp_path)})  # said before, not after
    assert done.stderr.startswith("error: database: ")
    assert time.monotonic() - started < 300
    with App(database).closing() as app:
        async with Client(McpServer(app).server) as client:
            result = await client.call_tool("kb_search", {"query": "slow"})
            assert result.is_error
            assert result.content[0].text.startswith("database: ")  # type: ignore[union-attr]
            with pytest.raises(Exception, match="database: "):
                await client.list_resources()
    assert database.read_bytes().startswith(b"this is no database")
