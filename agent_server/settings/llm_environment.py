"""Whether anything about a model is set, asked without importing what reads it.

Every setting is a variable ``WHYSTALL_LLM_<FIELD>``, or stands in the table ``[llm]`` of the settings file, which
``WHYSTALL_LLM__<FIELD>`` lies over as over every other table; the variable with one ``_`` goes over both.
"""

from __future__ import annotations

import os
from typing import Any

PREFIX = "WHYSTALL_LLM_"
"""Every setting is a variable that begins so."""


def variables() -> list[str]:
    """Names of the settings that are there, sorted; empty ones do not count, nor those that belong to the file."""
    upper = {name: name.upper() for name, value in os.environ.items() if value}
    return sorted(n for n, name in upper.items() if name.startswith(PREFIX) and not name.startswith(f"{PREFIX}_"))


def written() -> dict[str, Any]:
    """The table ``[llm]`` of the settings file, unchecked; `ToolError` (bad_argument) where the file cannot be read."""
    from whystall.agent_server.settings.sources import table

    return table("llm")
