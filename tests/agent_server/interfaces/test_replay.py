"""``whystall replay``, and transcripts over MCP."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.server import McpServer

pytestmark = pytest.mark.thorough

Run = Callable[..., "subprocess.CompletedProcess[str]"]
RECORDED = Path(__file__).parents[2] / "recorded"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory of this module's own."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def command(whystall: Run, home: Path) -> Run:
    """The installed command in that state directory."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return whystall(*words, env={"WHYSTALL_HOME": str(home)})

    return run


@pytest.fixture(scope="module")
def diagnosis(command: Run) -> dict[str, Any]:
    """A diagnosis with its transcript."""
    done = command("diagnose", "--from", str(RECORDED / "checkpoint"), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_diagnosis_is_replayed_by_its_id_and_by_its_file(
    command: Run, diagnosis: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    by_id = json.loads(command("replay", diagnosis["id"], "--json").stdout)
    assert by_id["same"] is True
    assert (by_id["end"]["verdict"], by_id["end"]["cause"]) == (diagnosis["verdict"], diagnosis["cause"])
    moved = tmp_path / "sent to a colleague.jsonl"
    moved.write_bytes((home / "transcripts" / f"{diagnosis['id']}.jsonl").read_bytes())
    assert json.loads(command("replay", str(moved), "--json").stdout) == by_id
    for lang, word in (("en", "the same verdict"), ("zh", "均相同")):
        text = command("replay", diagnosis["id"], "--lang", lang).stdout
        assert word in text
        assert diagnosis["id"] in text


def test_what_comes_out_different_is_an_answer(
    command: Run, diagnosis: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    lines = (home / "transcripts" / f"{diagnosis['id']}.jsonl").read_text().splitlines()
    end = json.loads(lines[-1]) | {"cause": "\x1b]0;owned\x07\u202egremlins"}
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join([*lines[:-1], json.dumps(end), ""]))
    done = command("replay", str(other))
    assert done.returncode == 0
    assert "DIFFERENT" in done.stdout
    assert "first difference: cause" in done.stdout
    assert "gremlins" in done.stdout
    for lang in ("en", "zh"):
        text = command("replay", str(other), "--lang", lang).stdout
        assert not any(c in text for c in "\x1b\x07\u202e")


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("20260101T000000-000000", 1, "not_found"),
        ("nothing.jsonl", 1, "io_error"),
        ("/etc/passwd", 1, "bad_recording"),
        ("/dev/zero", 1, "bad_recording"),
        ("/", 1, "io_error"),
        ("a\nb", 1, "io_error"),
    ],
    ids=["id", "file", "foreign", "device", "directory", "newline"],
)
def test_what_cannot_be_replayed_is_one_line(command: Run, name: str, status: int, code: str) -> None:
    done = command("replay", name, "--json")
    assert done.returncode == status
    assert done.stderr.startswith(f"error: {code}: ")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["error"]["code"] == code


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_transcript_is_read_over_mcp(
    mode: str, diagnosis: dict[str, Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(home))
    id, uri = diagnosis["id"], f"whystall://transcripts/{diagnosis['id']}"
    whole = (home / "transcripts" / f"{id}.jsonl").read_text()
    outside = home / "transcripts" / "20260101T000000-000000.jsonl"
    if not os.path.lexists(outside):
        outside.symlink_to("/etc/passwd")
    with App().closing() as app:
        async with Client(McpServer(app).server, mode=mode) as client:
            content = (await client.read_resource(uri)).contents[0]
            assert content.mime_type == "application/jsonl"
            assert content.text == whole  # type: ignore[union-attr]
            page = await client.call_tool("artifact_read", {"uri": uri, "limit": 500})
            assert page.structured_content is not None
            assert page.structured_content["text"] == whole[:500]
            ref = ResourceTemplateReference(uri="whystall://transcripts/{id}")
            assert id in (await client.complete(ref, {"name": "id", "value": id[:10]})).completion.values
            prompt = PromptReference(name="write_ticket")
            assert id in (await client.complete(prompt, {"name": "diagnosis", "value": ""})).completion.values
            for name in (outside.stem, "../knowledge.db", f"{id}.jsonl", "..%2Fknowledge.db"):
                with pytest.raises(MCPError, match="not_found"):
                    await client.read_resource(f"whystall://transcripts/{name}")
