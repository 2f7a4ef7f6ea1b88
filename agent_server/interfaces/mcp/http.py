"""MCP over streamable HTTP: loopback by default, and always with a bearer token (OAuth 2.0, RFC 6750 and 9728)."""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, BearerAuthBackend
from mcp.server.auth.routes import build_resource_metadata_url, create_protected_resource_routes
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import (
    DEFAULT_MAX_REQUEST_BODY_SIZE,
    RequestBodyLimitMiddleware,
    TransportSecuritySettings,
)
from pydantic import AnyHttpUrl, ConfigDict, TypeAdapter
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from whystall.agent_server.interfaces.mcp.scopes import permits
from whystall.agent_server.interfaces.mcp.tokens import Tokens
from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.sections.access import SCOPES, AccessSettings, Scope
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Send
    from starlette.types import Scope as Connection

    from whystall.agent_server.interfaces.mcp.server import McpServer

PATH = "/mcp"
METADATA = "/.well-known/oauth-protected-resource"
TOKEN_VARIABLE = "WHYSTALL_TOKEN"  # noqa: S105  a name, not a token
_SHORTEST_TOKEN = 16
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_UNREADY_S = 30
# Clients compare an issuer's address as text (RFC 8414): no slash may be added.
_URL = TypeAdapter(AnyHttpUrl, config=ConfigDict(url_preserve_empty_path=True))
_Needed = Callable[[str, Mapping[str, Any]], "tuple[Scope, ...]"]


def choose_token(
    host: str, token: str | None, token_file: Path | None, others: bool = False
) -> tuple[str | None, bool]:
    """Return the token that clients may send for everything, and whether it was generated here and must be shown.

    An explicit one comes from `token_file`, the environment (``WHYSTALL_TOKEN``) or `token`, in this order. If there is
    none and the settings name `others`, it is None. Raises `ToolError` (bad_argument) when it is too short, and, where
    `host` is not loopback, when none is given or every user of this machine can read `token_file`.
    """
    if token_file is not None:
        try:
            with token_file.open(encoding="utf-8") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & stat.S_IROTH and not is_loopback(host):
                    message = f"every user can read {token_file} (mode {mode:04o})"
                    raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"chmod 600 {token_file}")
                chosen = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ToolError(ErrorCode.IO_ERROR, f"cannot read {token_file}: {error}", "give a readable file") from None
    else:
        chosen = os.environ.get(TOKEN_VARIABLE) or token or ""
        if not chosen and others:
            return None, False
        if not chosen and is_loopback(host):
            return secrets.token_urlsafe(32), True
    if not chosen and token_file is None:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"{host!r} can be reached by others, and no token is given",
            f"set {TOKEN_VARIABLE}, --token-file or [access] in the settings, or bind to 127.0.0.1",
        )
    if len(chosen) < _SHORTEST_TOKEN or not chosen.isascii() or not chosen.isprintable() or " " in chosen:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"a token is at least {_SHORTEST_TOKEN} printable ASCII characters without spaces",
            "make one with `openssl rand -base64 32`",
        )
    return chosen, False


def http_app(
    mcp_server: McpServer,
    host: str,
    token: str | None,
    names: Sequence[str] = (),
    access: AccessSettings | None = None,
) -> Starlette:
    """Return the ASGI application, which accepts `token` and those of `access`.

    Requests must name this host (`host`, `names`, that of `access`, loopback), against DNS rebinding. Raises
    `ToolError` (bad_argument) as `Tokens` does.
    """
    access = access or AccessSettings()
    own = urlsplit(access.url or "").hostname
    literal = f"[{host}]" if ":" in host else host
    known = list(dict.fromkeys((*_LOOPBACK, literal, socket.gethostname(), *names, *([own] if own else []))))
    manager = StreamableHTTPSessionManager(
        mcp_server.server,
        security_settings=TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=[form for name in known for form in _forms(name)],
            allowed_origins=[
                form for name in known for scheme in ("http", "https") for form in _forms(f"{scheme}://{name}")
            ],
        ),
    )
    metadata, routes = None, []
    if access.issuer is not None:
        resource = _URL.validate_python(access.url)
        metadata = str(build_resource_metadata_url(resource))
        issuers = [_URL.validate_python(access.issuer.url)]
        routes = create_protected_resource_routes(resource, issuers, list(SCOPES), resource_name="whystall")
        routes.append(Route(METADATA, endpoint=routes[0].endpoint, methods=["GET", "OPTIONS"]))
    inner = RequireScope(StreamableHTTPASGIApp(manager), mcp_server.needed, metadata)
    tokens = BearerAuthBackend(Tokens(token, access))
    return Starlette(
        routes=[Route(PATH, endpoint=inner), *routes],
        # the second lets tasks know their client
        middleware=[
            Middleware(AuthenticationMiddleware, backend=tokens, on_error=_unready),
            Middleware(AuthContextMiddleware),
        ],
        lifespan=lambda _app: manager.run(),
    )


def _forms(name: str) -> tuple[str, str]:
    """Return `name` without and with any port."""
    return name, f"{name}:*"


def _unready(_connection: HTTPConnection, _error: Exception) -> Response:
    return JSONResponse({"error": "unready"}, status_code=503, headers={"Retry-After": str(_UNREADY_S)})


class RequireScope:
    """Answers 401 to a request without a valid token, and 403 if the token lacks a scope that the request `needs`.

    The headers of RFC 6750 lead clients to `metadata`, the address of the document of RFC 9728, if there is an issuer.
    """

    def __init__(self, app: ASGIApp, needs: _Needed, metadata: str | None) -> None:
        self._app = app
        self._needs = needs
        self._metadata = metadata
        self._limited = RequestBodyLimitMiddleware(self._checked, DEFAULT_MAX_REQUEST_BODY_SIZE)

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not isinstance(connection.get("user"), AuthenticatedUser):
            presented = any(name == b"authorization" for name, _ in connection["headers"])
            answer = self._refusal(
                401, "invalid_token" if presented else "", "a valid bearer token is required", "observe"
            )
            await answer(connection, receive, send)
        elif connection["method"] == "POST":
            await self._limited(connection, receive, send)
        else:
            await self._app(connection, receive, send)

    async def _checked(self, connection: Connection, receive: Receive, send: Send) -> None:
        first = await receive()  # with the whole body
        required = self._required(first.get("body", b""))
        if not permits(frozenset(connection["user"].scopes), required):
            scope = " ".join(required)
            answer = self._refusal(403, "insufficient_scope", f"this needs a token for {scope}", scope)
            await answer(connection, receive, send)
            return
        pending: list[Message] = [first]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(connection, replay, send)

    def _required(self, body: bytes) -> tuple[Scope, ...]:
        """Return the scopes that the request in `body` needs; none for what is no request: it is refused further on."""
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            return ()
        method, params = (message.get("method"), message.get("params")) if isinstance(message, dict) else (None, None)
        return self._needs(method, params if isinstance(params, dict) else {}) if isinstance(method, str) else ()

    def _refusal(self, status: int, error: str, text: str, scope: str) -> Response:
        given = {"error": error, "error_description": text if error else "", "scope": scope}
        given["resource_metadata"] = self._metadata or ""
        challenge = ", ".join(f'{name}="{value}"' for name, value in given.items() if value)
        body = {"error": error or "unauthorised", "error_description": text}
        return JSONResponse(body, status_code=status, headers={"WWW-Authenticate": f"Bearer {challenge}"})
