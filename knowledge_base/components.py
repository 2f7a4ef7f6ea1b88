"""Parts of a system that a sentence may mention, and the findings about them (``catalog/components.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import cache

from pydantic import Field

from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Model
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.kinds import KINDS
from whystall.tools.host.common.path_codes import MODES, ROLES, RUNNING, WAITS

_PATH = "path:"
_CODES = frozenset({*WAITS, *MODES, *ROLES, RUNNING, "pinned"})
_PATH_TOPICS = frozenset(f"{_PATH}{code}" for code in _CODES)


class Component(Model):
    """A part of a host or job; see the head of the file. `kinds`: those of `KINDS`, or codes of rows of critical paths
    (``path:lock``), that are about it; may be empty.
    """

    kinds: list[str]
    fault: bool = False
    en: list[str] = Field(min_length=1)
    zh: list[str] = Field(min_length=1)

    def of(self, kinds: Collection[str]) -> set[str]:
        """Return those of `kinds`, kinds or `topics`, that are about it."""
        return {kind for kind in kinds if any(fnmatchcase(kind, pattern) for pattern in self.kinds)}


def path_codes_of(finding: Finding) -> set[str]:
    """Return what a row of a critical path is about: its wait or ``running``, mode, role, and those of its chain."""
    words = finding.attributes
    found = {words.get(name, "") for name in ("wait", "root_wait", "main_wait", "mode", "role")}
    found |= {word for name in ("chain", "main") for word in words.get(name, "").split()}
    waits = {"path.waker": "wait", "path.pause": "main_wait"}.get(finding.kind, "")
    if finding.kind == "path.running" or found & MODES.keys() or (waits and waits not in words):
        found.add(RUNNING)
    if words.get("wait") == "cpu":
        found.add(words.get("detail", ""))
    return found & _CODES


def topics(finding: Finding) -> set[str]:
    """Return what patterns of components match: the kind, and for a row of a critical path its codes, ``path:lock``."""
    codes = path_codes_of(finding) if finding.kind.startswith("path.") else set()
    return {finding.kind, *(f"{_PATH}{code}" for code in codes)}


def topics_of_kinds(kinds: Collection[str]) -> set[str]:
    """Return the topics of all findings that may be of `kinds`."""
    paths = any(kind.startswith("path.") for kind in kinds)
    return {*kinds, *(_PATH_TOPICS if paths else ())}


@cache
def load_components() -> dict[str, Component]:
    """Return every component by name; raise `ToolError` (bad_argument) for a malformed file or an unknown kind."""
    file = catalog("components.yaml")
    found = {name: as_model(Component, value, file, name) for name, value in read_yaml(file).items()}
    for name, component in found.items():
        for pattern in component.kinds:
            if not any(fnmatchcase(kind, pattern) for kind in (*KINDS, *_PATH_TOPICS)):
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
