"""The base class of the sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the settings file. Unknown names are refused, as they are misspelt settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
