"""Add to a diagnosis the known defects of the versions in use that the case shows, as candidates for an upgrade.

A defect whose version is affected and whose symptom is not shown is left out: it is no candidate.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from whystall.agent_server.inputs.logs import ReadLogs
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.collect.proc_versions import Versions
from whystall.tools.host.known_fix.case import signature_of, signature_of_findings, versions_by_component, versions_of
from whystall.tools.known_fixes.match import Found, Signature, known_defects
from whystall.tools.known_fixes.rows import defect_row
from whystall.tools.recording.store import Recording

_MOST = 3
"""Candidates, and defects with the same kind of symptom, that are kept."""


def known_on_this_host(diagnosis: Diagnosis, pids: Iterable[int]) -> Diagnosis:
    """Return `diagnosis` with the known defects of this host and of what `pids` and the victim have loaded."""
    victim = {diagnosis.victim.pid} if diagnosis.victim and diagnosis.victim.pid else set()
    rows = [row._asdict() for row in Versions({*pids, *victim}).rows()]
    return _with(diagnosis, versions_by_component(rows), _shown(diagnosis), os.uname().machine)


def known_in_recording(diagnosis: Diagnosis, recording: Recording) -> Diagnosis:
    """Return `diagnosis` with the known defects of the versions in `recording`; unchanged if it has none."""
    if not recording.has("versions"):
        return diagnosis
    return _with(diagnosis, versions_of(recording), _shown(diagnosis), recording.manifest.machine)


def known_in_logs(diagnosis: Diagnosis, logs: ReadLogs) -> Diagnosis:
    """Return `diagnosis` with the known defects of the versions that `logs` state.

    Those of this host do not count: the logs may be of another one, or older than an upgrade.
    """
    names = ("component", "version", "where", "pid", "vendor_built")
    rows = [dict(zip(names, row, strict=True)) for row in logs.versions]
    shown = signature_of_findings((one for one in diagnosis.findings if one.kind == "gpu.xid"), None)
    signature = signature_of(logs.crashes, [diagnosis.cause] if diagnosis.cause else [], xids=shown.xids)
    return _with(diagnosis, versions_by_component(rows), signature, "")


def _shown(diagnosis: Diagnosis) -> Signature:
    """Return what the evidence of `diagnosis` shows; findings that do not concern its cause show nothing."""
    chain = [
        one
        for one in diagnosis.findings
        if one.id in diagnosis.chain or (one.kind == "gpu.xid" and not one.attributes.get("relevance"))
    ]
    code = diagnosis.culprit.code if diagnosis.culprit and diagnosis.culprit.code else ""
    return signature_of_findings(chain, diagnosis.cause, [text for text in (diagnosis.symptom, code) if text])


def _with(diagnosis: Diagnosis, versions: Mapping[str, Sequence[Found]], signature: Signature, arch: str) -> Diagnosis:
    if diagnosis.verdict.no_fault:
        return diagnosis
    rows = [defect_row(one) for one in known_defects(versions, signature, arch)]
    kept = [row for name in ("relevant", "possible") for row in [r for r in rows if r.standing == name][:_MOST]]
    return diagnosis.model_copy(update={"known_fixes": kept})
