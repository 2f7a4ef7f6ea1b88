"""``[reports]``: the hosts that report their tickets to this server, the centre. Off without a token."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section

_MANY = 20_000


class ReportsSettings(Section):
    """Who may report. `token`: of every host without one of its own; such a host could report in the name of another
    one. `tokens`: by host.
    """

    token: Secret | None = None
    tokens: Annotated[dict[Name, Secret], Field(max_length=_MANY)] = Field(default_factory=dict)

    @property
    def on(self) -> bool:
        """Whether any host may report."""
        return self.token is not None or bool(self.tokens)

    def token_of(self, host: str) -> Secret | None:
        """Return the token that `host` must know."""
        return self.tokens.get(host, self.token)
