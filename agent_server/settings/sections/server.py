"""The sections ``[server]`` and ``[triage]``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.agent_server.settings.engines import Engine
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sections.chat import Address


class ServerSettings(Section):
    """The parts that ``whystall serve --transport http`` runs; an unconfigured feature stays off.

    `console`: off where MCP is off, too.
    `public_url`: this server's address for chat vendors that fetch pictures; without it no pictures are served.
    `worker`: this process works on what was received; switch it off if another one does. `calendar_token`: required to
    subscribe to a schedule, as ``?token=`` since calendars send no headers; without it no schedule is served.
    `keep_days`: how long ended tasks and the keys of handled requests are kept.
    """

    mcp: Annotated[bool, Field(description="serve MCP")] = True
    console: Annotated[bool, Field(description="serve the console, pages for people, beside MCP")] = True
    web: Annotated[bool, Field(description="take alerts, chats and news of trackers")] = True
    worker: Annotated[bool, Field(description="work on what was taken in")] = True
    public_url: Annotated[Address | None, Field(description="where vendors of chats reach this server")] = None
    calendar_token: Annotated[Secret | None, Field(description="what subscribers of a schedule have to know")] = None
    keep_days: Annotated[float, Field(ge=1, le=3650, description="days that ended tasks are kept")] = 30.0


class TriageSettings(Section):
    """Limits of the observations that alerts cause, as a flood of alerts must not become a load.

    `cooldown_s`: seconds until the same process is observed again; `per_hour`: observations of all processes;
    `waiting`: longest queue; beyond it the tickets that waited longest report that nothing was observed.
    """

    duration: Annotated[float, Field(ge=1, le=600, description="seconds to observe")] = 12.0
    engine: Annotated[Engine, Field(description="how to observe")] = "auto"
    llm: Annotated[bool, Field(description="let the language model drive; the rules finish")] = False
    cooldown_s: Annotated[float, Field(ge=0, le=86_400, description="seconds until the same process again")] = 600.0
    per_hour: Annotated[int, Field(ge=1, le=3600, description="diagnoses in an hour")] = 30
    waiting: Annotated[int, Field(ge=1, le=100_000, description="diagnoses that may wait")] = 50
