"""The section ``[tickets]``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.section import Section


class TicketsSettings(Section):
    """`sinks`: trackers that tickets are synchronised with if their receiver names none; `lang`: language of the
    tickets there.
    """

    sinks: Annotated[list[Name], Field(max_length=20)] = Field(default_factory=list)
    lang: Literal["en", "zh"] = "en"
