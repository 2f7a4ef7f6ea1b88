"""The answer to one chat message, before it is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.journal.observation_requests import ObservationRequest

Act = Callable[[], Outgoing]


@dataclass(frozen=True)
class Turn:
    """`act` is called within a transaction: it makes the answer, and stores what the answer reports.

    `look`: the investigation that the caller has to run itself, where no background worker does.
    """

    act: Act
    look: ObservationRequest | None = None
