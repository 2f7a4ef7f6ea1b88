"""What the codes of SXid messages (NVSwitch) mean, their class and what to do, by ``sxid.yaml``. Pure."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from whystall.tools.contract.findings import Severity

Class = Literal["non_fatal", "fatal", "always_fatal"]
UNKNOWN = "switch"
"""Meaning of a code that is not in the catalogue."""
_PATH = Path(__file__).with_name("sxid.yaml")


class SwitchCode(BaseModel):
    """An entry of the catalogue; see ``sxid.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    meaning: str
    kind: Class = Field(alias="class")
    action: str
    severity: Severity | None = None


class SwitchCatalogue(BaseModel):
    """The file ``sxid.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    classes: dict[Class, Severity]
    codes: dict[int, SwitchCode]


class SwitchAdvice(BaseModel):
    """What a message of a switch means. `kind`: its class, empty if neither catalogue nor message state one."""

    name: str
    meaning: str
    kind: Class | Literal[""]
    action: str
    severity: Severity


@cache
def switch_catalogue() -> SwitchCatalogue:
    """Return the catalogue."""
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = _PATH.read_text(encoding="utf-8")
    return SwitchCatalogue.model_validate(yaml.load(text, loader))  # noqa: S506 - both loaders are safe


def switch_advice(code: int, fatal: str) -> SwitchAdvice:
    """Return what the SXid `code` means; `fatal`: what the message says, yes or no, empty if nothing.

    A message that calls itself fatal is never graded lower than that. Of a code that is not in the catalogue only the
    message's own word is known.
    """
    known = switch_catalogue()
    entry = known.codes.get(code)
    if entry is None:
        kind: Class | Literal[""] = "fatal" if fatal == "yes" else "non_fatal" if fatal == "no" else ""
        severity = known.classes[kind] if kind else Severity.MINOR
        action = "contact_support" if kind == "fatal" else "watch"
        return SwitchAdvice(name="", meaning=UNKNOWN, kind=kind, action=action, severity=severity)
    severity = entry.severity or known.classes[entry.kind]
    if fatal == "yes":
        severity = max(severity, known.classes["fatal"], key=lambda one: one.rank)
    return SwitchAdvice(name=entry.name, meaning=entry.meaning, kind=entry.kind, action=entry.action, severity=severity)
