"""The section ``[tickets]``: what is done with every ticket."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.section import Section


class TicketsSettings(Section):
    """`sinks`: trackers that every ticket is kept in step with, where its receiver names none; `lang`: language of the
    tickets there.
    """

    sinks: Annotated[list[Name], Field(max_length=20)] = Field(default_factory=list)
    lang: Literal["en", "zh"] = "en"
