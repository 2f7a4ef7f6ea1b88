"""The version of this program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """Return the installed distribution's version; ``0`` when run from a bare tree."""
    try:
        return installed("whystall")
    except PackageNotFoundError:
        return "0"
