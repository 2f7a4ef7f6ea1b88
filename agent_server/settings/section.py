"""Base classes of the settings and of their sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, PrivateAttr
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from whystall.agent_server.settings.sources import RawSettings


class Section(BaseModel):
    """A table of the settings file. Unknown names are refused, as they are misspelt settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


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
