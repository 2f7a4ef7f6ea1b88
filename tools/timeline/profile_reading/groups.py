"""Groups of ranks in profiles, and the reading of their fields without trust.

Numbers come as numbers or as text, lists of ranks as lists or as text, and from a damaged or hostile file as anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from whystall.tools.contract.text import clean
from whystall.tools.timeline.profile_reading.numbers import whole_of

RANK_LIMIT = 1 << 20
"""Limit of ranks in a job. The largest published job has a tenth of it."""

ELEMENT_LIMIT = 1 << 53
"""Limit of a message's elements. Beyond it JSON's numbers are not exact, and no memory holds it."""

_NUMBERS = re.compile(r"\[\s*(?:[0-9]{1,9}\s*(?:,\s*[0-9]{1,9}\s*)*)?\]")
_TEXT_LIMIT = 8 << 20  # a list of all ranks as text


@dataclass(frozen=True)
class Group:
    """One process group; `ranks` ascending, empty when not known, `size` -1 unknown."""

    key: str
    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    size: int = -1
    backend: str = ""


def ranks_of(value: object) -> tuple[int, ...] | None:
    """Return the ranks of a list or of the text of one, ascending; None when it is something else, or is cut short."""
    if isinstance(value, str):
        if len(value) > _TEXT_LIMIT or not _NUMBERS.fullmatch(value.strip()):
            return None
        value = [int(part) for part in value.strip(" []\t\r\n").split(",") if part.strip()]
    if not isinstance(value, list) or len(value) > RANK_LIMIT:
        return None
    if not all(type(rank) is int and 0 <= rank < 2**31 for rank in value):
        return None
    return tuple(sorted(set(value)))


def number(value: object, limit: int = 2**63 - 1) -> int:
    """Return a number given as one or as text; -1 when it is none, negative or beyond `limit`."""
    found = value if type(value) is int else whole_of(value)
    return found if 0 <= found <= limit else -1


def text(value: object) -> str:
    """Return a name given as text or number, escaped; empty when it is something else."""
    return clean(str(value)) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
