"""The curated incidents shipped with this version."""

from __future__ import annotations

import hashlib
from pathlib import Path

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Incident
from whystall.tools.contract.kinds import KINDS


def curated() -> list[Incident]:
    """Every curated incident, in order of file and place in it.

    Raises `ToolError` (bad_argument) naming file and entry when one is malformed, names an unknown cause or
    finding kind, or has an id that another has.
    """
    found: dict[str, Incident] = {}
    for file in _files():
        entries = read_yaml(file)
        if not isinstance(entries, list):
            raise data_fault(file, "document: a list of incidents is wanted")
        for index, entry in enumerate(entries):
            incident = as_model(Incident, entry, file, str(index))
            unknown = sorted(set(incident.kinds) - set(KINDS))
            if unknown:
                raise data_fault(file, f"{incident.id}.kinds: unknown finding kind {unknown[0]!r}")
            if incident.cause is not None and incident.cause not in load_causes():
                raise data_fault(file, f"{incident.id}.cause: unknown cause {incident.cause!r}")
            if incident.id in found:
                raise data_fault(file, f"{index}.id: {incident.id!r} is used twice")
            found[incident.id] = incident
    return list(found.values())


def curated_hash() -> str:
    """Hash of the curated incidents and of the glossary they are indexed with; changes when either does."""
    digest = hashlib.sha256()
    for file in [*_files(), catalog("glossary.yaml")]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _files() -> list[Path]:
    return sorted(catalog("incidents").glob("*.yaml"))
