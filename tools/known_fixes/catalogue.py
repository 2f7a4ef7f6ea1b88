"""The catalogue of known defects (``defects.yaml``), and how components are recognised (``components.yaml``)."""

from __future__ import annotations

import datetime
import re
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from whystall.tools.known_fixes.versions import UnknownVersion, normalised, parsed

_HERE = Path(__file__).parent
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DefectKind = Literal["hang", "crash", "slow"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Component(_Model):
    """How the version of a component is recognised; see ``components.yaml``."""

    packages: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    stated: tuple[re.Pattern[str], ...] = ()
    vendor_patched: bool = False
    restart: Literal["reboot", "driver", "job"] = "job"
    apt: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()


class Source(_Model):
    """A text that states the defect: its address, its date (None if it states none), the versions that it names."""

    url: str = Field(pattern=r"^https://\S+$", max_length=300)
    date: datetime.date | None = None
    names: tuple[str, ...] = Field(min_length=1)


class Symptom(_Model):
    """What a user observes, in both languages."""

    en: str = Field(min_length=1)
    zh: str = Field(min_length=1)

    def get(self, lang: str) -> str:
        """Return the text in `lang` (en, zh)."""
        return self.zh if lang == "zh" else self.en


class Defect(_Model):
    """A known defect.

    `affected`: a specifier of PEP 440; `requires`: further components with their specifiers, all of which must apply;
    `arch`: of the CPU, empty: all. `fixed`: the first version without it, None if the sources name none; of
    `fixed_component`, if that is another one. What identifies it: `functions` in a stack or crash, `xids`, and `texts`,
    alternatives of parts that must all occur. `causes`: the causes of whystall with the same symptom, which identify
    nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

    id: str = Field(pattern=r"^[a-z0-9_]+$")
    component: str
    affected: str
    requires: dict[str, str] = Field(default_factory=dict, alias="with")
    arch: Literal["", "aarch64", "x86_64"] = ""
    fixed: str | None = None
    fixed_component: str = ""
    kind: DefectKind
    symptom: Symptom
    causes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()
    sources: tuple[Source, ...] = Field(min_length=1)

    @field_validator("affected")
    @classmethod
    def _specifier(cls, text: str) -> str:
        specifiers(text)
        return text

    @model_validator(mode="after")
    def _consistent(self) -> Defect:
        if not (self.causes or self.functions or self.xids or self.texts):
            raise ValueError(f"{self.id}: nothing shows this defect")
        if self.fixed is not None and not self.fixed_component and self.affects(self.fixed):
            raise ValueError(f"{self.id}: the fixed version {self.fixed} is in the affected range")
        for text in self.requires.values():
            specifiers(text)
        return self

    def affects(self, version: str) -> bool:
        """Return whether `version` is in the affected range. Raises `UnknownVersion`."""
        return within(version, self.affected)


def within(version: str, text: str) -> bool:
    """Return whether `version` satisfies the specifier `text`. Raises `UnknownVersion` for what is no version."""
    return specifiers(text).contains(parsed(version), prereleases=True)


@cache
def specifiers(text: str) -> SpecifierSet:
    """Return the specifier `text`; a version that follows an operator may have the form of CANN. Raises ValueError."""
    parts = [re.sub(r"[\d].*", lambda found: normalised(found[0]), part.strip()) for part in text.split(",")]
    try:
        return SpecifierSet(",".join(parts))
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is no range of versions: {error}") from None


@cache
def components() -> dict[str, Component]:
    """Return the components by name."""
    read = yaml.load((_HERE / "components.yaml").read_bytes(), _LOADER)  # noqa: S506 - a safe loader, in C
    return {name: Component.model_validate(one) for name, one in read.items()}


@cache
def defects() -> tuple[Defect, ...]:
    """Return all known defects, in the order of the file.

    Raises ValueError for an id that occurs twice, or an unknown component.
    """
    read = yaml.load((_HERE / "defects.yaml").read_bytes(), _LOADER)  # noqa: S506 - a safe loader, in C
    found = tuple(Defect.model_validate(one) for one in read)
    named = [one.id for one in found]
    twice = sorted({name for name in named if named.count(name) > 1})
    unknown = {name for one in found for name in (one.component, one.fixed_component, *one.requires) if name}
    if twice or (odd := sorted(unknown - components().keys())):
        raise ValueError(f"defects.yaml: ids that occur twice {twice}, unknown components {'' if twice else odd}")
    return found


__all__ = ["Component", "Defect", "Source", "UnknownVersion", "components", "defects", "specifiers", "within"]
