"""The commands of the fleet, and its MCP tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fleet_servers import TOKEN, RecordedHost, application, scene, serving
from mcp import Client

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.command_tree import build
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.tools.contract.errors import ToolError


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings with two hosts, of which node2 is slow."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    hosts = {name: RecordedHost(scene(slow=name == "node2").build(host=name)) for name in ("node1", "node2")}
    with serving({name: application(host) for name, host in hosts.items()}) as urls:
        lines = ["[fleet]", "host_deadline = 240", "deadline = 300", f'token = {{ file = "{tmp_path}/token" }}']
        lines += [f'[fleet.overrides.{name}]\nurl = "{url}"' for name, url in urls.items()]
        (tmp_path / "token").write_text(TOKEN)
        (tmp_path / "token").chmod(0o600)
        (tmp_path / "whystall.toml").write_text("\n".join(lines))
        (tmp_path / "whystall.toml").chmod(0o600)
        monkeypatch.setenv("WHYSTALL_CONFIG", str(tmp_path / "whystall.toml"))
        yield tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command prints."""
    build(words)(list(words), prog_name="whystall", standalone_mode=False)
    console.deliver()
    return capsys.readouterr().out


def test_the_commands(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("fleet", "run", "fileslower", "--set", "duration=0.1")
    text = run(capsys, *asked)
    assert text.startswith("fileslower on 2 hosts: 2 answered\nVerdict: abnormal findings; 1 of 2 hosts have none\n")
    assert "Most severe, on this host only: node2 -> train (pid 4000)" in text
    assert "结论：有异常发现；2 台主机中有 1 台无异常" in run(capsys, *asked, "--lang", "zh")
    (fleet / "hosts").write_text("node1\n")
    one = json.loads(run(capsys, *asked, "--json", "--hosts-file", str(fleet / "hosts")))
    assert (one["verdict"], one["asked"]) == ("clear", 1)
    assert run(capsys, "fleet", "hosts").startswith("2 of 2 hosts answer: ")
    listed = json.loads(run(capsys, "fleet", "hosts", "--hosts", "node2", "--json"))
    assert listed == [{"host": "node2", "status": "answered", "detail": ""}]


@pytest.mark.parametrize(
    ("words", "holding"),
    [
        (["--set", "duration"], "no NAME=VALUE"),
        (["--arguments", "[]"], "not a JSON object"),
        (["--slurm", "1", "--job", "x"], "several jobs"),
        (["--hosts", "node3"], "may not be asked"),
        (["--set", "duration=-1"], "duration"),
        (["--hosts-file", "/none"], "cannot read"),
    ],
)
def test_options_that_are_refused(
    fleet: Path, capsys: pytest.CaptureFixture[str], words: list[str], holding: str
) -> None:
    with pytest.raises(ToolError) as caught:
        run(capsys, "fleet", "run", "fileslower", *words)
    assert holding in caught.value.message


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_mcp_tool(fleet: Path, mode: str) -> None:
    with App().closing() as app:
        async with Client(McpServer(app, chosen=["fleet"]).server, mode=mode) as client:
            (tool,) = [one for one in (await client.list_tools()).tools if one.name == "fleet"]
            assert set(tool.input_schema["properties"]) == {"tool", "arguments", "hosts", "job"}
            arguments: Any
            for arguments in ({"duration": 0.1}, '{"duration": 0.1}'):
                result = await client.call_tool("fleet", {"tool": "fileslower", "arguments": arguments})
                assert not result.is_error, result.content
                assert result.structured_content is not None
                assert result.structured_content["suspect"]["host"] == "node2"
            refused = await client.call_tool("fleet", {"tool": "fleet"})
            assert refused.is_error


@pytest.mark.anyio
async def test_without_settings_there_is_no_such_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    (tmp_path / "whystall.toml").write_text("")
    monkeypatch.setenv("WHYSTALL_CONFIG", str(tmp_path / "whystall.toml"))
    with App().closing() as app:
        assert "fleet" not in McpServer(app).entries
