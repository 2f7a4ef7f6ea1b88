"""HTTP connections on which nothing comes of a request: uvicorn waits for a request's head without end, and whoever
opens enough of them shuts the door for everybody.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""So long the head of a request may take, from the connection or its first byte on."""
UNFINISHED = 256
"""Connections that may be without a whole request at once; for each one more, the oldest of them is closed: who means
it sends a request as soon as it is connected. Half of what the server takes in all (`http_server`).
"""
_UNDER_WAY = (h11.IDLE, h11.SEND_BODY)


class Patience(H11Protocol):
    """uvicorn's protocol, with an end of its patience for heads; bodies have their bounds in the routes."""

    _ending: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > UNFINISHED:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """A head that is whole ends the waiting; the first byte of the next one begins it again."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._ending is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """Close the connection that has been without a whole request for longest, where there are too many such."""
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
