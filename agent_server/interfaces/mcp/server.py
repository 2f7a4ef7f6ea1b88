"""The MCP server: tools, resources and prompts, for old (handshake) and new (stateless) clients at once.

Built on the SDK's low-level `Server`: tools come from a registry, so schemas, validation of arguments and mapping of
errors are implemented once instead of per function signature.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

import mcp_types as types
from mcp.server import Server
from mcp.server.apps import client_supports_apps
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp import apps, skills
from whystall.agent_server.interfaces.mcp import resources as mcp_resources
from whystall.agent_server.interfaces.mcp.answers import call_result, failure
from whystall.agent_server.interfaces.mcp.asking import PATIENCE_S, Arguments, Prepare, can_be_asked, prepared
from whystall.agent_server.interfaces.mcp.calls import Calls
from whystall.agent_server.interfaces.mcp.completion import complete
from whystall.agent_server.interfaces.mcp.entry import Entry
from whystall.agent_server.interfaces.mcp.scopes import granted, needed, of_resource, permits
from whystall.agent_server.interfaces.mcp.tasks import TaskRunner
from whystall.agent_server.interfaces.mcp.tasks_extension import TasksExtension, created, declares_tasks
from whystall.agent_server.interfaces.mcp.tools import entries
from whystall.agent_server.interfaces.mcp.toolsets import listed, unknown
from whystall.agent_server.journal.client_tasks import ClientTask
from whystall.agent_server.settings.sections.access import Scope
from whystall.agent_server.version import version
from whystall.knowledge_base.models import Lang
from whystall.prompts import mcp as prompts
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

_Context = ServerRequestContext[Any, Any]
_LISTED = 50  # latest tickets and cards in resources/list; others are found by completion or search


class McpServer:
    """An MCP server over `app`; texts in `lang`. `calls`: those in flight. `patience_s`: see `asking.PATIENCE_S`.

    `chosen`: the tools and toolsets that it offers. Without any it lists the toolset `CORE`, and answers calls of all
    tools: programs call them by name, as the centre of a fleet does.
    """

    def __init__(self, app: App, lang: Lang = "en", chosen: Sequence[str] = ()) -> None:
        self.app = app
        self.lang: Lang = lang
        self.calls = Calls()
        self.patience_s = PATIENCE_S
        self.tasks = TaskRunner(app, self.calls)
        self.entries = entries(app, lang, chosen, self.tasks)
        self.listed = listed(self.entries, chosen)
        self.server: Server[Any] = Server(
            "whystall",
            version=version(),
            title="whystall",
            instructions=prompts.instructions(lang),
            lifespan=self.tasks.lifespan,
            on_list_tools=self._list_tools,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
        )
        # Not `on_call_tool`, which knows no tasks.
        self.server.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        TasksExtension(self.server, self.tasks)
        self.server.middleware.append(self._permitted)
        # Encrypts the state of a question; it must come back with the same call and token, within 10 minutes.
        state = RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="whystall")
        self.server.middleware.append(state)
        skills.offer(self.server)
        apps.offer(self.server)

    def needed(self, method: str, params: Mapping[str, Any]) -> tuple[Scope, ...]:
        """Return the scopes that the sender of a request needs (see `scopes.needed`)."""
        return needed(method, params, self.entries)

    async def _permitted(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Refuse a request beyond the sender's scopes. `http` has answered 403 before, if it read the same in it."""
        required = self.needed(ctx.method, ctx.params or {})
        if not permits(granted(ctx.request), required):
            message = f"insufficient_scope: this needs a token for {' '.join(required)}"
            raise MCPError(code=types.INVALID_REQUEST, message=message)
        return await call_next(ctx)

    async def _list_tools(self, ctx: _Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        scopes = granted(ctx.request)
        tools = [t for t in self._tools if permits(scopes, self.entries[t.name].scopes)]
        if client_supports_apps(ctx):
            tools = [apps.shown(tool, self.entries[tool.name].view) for tool in tools]
        return types.ListToolsResult(tools=tools)

    @cached_property
    def _tools(self) -> list[types.Tool]:
        """The declarations of the listed tools: made once, which takes longer than most calls."""
        return [_declared(self.entries[name]) for name in self.listed]

    async def _call_tool(self, ctx: _Context, params: types.CallToolRequestParams) -> HandlerResult:
        entry, arguments = self._entry(params.name), params.arguments or {}
        try:
            if entry.prepare is not None and can_be_asked(ctx):
                outcome = await self._asked(ctx, params, entry.prepare, entry.checked(arguments))
                if isinstance(outcome, types.InputRequiredResult):
                    return outcome
                arguments = outcome
            if not (entry.task and declares_tasks(ctx)):
                return await call_result(self.calls, entry, arguments, ctx.session)
            answer = await self.tasks.answer(entry, arguments)
            return created(answer) if isinstance(answer, ClientTask) else answer
        except ToolError as error:
            return failure(str(error))

    async def _asked(
        self, ctx: _Context, params: types.CallToolRequestParams, prepare: Prepare, arguments: Arguments
    ) -> Arguments | types.InputRequiredResult:
        """As `prepared`; ends when the server stops, as a call does."""
        return await self.calls.run(
            lambda _: prepared(ctx, params, arguments, prepare, self.patience_s),
            ctx.session,
        )

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise MCPError(code=types.INVALID_PARAMS, message=str(unknown(name, self.listed)))
        return self.entries[name]

    async def _list_resources(
        self, ctx: _Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        try:
            tickets = self.app.kb().tickets.lines(limit=_LISTED)
            cards = self.app.kb().cards.list(limit=_LISTED)
        except ToolError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=str(error)) from None
        found = [skill.resource for skill in skills.skills().values()]
        found += apps.resources(self.lang) if client_supports_apps(ctx) else []
        found += [_resource("tickets", t.id, f"ticket {t.id}", "text/markdown") for t in tickets]
        found += [_resource("incidents", c.id, c.title.get(self.lang), "application/json") for c in cards]
        scopes = granted(ctx.request)
        return types.ListResourcesResult(resources=[r for r in found if permits(scopes, of_resource(r.uri))])

    async def _list_templates(
        self, _ctx: _Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=uri, name=kind, title=title, description=text)
                for uri, (kind, (title, text)) in zip(
                    mcp_resources.templates(), mcp_resources.TEMPLATES.items(), strict=True
                )
            ]
        )

    async def _read_resource(self, ctx: _Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        if view := apps.contents(uri, self.lang):
            return types.ReadResourceResult(contents=[view])
        try:
            # as a call: one that observes ends when the server stops
            stored = await self.calls.run(lambda _: mcp_resources.fetch(self.app, uri, self.lang), ctx.session)
        except ToolError as error:
            code = types.INVALID_PARAMS if error.code is ErrorCode.NOT_FOUND else types.INTERNAL_ERROR
            raise MCPError(code=code, message=str(error), data={"uri": uri}) from None
        if stored.content is not None:
            blob = base64.b64encode(stored.content).decode("ascii")
            binary = types.BlobResourceContents(uri=uri, mime_type=stored.media_type, blob=blob)
            return types.ReadResourceResult(contents=[binary])
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, mime_type=stored.media_type, text=stored.text)]
        )

    async def _complete(self, _ctx: _Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        try:
            return types.CompleteResult(completion=complete(self.app, params))
        except ToolError as error:
            raise MCPError(code=types.INTERNAL_ERROR, message=str(error)) from None

    async def _list_prompts(
        self, _ctx: _Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=prompt.name,
                    title=prompt.title,
                    description=prompt.description,
                    arguments=[
                        types.PromptArgument(name=name, description=text, required=False)
                        for name, text in prompt.arguments.items()
                    ],
                )
                for prompt in prompts.prompts(self.lang)
            ]
        )

    async def _get_prompt(self, _ctx: _Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        try:
            text = prompts.prompt(params.name, params.arguments or {}, self.lang)
        except KeyError as error:
            valid = "; ".join(f"{p.name}({', '.join(p.arguments)})" for p in prompts.prompts(self.lang))
            failure = ToolError(ErrorCode.NOT_FOUND, f"no prompt or argument {error}", f"valid: {valid}")
            raise MCPError(code=types.INVALID_PARAMS, message=str(failure)) from None
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))]
        )


def _resource(kind: str, id: str, title: str, media_type: str) -> types.Resource:
    """Return the listing of a stored text. An id may contain any character but blanks, which a URI may not."""
    uri = f"{mcp_resources.SCHEME}{kind}/{quote(id, safe='')}"
    return types.Resource(uri=uri, name=id, title=clean(title), mime_type=media_type)


def _declared(entry: Entry) -> types.Tool:
    """Return the tool's declaration. None changes the observed host; those not read-only write to our own store."""
    return types.Tool(
        name=entry.name,
        title=entry.title,
        description=entry.description,
        input_schema=entry.arguments,
        annotations=types.ToolAnnotations(
            read_only_hint=entry.read_only,
            destructive_hint=False,
            idempotent_hint=entry.read_only or entry.repeatable,
            open_world_hint=False,
        ),
    )
