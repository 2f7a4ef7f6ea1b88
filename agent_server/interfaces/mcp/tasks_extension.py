"""The Tasks extension ``io.modelcontextprotocol/tasks``: a long call is answered with a task that the client polls.

Specification: ``specification/2026-07-28/tasks.md`` of github.com/modelcontextprotocol/ext-tasks (SEP-2663). It belongs
to the stateless protocol: the wire of earlier versions cannot carry its results, so there the methods do not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Literal

import mcp_types as types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from whystall.agent_server.interfaces.mcp.tasks import TaskRunner
from whystall.agent_server.journal.client_tasks import TTL_S, ClientTask
from whystall.tools.contract.errors import ErrorCode, ToolError

TASKS = "io.modelcontextprotocol/tasks"
INTERRUPTED = "interrupted: the server stopped while the call ran (repeat the call)"
_POLL_MS = 3000
_LISTENED = 64  # tasks of one subscription
_LISTENERS = 64  # subscriptions at a time
_Context = ServerRequestContext[Any, Any]


class TaskParams(types.RequestParams):
    """Parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str = Field(max_length=200)


class UpdateParams(TaskParams):
    """Parameters of ``tasks/update``."""

    input_responses: dict[str, Any]


class TaskNotification(types.Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """The state of a task, as ``tasks/get`` returns it."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class TasksExtension:
    """Serves the methods of the extension on `server`."""

    def __init__(self, server: Server[Any], tasks: TaskRunner) -> None:
        self._server = server
        self._tasks = tasks
        self._listeners = 0
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)
        server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen)
        server.add_request_handler("server/discover", types.RequestParams, self._discover)

    async def _get(self, ctx: _Context, params: TaskParams) -> dict[str, Any]:
        _check(ctx, params)
        return _detailed(_found(self._tasks.get, params.task_id))

    async def _update(self, ctx: _Context, params: UpdateParams) -> dict[str, Any]:
        """Acknowledge; no task asks for input, and responses that were not asked for are to be ignored."""
        _check(ctx, params)
        _found(self._tasks.get, params.task_id)
        return {}

    async def _cancel(self, ctx: _Context, params: TaskParams) -> dict[str, Any]:
        """Acknowledge, also for a task that has ended: the client could not know."""
        _check(ctx, params)
        _found(self._tasks.cancel, params.task_id)
        return {}

    async def _listen(
        self, ctx: _Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Send notifications of the named tasks until all have ended. There are no others."""
        asked = (params.notifications.model_extra or {}).get("taskIds")
        if asked is not None:
            require_tasks(ctx)
            if not isinstance(asked, list) or len(asked) > _LISTENED or not all(isinstance(id, str) for id in asked):
                raise MCPError(types.INVALID_PARAMS, f"taskIds is a list of at most {_LISTENED} ids")
        if self._listeners >= _LISTENERS:
            raise MCPError(types.INTERNAL_ERROR, f"{_LISTENERS} subscriptions are open; poll tasks/get")
        meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        known = [id for id in dict.fromkeys(asked or ()) if self._known(id)]
        honoured = types.SubscriptionFilter.model_validate({"taskIds": known} if known else {})
        acknowledged = types.SubscriptionsAcknowledgedNotificationParams(notifications=honoured, _meta=meta)
        notification = types.SubscriptionsAcknowledgedNotification(params=acknowledged)
        await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

        async def send(task: ClientTask) -> None:
            changed: Any = TaskNotification(params=_detailed(task) | {"_meta": meta})
            await ctx.session.send_notification(changed, related_request_id=ctx.request_id)

        self._listeners += 1
        try:
            await self._tasks.follow(known, send)
        except ToolError as error:
            raise _protocol_error(error) from None
        finally:
            self._listeners -= 1
        return types.SubscriptionsListenResult(_meta=meta)

    def _known(self, id: str) -> bool:
        try:
            self._tasks.get(id)
        except ToolError:
            return False
        return True

    async def _discover(self, _ctx: _Context, _params: types.RequestParams) -> types.DiscoverResult:
        """Declare the extension; unlike the SDK's own handler, no notifications but those of tasks."""
        extensions = {**self._server.extensions, TASKS: {}}
        return types.DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=self._server.get_capabilities(extensions=extensions),
            instructions=self._server.instructions,
        )


def declares_tasks(ctx: _Context) -> bool:
    """Return whether the client of this request can handle tasks; what it declared earlier does not count."""
    capabilities = ctx.session.client_capabilities
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in (
        (capabilities and capabilities.extensions) or {}
    )


def created(task: ClientTask) -> dict[str, Any]:
    """Return the ``CreateTaskResult`` that answers a call."""
    return {"resultType": "task", **_described(task)}


def require_tasks(ctx: _Context) -> None:
    """Refuse a request of an earlier protocol version, or of a client that does not declare the extension."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
    if not declares_tasks(ctx):
        missing: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", missing)


def _check(ctx: _Context, params: TaskParams) -> None:
    """Refuse a request as `require_tasks` does, or whose header ``Mcp-Name``, by which proxies route, names another
    task. Clients must send the header; its absence is accepted, since those of the SDK send none for tasks.
    """
    require_tasks(ctx)
    named = None if ctx.request is None else ctx.request.headers.get(MCP_NAME_HEADER)
    if named is not None and decode_header_value(named.strip()) != params.task_id:
        raise MCPError(types.HEADER_MISMATCH, "the header Mcp-Name names another task than taskId")


def _found(act: Callable[[str], Any], id: str) -> Any:
    try:
        return act(id)
    except ToolError as error:
        raise _protocol_error(error) from None


def _protocol_error(error: ToolError) -> MCPError:
    code = types.INVALID_PARAMS if error.code is ErrorCode.NOT_FOUND else types.INTERNAL_ERROR
    return MCPError(code=code, message=str(error))


def _described(task: ClientTask) -> dict[str, Any]:
    """Return the ``Task`` of the specification."""
    described = {
        "taskId": task.id,
        "status": "failed" if task.state == "interrupted" else task.state,
        "createdAt": _stamp(task.created),
        "lastUpdatedAt": _stamp(task.updated),
        "ttlMs": TTL_S * 1000,
        "pollIntervalMs": _POLL_MS,
    }
    return described | ({"statusMessage": task.step} if task.step else {})


def _detailed(task: ClientTask) -> dict[str, Any]:
    """Return the ``DetailedTask``. A tool that failed has completed: ``failed`` is for errors of the protocol."""
    if task.state == "completed":
        return _described(task) | {"result": task.outcome}
    if task.state in ("failed", "interrupted"):
        error = task.outcome or {"code": types.INTERNAL_ERROR, "message": INTERRUPTED}
        return _described(task) | {"error": error, "statusMessage": error["message"]}
    return _described(task)


def _stamp(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
