"""All settings, of their sections."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.section import SettingsBase
from whystall.agent_server.settings.sections.alerts import AlertsSettings
from whystall.agent_server.settings.sections.chat import ChannelSettings
from whystall.agent_server.settings.sections.oncall import OncallSettings, Person
from whystall.agent_server.settings.sections.server import ServerSettings, TriageSettings
from whystall.agent_server.settings.sections.tickets import TicketsSettings
from whystall.agent_server.settings.sections.trackers import SinkSettings

_MANY = 10_000


class Settings(SettingsBase):
    """The settings file, with variables over it. Whatever has no section is off.

    `llm` is validated separately, by `load.load_llm`: an unusable model does not prevent the rest.
    """

    server: ServerSettings = ServerSettings()
    triage: TriageSettings = TriageSettings()
    tickets: TicketsSettings = TicketsSettings()
    alerts: AlertsSettings = AlertsSettings()
    oncall: OncallSettings = OncallSettings()
    users: Annotated[dict[Name, Person], Field(max_length=_MANY)] = Field(default_factory=dict)
    sinks: Annotated[dict[Name, SinkSettings], Field(max_length=100)] = Field(default_factory=dict)
    chat: Annotated[dict[Name, ChannelSettings], Field(max_length=100)] = Field(default_factory=dict)
    llm: dict[str, Any] = Field(default_factory=dict, repr=False)
