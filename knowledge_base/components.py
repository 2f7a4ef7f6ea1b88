"""Parts of a system that a sentence may mention, and the findings about them (``catalog/components.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import cache

from pydantic import Field

from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Model
from whystall.tools.contract.kinds import KINDS


class Component(Model):
    """A part of a host or job; see the head of the file. `kinds`: those of `KINDS` about it; may be empty."""

    kinds: list[str]
    fault: bool = False
    en: list[str] = Field(min_length=1)
    zh: list[str] = Field(min_length=1)

    def of(self, kinds: Collection[str]) -> set[str]:
        """Return those of `kinds` that are about it."""
        return {kind for kind in kinds if any(fnmatchcase(kind, pattern) for pattern in self.kinds)}


@cache
def load_components() -> dict[str, Component]:
    """Return every component by name; raise `ToolError` (bad_argument) for a malformed file or an unknown kind."""
    file = catalog("components.yaml")
    found = {name: as_model(Component, value, file, name) for name, value in read_yaml(file).items()}
    for name, component in found.items():
        for pattern in component.kinds:
            if not any(fnmatchcase(kind, pattern) for kind in KINDS):
                raise data_fault(file, f"{name}.kinds: no kind of finding matches {pattern!r}")
    return found


def named(text: str) -> list[tuple[str, str]]:
    """Return the components that `text` mentions, with the matching words, in file order."""
    lower = text.lower()
    found = []
    for name, pattern in _patterns().items():
        match = pattern.search(lower)
        if match is not None:
            found.append((name, match.group(0).strip()))
    return found


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {name: _pattern(component) for name, component in load_components().items()}


def _pattern(component: Component) -> re.Pattern[str]:
    english = rf"(?<![a-z0-9_])(?:{'|'.join(map(re.escape, component.en))})(?![a-z0-9_])"
    return re.compile("|".join([english, *(re.escape(word.lower()) for word in component.zh)]))
