"""Names that users choose in the settings: of users, schedules, trackers, chats."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "a name is at most 64 letters from A to Z, digits, _, - and ., and begins with none of the last"
        )
    return name


Name = Annotated[str, AfterValidator(_plain)]
"""Letters, digits, ``_``, ``-`` and ``.``: it stands in addresses, in codes such as ``rotation:NAME``, in tables of
TOML and, in capitals with ``_`` for what else it holds, in names of variables.
"""
