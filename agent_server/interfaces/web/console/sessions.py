"""Sessions of people in browsers. They are in memory, so that no token is stored; a restart of the server ends them."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server.auth.provider import AccessToken

    from whystall.agent_server.interfaces.mcp.tokens import Tokens

LONGEST_S = 12 * 3600.0
"""A session ends so long after its login, and earlier with its token."""
IDLE_S = 3600.0
"""A session that is not used for so long ends."""
_MOST = 1000
_LONE = "whystall"  # the client of the token of the command line


@dataclass
class Session:
    """Somebody who has logged in with `token`. `csrf`: must come with each change. Times are seconds of `clock`."""

    token: str
    csrf: str
    began: float
    used: float

    def proves(self, csrf: str) -> bool:
        """Return whether a form is one of this session's pages."""
        return hmac.compare_digest(csrf.encode("utf-8", "surrogateescape"), self.csrf.encode())


class Sessions:
    """The sessions of one server. `clock`: returns monotonic seconds."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock = clock
        self._known: dict[str, Session] = {}

    async def begin(self, token: str) -> tuple[str, AccessToken] | None:
        """Return the id of a new session and what `token` grants; None if it is not valid.

        Raises `AuthenticationError` if the issuer's keys cannot be fetched. Beyond 1,000 sessions the one that was
        unused longest ends.
        """
        access = await self._tokens.verify_token(token)
        if access is None:
            return None
        now = self._clock()
        self._forget(now)
        id = secrets.token_urlsafe(32)
        self._known[id] = Session(token, secrets.token_urlsafe(32), now, now)
        return id, access

    async def find(self, id: str) -> tuple[Session, AccessToken] | None:
        """Return the session `id` and what its token grants now; None if it has ended, or its token is not valid any
        more, which ends it. Raises as `begin`.
        """
        session, now = self._known.get(id), self._clock()
        if session is None:
            return None
        access = None if self._over(session, now) else await self._tokens.verify_token(session.token)
        if access is None:
            self.end(id)
            return None
        session.used = now
        return session, access

    def end(self, id: str) -> None:
        """End the session `id`, if there is one."""
        self._known.pop(id, None)

    def _forget(self, now: float) -> None:
        self._known = {id: one for id, one in self._known.items() if not self._over(one, now)}
        while len(self._known) >= _MOST:
            del self._known[min(self._known, key=lambda id: self._known[id].used)]

    @staticmethod
    def _over(session: Session, now: float) -> bool:
        return now - session.began > LONGEST_S or now - session.used > IDLE_S


def actor(access: AccessToken) -> str:
    """Return the name of a token for audit lines and tickets: ``token:NAME``, or ``oauth:SUBJECT``."""
    if access.claims:
        return f"oauth:{access.subject or access.client_id}"
    return "token:of the command line" if access.client_id == _LONE else access.client_id
