"""The answer to one chat message, before it is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.journal.observation_requests import ObservationRequest

Act = Callable[[], Outgoing]


@dataclass(frozen=True)
class Turn:
    """`act` is called within a transaction: it returns the answer and stores the changes that the answer reports.

    `request`: the investigation that the caller must run if there is no background worker.
    """

    act: Act
    request: ObservationRequest | None = None
