"""What the codes of Xid and SXid messages mean, and what NVIDIA asks to do, by its catalogue (``xid.yaml``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict

from whystall.tools.contract.findings import Severity

UNUSED = "unused"
CLEANUP, RECOVERY_CHANGED = 45, 154
"""Codes about the consequences of another error: channels of a process removed; what the GPU needs now."""
OFF_BUS = 79
_BY_154 = "xid_154"
_PATH = Path(__file__).with_name("xid.yaml")


class Code(BaseModel):
    """An entry of the catalogue; see ``xid.yaml``. Empty: the catalogue has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mnemonic: str
    meaning: str
    area: str
    action: str = ""
    further: str = ""
    level: str = ""


class Recovery(BaseModel):
    """What a GPU needs now, as Xid 154 and NVML number it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    action: str


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    by_bit: dict[str, dict[int, tuple[str, str]]]
    by_value: dict[str, dict[int, tuple[str, str]]]
    by_sub_code: dict[str, dict[int, tuple[str, str]]]


class Catalogue(BaseModel):
    """The file ``xid.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    actions: dict[str, Severity | None]
    codes: dict[int, Code]
    nvlink5: _Rules
    recoveries: dict[int, Recovery]


class Advice(NamedTuple):
    """What to do at once, and to find the cause; empty: not known."""

    action: str
    further: str


@cache
def catalogue() -> Catalogue:
    """Return the catalogue."""
    # the C parser is ten times faster
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = _PATH.read_text(encoding="utf-8")
    return Catalogue.model_validate(yaml.load(text, loader))  # noqa: S506 - both loaders are safe


def code_of(code: int) -> Code | None:
    """Return the entry of the Xid `code`; None for one that is not in the catalogue."""
    return catalogue().codes.get(code)


def severity_of_action(action: str) -> Severity | None:
    """Return the severity of a message for which the catalogue asks `action`; None if it asks for nothing by itself."""
    return catalogue().actions.get(action)


def recovery(number: int) -> Recovery | None:
    """Return what `number` of Xid 154 asks for; None if it is not known."""
    return catalogue().recoveries.get(number)


def advice(code: int, unit: str = "", sub_code: int = -1, status: int = -1) -> Advice:
    """Return what to do about the Xid `code`.

    Of NVLink 5 (144 to 150) by the `unit` that the message names, its sub-code and its error status (-1: not known);
    where these are not in the catalogue, the action for all of these codes. If several bits of the status are set, the
    most severe action counts.
    """
    entry = code_of(code)
    if entry is None:
        return Advice("", "")
    found = _nvlink5(unit, sub_code, status) if unit else None
    return found or Advice(entry.action, entry.further)


def _nvlink5(unit: str, sub_code: int, status: int) -> Advice | None:
    rules = catalogue().nvlink5
    pair = None
    if (table := _of_unit(rules.by_bit, unit)) is not None:
        pairs = [given for bit, given in table.items() if status > 0 and status & bit]
        pair = max(pairs, key=lambda given: _weight(given[0]), default=None)
    elif (table := _of_unit(rules.by_value, unit)) is not None:
        pair = table.get(status)
    elif (table := _of_unit(rules.by_sub_code, unit)) is not None:
        pair = table.get(sub_code)
    return Advice(*pair) if pair is not None else None


def _of_unit(tables: dict[str, dict[int, tuple[str, str]]], unit: str) -> dict[int, tuple[str, str]] | None:
    """Return the table with the longest name with which `unit` begins; of names of the two sets NETIR is the rest."""
    names = [name for name in tables if unit.startswith(name)]
    return tables[max(names, key=len)] if names else None


def _weight(action: str) -> int:
    """Return how much an action demands: one that Xid 154 decides stands between ignoring and a reset."""
    severity = severity_of_action(action)
    return 1 if action == _BY_154 else 2 * severity.rank if severity is not None and action != "ignore" else 0
