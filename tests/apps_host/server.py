"""A host of MCP Apps in this process: its page, the sandbox of another origin, and its connection to an MCP server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from fleet_servers import TOKEN, application, serving
from mcp import Client
from mcp.client.extension import ClientExtension
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route

from whystall.agent_server.app import App

_HERE = Path(__file__).parent
# What the specification demands for a page that declares no domains.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "media-src 'self' data:; connect-src 'none'; frame-src 'none'; object-src 'none'; base-uri 'self'"
)
BOTH: Mapping[str, Any] = {"serverTools": {}, "serverResources": {}}


class Shows(ClientExtension):
    """Declares that the client shows pages."""

    identifier = "io.modelcontextprotocol/ui"

    def __init__(self, mime_type: str = "text/html;profile=mcp-app") -> None:
        self.mime_type = mime_type

    def settings(self) -> dict[str, Any]:
        """The types of pages that it shows."""
        return {"mimeTypes": [self.mime_type]}


class Host:
    """What the page of the host asks of its server; `calls` are made of the MCP server at `url`."""

    def __init__(self, capabilities: Mapping[str, Any]) -> None:
        self.url = ""
        self.calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
        self.theme, self.locale, self.capabilities = "light", "en-US", capabilities
        routes = [
            Route("/host", lambda _: FileResponse(_HERE / "host.html")),
            Route(
                "/sandbox", lambda _: FileResponse(_HERE / "sandbox.html", headers={"Content-Security-Policy": POLICY})
            ),
            Route("/settings", self._settings),
            Route("/forward", self._forward, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    async def _settings(self, request: Request) -> JSONResponse:
        calls = [{"name": name, "arguments": arguments} for name, arguments in self.calls]
        fixed = {"theme": self.theme, "locale": self.locale, "capabilities": self.capabilities}
        return JSONResponse({**fixed, "calls": calls, "sandbox": f"http://localhost:{request.url.port}"})

    async def _forward(self, request: Request) -> JSONResponse:
        asked = await request.json()
        params = asked["params"]
        async with self.client() as client:
            try:
                if asked["method"] == "tools/list":
                    result: Any = await client.list_tools()
                elif asked["method"] == "resources/read":
                    result = await client.read_resource(params["uri"])
                else:
                    result = await client.call_tool(params["name"], params["arguments"])
            except MCPError as error:
                return JSONResponse({"error": str(error)})
        return JSONResponse({"result": result.model_dump(mode="json", by_alias=True, exclude_none=True)})

    def client(self) -> Client:
        """A connection to the MCP server."""
        session = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
        return Client(streamable_http_client(self.url, http_client=session), extensions=[Shows()])


@contextmanager
def hosted(app: App, capabilities: Mapping[str, Any] = BOTH) -> Iterator[tuple[Host, str]]:
    """A host connected to whystall's server on `app`, and the address of its page."""
    host = Host(capabilities)
    with serving({"mcp": application(app, tools=["all"]), "host": host.app}) as urls:
        host.url = urls["mcp"]
        yield host, f"http://{urlsplit(urls['host']).netloc}/host"
