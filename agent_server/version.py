"""The version of this program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """The installed distribution's version, or ``0`` when it runs from a bare tree."""
    try:
        return installed("whystall")
    except PackageNotFoundError:
        return "0"
