"""MCP over streamable HTTP: loopback by default, and always with a bearer token."""

from __future__ import annotations

import os
import secrets
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl

from whystall.agent_server.settings.loopback import is_loopback
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from whystall.agent_server.interfaces.mcp.server import McpServer

PATH = "/mcp"
TOKEN_VARIABLE = "WHYSTALL_TOKEN"  # noqa: S105  a name, not a token
_SHORTEST_TOKEN = 16
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class BearerToken:
    """Accepts one token, compared in constant time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return what the token grants, or None."""
        if not secrets.compare_digest(token.encode(), self._token):
            return None
        return AccessToken(token=token, client_id="whystall", scopes=[])


def choose_token(host: str, token: str | None, token_file: Path | None) -> tuple[str, bool]:
    """Return the token that clients must send, and whether it was generated here and must be shown.

    An explicit one comes from `token_file`, the environment (``WHYSTALL_TOKEN``) or `token`, in this order. Raises
    `ToolError` (bad_argument) when it is too short, and, where `host` is not loopback, when none is given or every
    user of this machine can read `token_file`.
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
        if not chosen and is_loopback(host):
            return secrets.token_urlsafe(32), True
    if not chosen and token_file is None:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"{host!r} can be reached by others, and no token is given",
            f"set {TOKEN_VARIABLE} or --token-file, or bind to 127.0.0.1",
        )
    if len(chosen) < _SHORTEST_TOKEN or not chosen.isascii() or not chosen.isprintable() or " " in chosen:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"a token is at least {_SHORTEST_TOKEN} printable ASCII characters without spaces",
            "make one with `openssl rand -base64 32`",
        )
    return chosen, False


def http_app(mcp_server: McpServer, host: str, token: str, names: Sequence[str] = ()) -> Starlette:
    """Return the ASGI application; requests must name this host (`host`, `names`, loopback), against DNS rebinding."""
    literal = f"[{host}]" if ":" in host else host
    known = list(dict.fromkeys((*_LOOPBACK, literal, socket.gethostname(), *names)))
    return mcp_server.server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        auth=AuthSettings(issuer_url=AnyHttpUrl("http://localhost"), resource_server_url=None),
        token_verifier=BearerToken(token),
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=[form for name in known for form in (name, f"{name}:*")],
            allowed_origins=[form for name in known for form in (f"http://{name}", f"http://{name}:*")],
        ),
    )
