"""Limits for connections without a complete request: uvicorn waits forever for a request's head, so many open
connections would block the server.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds for the head of a request, from the connection or its first byte."""
UNFINISHED = 256
"""Connections without a complete request; beyond that the oldest is closed. Half of `http_server`'s limit."""
_UNDER_WAY = (h11.IDLE, h11.SEND_BODY)


class Patience(H11Protocol):
    """uvicorn's protocol with a timeout for request heads; bodies have their limits in the routes."""

    _ending: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > UNFINISHED:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """End the timeout when a head is complete; restart it at the first byte of the next one."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._ending is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._stop()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """Close the connection that has been incomplete longest, if there are too many."""
        known = [one for one in self.connections if isinstance(one, Patience)]
        unfinished = [one for one in known if one.conn.their_state in _UNDER_WAY and not one.transport.is_closing()]
        if len(unfinished) > UNFINISHED:
            min(unfinished, key=lambda one: one._since).transport.close()

    def _wait(self) -> None:
        self._since = self.loop.time()
        self._ending = self.loop.call_later(HEAD_S, self._end)

    def _stop(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _end(self) -> None:
        self._ending = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
