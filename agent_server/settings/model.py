"""All settings. Every section lives in the room that it is about; this only puts them together."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.sections.alerts import AlertsSettings
from whystall.agent_server.settings.sections.chat import ChannelSettings
from whystall.agent_server.settings.sections.oncall import OncallSettings, Person
from whystall.agent_server.settings.sections.server import ServerSettings, TriageSettings
from whystall.agent_server.settings.sections.tickets import TicketsSettings
from whystall.agent_server.settings.sections.trackers import SinkSettings
from whystall.agent_server.settings.sources import Given

_MANY = 10_000


class Settings(BaseSettings):
    """What the settings file says, with the variables laid over it. Without either, everything it is about is off.

    `llm` is only the table of the file: `llm.settings.load_settings` makes the model's settings of it, which may be
    all variables.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    server: ServerSettings = ServerSettings()
    triage: TriageSettings = TriageSettings()
    tickets: TicketsSettings = TicketsSettings()
    alerts: AlertsSettings = AlertsSettings()
    oncall: OncallSettings = OncallSettings()
    users: Annotated[dict[Name, Person], Field(max_length=_MANY)] = Field(default_factory=dict)
    sinks: Annotated[dict[Name, SinkSettings], Field(max_length=100)] = Field(default_factory=dict)
    chat: Annotated[dict[Name, ChannelSettings], Field(max_length=100)] = Field(default_factory=dict)
    llm: dict[str, Any] = Field(default_factory=dict, repr=False)

    _given: Given = PrivateAttr(default_factory=lambda: Given(None, {}))

    @property
    def given(self) -> Given:
        """Where it came from."""
        return self._given

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What `load` read, and nothing else: it has laid our variables over the file, under their stricter rules."""
        assert isinstance(init_settings, InitSettingsSource)  # noqa: S101
        return (init_settings,)
