"""The curated incidents of this version."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from whystall.knowledge_base import features
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Incident
from whystall.tools.contract.kinds import KINDS


def curated() -> list[Incident]:
    """Return every curated incident, in order of file and position.

    Raises `ToolError` (bad_argument) with file and entry for a malformed one, an unknown cause, finding kind, feature
    or tool, or a duplicate id.
    """
    found: dict[str, Incident] = {}
    for file in _files():
        entries = read_yaml(file)
        if not isinstance(entries, list):
            raise data_fault(file, "document: a list of incidents is required")
        for index, entry in enumerate(entries):
            incident = as_model(Incident, entry, file, str(index))
            if fault := unknown_name(incident):
                raise data_fault(file, f"{incident.id}.{fault}")
            if incident.id in found:
                raise data_fault(file, f"{index}.id: {incident.id!r} is used twice")
            found[incident.id] = incident
    return list(found.values())


def unknown_name(incident: Incident) -> str | None:
    """Return the first unknown name in `incident` as ``FIELD: what``, or None."""
    if incident.cause is not None and incident.cause not in load_causes():
        return f"cause: unknown cause {incident.cause!r}"
    for kind in incident.kinds:
        if kind not in KINDS:
            return f"kinds: unknown finding kind {kind!r}"
    for feature in features.unknown(incident.features):
        return f"features: unknown feature {feature!r}"
    for tool in incident.checks:
        if tool not in _tools():
            return f"checks: unknown tool {tool!r}"
    return None


@cache
def _tools() -> frozenset[str]:
    # Imported late: the toolbox imports every tool, and an up-to-date base needs no curated card.
    from whystall.tools.toolbox import registry

    return frozenset(tool.name for tool in registry().all())


def curated_hash() -> str:
    """Return a hash of the curated incidents and of the words that they are indexed with."""
    digest = hashlib.sha256()
    for file in [*_files(), catalog("glossary.yaml"), catalog("everyday.yaml")]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _files() -> list[Path]:
    return sorted(catalog("incidents").glob("*.yaml"))
