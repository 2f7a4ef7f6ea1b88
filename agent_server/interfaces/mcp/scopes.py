"""What a bearer token permits: the scope that each request needs, and the scopes of its sender."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser

from whystall.agent_server.interfaces.mcp import apps, skills
from whystall.agent_server.interfaces.mcp.entry import Entry
from whystall.agent_server.interfaces.mcp.resources import TICKETS
from whystall.agent_server.settings.sections.access import SCOPES, Scope

# For any valid token: nothing observed is in them, and lists contain only what the token may read or call.
_OPEN = frozenset(
    {"initialize", "ping", "server/discover", "logging/setLevel", "tools/list", "prompts/list", "prompts/get"}
)
_OPEN |= {"resources/list", "resources/templates/list", "skills/list", "skills/get"}


def needed(method: str, params: Mapping[str, Any], entries: Mapping[str, Entry]) -> tuple[Scope, ...]:
    """Return the scopes that a request needs, all of them; none if any valid token suffices.

    `params` are those of the request, not validated. Unknown methods need ``observe``; unknown tools nothing, so that
    the answer says that they are unknown.
    """
    if method in _OPEN or method.startswith("notifications/"):
        return ()
    if method == "tools/call":
        entry, arguments = entries.get(str(params.get("name"))), _mapping(params.get("arguments"))
        if entry is None:
            return ()
        if entry.scope is None:
            return of_resource(arguments.get("uri"))
        drafts = entry.scope != "tickets" and arguments.get("ticket", False) not in (None, False)
        return (entry.scope, "tickets") if drafts else (entry.scope,)
    if method == "resources/read":
        return of_resource(params.get("uri"))
    if method == "completion/complete":
        return of_resource(_mapping(params.get("ref")).get("uri"))
    return ("observe",)


def of_resource(uri: Any) -> tuple[Scope, ...]:
    """Return the scopes that reading `uri` needs."""
    lower = str(uri).lower()  # however a client spells it
    if lower.startswith(TICKETS):
        return ("tickets",)
    return () if lower.startswith((skills.SCHEME, apps.SCHEME)) else ("observe",)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def granted(request: Any) -> frozenset[str]:
    """Return the scopes of the sender of an HTTP `request`; None stands for standard input, which has all."""
    if request is None:
        return frozenset(SCOPES)
    user = request.scope.get("user")
    return frozenset(user.scopes) if isinstance(user, AuthenticatedUser) else frozenset()


def permits(scopes: frozenset[str], required: Iterable[Scope]) -> bool:
    """Return whether `scopes` include all that are `required`; ``admin`` includes all."""
    return "admin" in scopes or scopes.issuperset(required)
