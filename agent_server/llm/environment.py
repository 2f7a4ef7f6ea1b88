"""Whether anything about a model is set, asked without importing what reads it."""

from __future__ import annotations

import os

PREFIX = "WHYSTALL_LLM_"
"""Every setting is a variable that begins so."""


def variables() -> list[str]:
    """Names of the settings that are there, sorted; empty ones do not count."""
    return sorted(name for name, value in os.environ.items() if value and name.upper().startswith(PREFIX))
