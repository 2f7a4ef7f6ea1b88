"""All settings, made of their sections."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.sections.access import AccessSettings
from whystall.agent_server.settings.sections.alerts import AlertsSettings
from whystall.agent_server.settings.sections.chat import ChannelSettings
from whystall.agent_server.settings.sections.embeddings import EmbeddingsSettings
from whystall.agent_server.settings.sections.fleet import FleetSettings
from whystall.agent_server.settings.sections.llm import LlmSettings
from whystall.agent_server.settings.sections.metrics import MetricsSettings
from whystall.agent_server.settings.sections.oncall import OncallSettings, Person
from whystall.agent_server.settings.sections.otlp import OtlpSettings
from whystall.agent_server.settings.sections.profiles import ProfilesSettings
from whystall.agent_server.settings.sections.reports import ReportsSettings
from whystall.agent_server.settings.sections.server import ServerSettings, TriageSettings
from whystall.agent_server.settings.sections.tickets import TicketsSettings
from whystall.agent_server.settings.sections.trackers import SinkSettings
from whystall.agent_server.settings.sections.watch import WatchSettings
from whystall.agent_server.settings.sources import RawSettings

_MANY = 10_000


class SettingsBase(BaseSettings):
    """Settings validated from `RawSettings`, which holds file and variables already."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    _raw: RawSettings = PrivateAttr(default_factory=lambda: RawSettings(None, {}))

    @property
    def raw(self) -> RawSettings:
        """The values as given, with their origins."""
        return self._raw

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the values given to the constructor; `sources` has stricter rules for variables."""
        assert isinstance(init_settings, InitSettingsSource)  # noqa: S101
        return (init_settings,)


class Settings(SettingsBase):
    """The settings file, overridden by variables. A feature without a section is off.

    `llm` and `embeddings` are validated separately, by `load.load_llm` and `load.load_embeddings`: an unusable model
    does not prevent the rest.
    """

    server: ServerSettings = ServerSettings()
    access: AccessSettings = AccessSettings()
    triage: TriageSettings = TriageSettings()
    tickets: TicketsSettings = TicketsSettings()
    alerts: AlertsSettings = AlertsSettings()
    oncall: OncallSettings = OncallSettings()
    users: Annotated[dict[Name, Person], Field(max_length=_MANY)] = Field(default_factory=dict)
    sinks: Annotated[dict[Name, SinkSettings], Field(max_length=100)] = Field(default_factory=dict)
    chat: Annotated[dict[Name, ChannelSettings], Field(max_length=100)] = Field(default_factory=dict)
    fleet: FleetSettings = FleetSettings()
    reports: ReportsSettings = ReportsSettings()
    watch: WatchSettings = WatchSettings()
    metrics: MetricsSettings = MetricsSettings()
    otlp: OtlpSettings = OtlpSettings()
    profiles: ProfilesSettings = ProfilesSettings()
    llm: dict[str, Any] = Field(default_factory=dict, repr=False)
    embeddings: dict[str, Any] = Field(default_factory=dict, repr=False)


class LlmTable(SettingsBase):
    """The section ``llm`` alone."""

    llm: LlmSettings


class EmbeddingsTable(SettingsBase):
    """The section ``embeddings`` alone."""

    embeddings: EmbeddingsSettings
