"""One accelerator as a vendor's program states it, and the numbers in such output. Pure."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from typing import Any

MOST_CARDS = 256
UNKNOWN = -1
_NUMBER = re.compile(r"\s*(-?\d{1,15}(?:\.\d{1,6})?)")


@dataclass
class Card:
    """A row of the table ``card_state.cards``; -1 and empty: not stated.

    `health`: the vendor's word; `throttle`: why it is slowed down, `none` if the program states that it is not.
    `link_errors`: of xGMI, since the count was last read.
    """

    vendor: str
    number: int
    chip: int = 0
    device: str = ""
    model: str = ""
    health: str = ""
    throttle: str = ""
    temperature_c: int = UNKNOWN
    power_mw: int = UNKNOWN
    busy_pct: int = UNKNOWN
    memory_used_bytes: int = UNKNOWN
    memory_bytes: int = UNKNOWN
    ecc_corrected: int = UNKNOWN
    ecc_uncorrected: int = UNKNOWN
    pcie_width: int = UNKNOWN
    pcie_width_max: int = UNKNOWN
    pcie_mts: int = UNKNOWN
    pcie_mts_max: int = UNKNOWN
    link_errors: int = UNKNOWN

    def row(self) -> tuple[object, ...]:
        """Return it in the order of the table's columns."""
        return astuple(self)

    def filled(self, other: Card) -> Card:
        """Return it with what only `other` states of the same card."""
        mine, theirs = self.row(), other.row()
        return Card(*(b if a in (UNKNOWN, "") else a for a, b in zip(mine, theirs, strict=True)))  # type: ignore[arg-type]


def number(value: Any, scale: float = 1.0) -> int:
    """Return a value such as ``45``, ``"45.0"``, ``"16 GT/s"`` or ``{"value": 158, "unit": "W"}``, times `scale`; -1 if
    it is none (``"N/A"``, ``-``, a mark such as 65535 is kept), or negative."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool):
        return UNKNOWN
    if isinstance(value, str):
        found = _NUMBER.match(value)
        value = float(found[1]) if found else None
    if not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        return UNKNOWN
    return round(value * scale)
