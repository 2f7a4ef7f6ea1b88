"""Words used in tickets (``catalog/wording.yaml``); see there."""

from __future__ import annotations

import re
from functools import cache, cached_property

from pydantic import ConfigDict

from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Model
from whystall.tools.contract.findings import Severity


class Grade(Model):
    """Patterns of texts of `severity`."""

    severity: Severity
    patterns: list[str]

    model_config = ConfigDict(extra="forbid", ignored_types=(cached_property,))

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(self.patterns))


class Event(Grade):
    """Patterns of texts in which something of `severity` happened."""

    id: str


class Severities(Model):
    sender: dict[Severity, list[str]]
    ranks: dict[str, Severity]
    text: list[Grade]
    content: list[Event]
    few: str
    whole: str
    denied: str


class Negation(Model):
    breaks: str
    before: list[str]
    after: list[str]


class Named(Model):
    """Words that make a number a name."""

    words: list[str]
    runs: list[str]
    naming: str


class Before(Model):
    """Words before a number that classify it; `runs`: ends of a Chinese run of characters."""

    words: list[str]
    runs: list[str]


class Sameness(Model):
    """What is stable in a report."""

    named: Named
    versioned: Before
    measured: Before
    measures: list[str]
    places: list[str]
    wide: list[str]
    pods: list[str]
    fillers: list[str]


class Columns(Model):
    id: list[str]
    title: list[str]
    text: list[str]
    created: list[str]
    severity: list[str]


class Wording(Model):
    severity: Severities
    negation: Negation
    sameness: Sameness
    columns: Columns


@cache
def wording() -> Wording:
    """Return the wording; raise `ToolError` (bad_argument) with the field of a malformed file."""
    path = catalog("wording.yaml")
    found = as_model(Wording, read_yaml(path), path)
    for name, pattern in (
        *((f"severity.text.{g.severity.value}", p) for g in found.severity.text for p in g.patterns),
        *((f"severity.content.{e.id}", p) for e in found.severity.content for p in e.patterns),
        ("severity.few", found.severity.few),
        ("severity.whole", found.severity.whole),
        ("severity.denied", found.severity.denied),
        ("negation.breaks", found.negation.breaks),
        *(("negation", p) for p in (*found.negation.before, *found.negation.after)),
        ("sameness.named.naming", found.sameness.named.naming),
    ):
        try:
            re.compile(pattern)
        except re.error as error:
            raise data_fault(path, f"{name}: {error}") from None
    return found
