"""The MCP server with the fixtures of the conformance runner, over the HTTP application of the product.

usage: PYTHONPATH=tests python -m conformance.fixture_server    prints the address, and serves until its input ends
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mcp_types as types
from conformance import fixture_tools as fixtures
from mcp.server.context import HandlerResult, ServerRequestContext
from starlette.types import ASGIApp, Receive, Scope, Send

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.http import PATH, http_app
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.agent_server.interfaces.mcp.tasks_extension import require_tasks
from whystall.agent_server.interfaces.web import http_server

_Context = ServerRequestContext[Any, Any]
PATIENCE_S = 0.4
"""The scenarios expect a task of calls that take 1 s; the product waits for 5 s."""


class FixtureServer(McpServer):
    """The product's server, which also offers the fixtures."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.tasks.patience_s = PATIENCE_S
        self.entries |= fixtures.all_entries()
        # First, since some scenarios call the first tool without arguments, which would observe this host.
        self.listed = [*fixtures.all_entries(), *self.listed]
        self.server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._accept)
        self.server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._accept)
        self.server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._accept)

    async def _accept(self, _ctx: _Context, _params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    async def _call_tool(self, ctx: _Context, params: types.CallToolRequestParams) -> HandlerResult:
        if params.name in fixtures.REQUIRES_TASKS:
            require_tasks(ctx)
        if params.name in fixtures.RESULTS:
            return types.CallToolResult(content=fixtures.RESULTS[params.name])
        if params.name in fixtures.CLIENT_CALLS:
            answer: HandlerResult = await fixtures.CLIENT_CALLS[params.name](ctx, params)
            return answer
        return await super()._call_tool(ctx, params)

    async def _list_resources(
        self, ctx: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        listed = await super()._list_resources(ctx, params)
        found = [
            types.Resource(uri=uri, name=uri.removeprefix("test://"), description="Fixture.", mime_type=kind)
            for uri, (kind, _) in fixtures.READABLE.items()
        ]
        return listed.model_copy(update={"resources": [*found, *listed.resources]})

    async def _list_templates(
        self, ctx: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        listed = await super()._list_templates(ctx, params)
        found = types.ResourceTemplate(uri_template=fixtures.TEMPLATE, name="template", description="Fixture.")
        return listed.model_copy(update={"resource_templates": [found, *listed.resource_templates]})

    async def _read_resource(self, ctx: _Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        if (named := re.fullmatch(r"test://template/([^/]+)/data", uri)) is not None:
            data = {"id": named[1], "templateTest": True, "data": f"Data for ID: {named[1]}"}
            text = types.TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(data))
            return types.ReadResourceResult(contents=[text])
        if uri not in fixtures.READABLE:
            return await super()._read_resource(ctx, params)
        kind, content = fixtures.READABLE[uri]
        if kind.startswith("text/"):
            return types.ReadResourceResult(
                contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=content)]
            )
        return types.ReadResourceResult(contents=[types.BlobResourceContents(uri=uri, mime_type=kind, blob=content)])

    async def _list_prompts(
        self, ctx: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        listed = await super()._list_prompts(ctx, params)
        found = [
            types.Prompt(
                name=name,
                description="Fixture.",
                arguments=[types.PromptArgument(name=one, description="Fixture.", required=True) for one in arguments],
            )
            for name, arguments in fixtures.PROMPTS.items()
        ]
        return listed.model_copy(update={"prompts": [*found, *listed.prompts]})

    async def _get_prompt(
        self, ctx: _Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        if params.name not in fixtures.PROMPTS:
            return await super()._get_prompt(ctx, params)
        if params.name == "test_input_required_result_prompt" and "user_context" not in (params.input_responses or {}):
            asked = fixtures.elicitation("What context should the prompt use?", fixtures.form(context=fixtures.STRING))
            return types.InputRequiredResult(input_requests={"user_context": asked})
        contents = [
            types.TextContent(type="text", text=one) if isinstance(one, str) else one
            for one in fixtures.prompt_messages(params.name, params.arguments or {})
        ]
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=one) for one in contents])


class WithToken:
    """Adds the token to each request: the runner cannot send one."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._header = (b"authorization", f"Bearer {token}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], self._header]}
        await self._app(scope, receive, send)


@contextmanager
def serving() -> Iterator[str]:
    """The address of the server, which runs in a thread of this process."""
    token = secrets.token_urlsafe(32)
    with App().closing() as app, http_server.listen("127.0.0.1", 0) as listener:
        app.kb()  # filled before the first request, which would wait for it
        made = WithToken(http_app(FixtureServer(app), "127.0.0.1", token), token)
        server = http_server.HttpServer(made)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve_on(listener)))
        thread.start()
        try:
            yield http_server.url(listener, PATH)
        finally:
            server.leave()
            thread.join(60)


def main() -> None:
    """Serve until standard input ends."""
    with tempfile.TemporaryDirectory() as state:
        os.environ["WHYSTALL_HOME"] = state
        with serving() as address:
            print(address, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
