"""Hosts of a fleet in this process: each is whystall's MCP server on a port of loopback, and judges a recording."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from recordings import PID, Scene
from starlette.types import ASGIApp

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.http import http_app
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.agent_server.interfaces.web import http_server
from whystall.agent_server.interfaces.web.app import health_route, web_app
from whystall.agent_server.presentation.pages import judged
from whystall.agent_server.settings.sections.fleet import FleetSettings
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.result import ToolResult
from whystall.tools.ranks.traces.hosts import calls_of, ranks_of
from whystall.tools.recording.store import Recording

TOKEN = "a-token-of-the-fleet-0123456789"


def scene(slow: bool = False) -> Scene:
    """A training process, which writes checkpoints; `slow`: each takes 600 ms in fsync."""
    made = Scene(window_s=12).thread(user=80, blocked=30 if slow else 0)
    for index in range(6):
        name = f"/ckpt/chk_{index:06d}.bin"
        ms = 600 if slow else 2
        made.call(2 * index + 0.5, ms, "fsync", name, waits=99)
    return made


class RecordedHost(App):
    """whystall on a host on which `recording` was just made."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        self.called: list[Mapping[str, Any]] = []

    async def run_tool(self, name: str, arguments: dict[str, Any], **_: Any) -> ToolResult[Any]:
        """Judge the recording."""
        self.called.append(arguments)
        tool = self.tool(name)
        return judged(tool, self.recording, parse_params(tool.params, arguments), "en")

    async def window(self, name: str, pid: int, seconds: float) -> Recording:
        """The part of the recording that the centre needs."""
        self.called.append({"tool": name, "pid": pid, "duration": seconds})
        return {"collective_live": calls_of, "slow_node_check": ranks_of}[name](self.recording)


class HostWithTraces(App):
    """whystall on a host with the file system `root`."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    async def ranks(self, traces: str) -> Recording:
        """Read the traces below the host's root."""
        return await super().ranks(f"{self.root}{traces}")


def application(host: App, token: str = TOKEN, tools: Sequence[str] = ()) -> ASGIApp:
    """The application that `whystall serve --transport http --tools TOOLS` serves on `host`."""
    mcp = http_app(McpServer(host, chosen=tools), "127.0.0.1", token)
    return web_app([health_route(None, lambda: False)], mcp)


@contextmanager
def serving(applications: Mapping[str, ASGIApp]) -> Iterator[dict[str, str]]:
    """The MCP address of each application by name; all run in one thread."""
    with ExitStack() as stack:
        listeners = {name: stack.enter_context(http_server.listen("127.0.0.1", 0)) for name in applications}
        servers = {name: http_server.HttpServer(app) for name, app in applications.items()}

        async def run() -> None:
            await asyncio.gather(*(servers[name].serve_on(listeners[name]) for name in servers))

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        try:
            yield {name: http_server.url(listener, "/mcp") for name, listener in listeners.items()}
        finally:
            for server in servers.values():
                server.leave()
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def closed_port() -> Iterator[str]:
    """An address where nothing listens: bound, so that nobody else takes it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"


@contextmanager
def silent_port() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"


def settings(urls: Mapping[str, str], **changed: Any) -> FleetSettings:
    """Settings with these hosts; the token is in the variable ``FLEET_TOKEN``."""
    given = {
        "token": {"env": "FLEET_TOKEN"},
        "overrides": {name: {"url": url} for name, url in urls.items()},
        "host_deadline": 240,
        "deadline": 300,
    }
    return FleetSettings.model_validate(given | changed)


__all__ = [
    "PID",
    "TOKEN",
    "HostWithTraces",
    "RecordedHost",
    "application",
    "closed_port",
    "scene",
    "serving",
    "settings",
    "silent_port",
]
