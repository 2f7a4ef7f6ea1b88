"""To whom a person may assign a ticket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings


def known_users(users: Sequence[str], settings: Settings) -> list[str]:
    """Return `users` with groups expanded. Raises `ToolError` (bad_argument) for unknown users."""
    named = settings.oncall.expanded(list(users))
    wrong = [name for name in named if settings.users and name not in settings.users]
    if wrong or not named or not all(name.strip() for name in named):
        valid = ", ".join([*settings.users, *settings.oncall.groups])
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"no user is called {(wrong or [''])[0]!r}", f"valid: {valid}")
    return named
