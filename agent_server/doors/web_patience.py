"""HTTP connections on which nothing comes of a request: uvicorn waits for a request's head without end."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""So long the head of a request may take, from the connection or its first byte on."""


class Patience(H11Protocol):
    """uvicorn's protocol, with an end of its patience for heads; bodies have their bounds in the routes."""

    _ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head."""
        super().connection_made(transport)
        self._wait()

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

    def _wait(self) -> None:
        self._ending = self.loop.call_later(HEAD_S, self._end)

    def _stop(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _end(self) -> None:
        self._ending = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
