"""Settings of the server and of the triage: ``[server]`` and ``[triage]``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.agent_server.settings.engines import Engine
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sections.chat import Address


class ServerSettings(Section):
    """Which parts ``whystall serve --transport http`` runs; what is not configured is off whatever stands here.

    `public_url`: where the vendors of chats reach this server, for those that fetch the pictures they show; without it
    no picture is handed out.
    `worker`: what was taken in is worked on by this process; switch it off where another one does. `calendar_token`:
    what whoever subscribes to a schedule has to know, as ``?token=`` since calendars send no headers; without one no
    schedule is shown. `keep_days`: how long ended tasks and the memory against replays are kept.
    """

    mcp: Annotated[bool, Field(description="serve MCP")] = True
    web: Annotated[bool, Field(description="take alerts, chats and news of trackers")] = True
    worker: Annotated[bool, Field(description="work on what was taken in")] = True
    public_url: Annotated[Address | None, Field(description="where vendors of chats reach this server")] = None
    calendar_token: Annotated[Secret | None, Field(description="what subscribers of a schedule have to know")] = None
    keep_days: Annotated[float, Field(ge=1, le=3650, description="days that ended tasks are kept")] = 30.0


class TriageSettings(Section):
    """How an alert's process is looked at, and how often: a flood of alerts is not to become a load of its own.

    `cooldown_s`: a process that was looked at is not looked at again so soon; `per_hour`: so many looks in all;
    `waiting`: so many may wait their turn; while there are more, the tickets of those that waited longest say that
    nobody looks.
    """

    duration: Annotated[float, Field(ge=1, le=600, description="seconds to observe")] = 12.0
    engine: Annotated[Engine, Field(description="how to observe")] = "auto"
    llm: Annotated[bool, Field(description="let the language model drive; the rules finish")] = False
    cooldown_s: Annotated[float, Field(ge=0, le=86_400, description="seconds until the same process again")] = 600.0
    per_hour: Annotated[int, Field(ge=1, le=3600, description="diagnoses in an hour")] = 30
    waiting: Annotated[int, Field(ge=1, le=100_000, description="diagnoses that may wait")] = 50
