"""Names that a settings file gives to things of its own: users, schedules, trackers, chats."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]
"""Letters, digits, ``_``, ``-`` and ``.``: it stands in addresses, in codes such as ``rotation:NAME``, in tables of
TOML and, in capitals with ``_`` for what else it holds, in names of variables.
"""
