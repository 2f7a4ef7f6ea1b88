"""What every section of the settings is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the settings file. Unknown names are refused: a word mistyped is a setting that is not made."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
