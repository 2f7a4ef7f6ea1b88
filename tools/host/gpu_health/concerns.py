"""Relate a driver's message to the observed processes: is it recent, and is its GPU theirs?"""

from __future__ import annotations

from whystall.tools.contract.findings import Finding
from whystall.tools.host.gpu_health import gpus
from whystall.tools.recording.store import Recording

RECENT_S = 3600
"""An older message is no cause of what is observed now; the causes ask for the same age."""


def concerning(finding: Finding, recording: Recording) -> Finding:
    """Return `finding` with `relevance`: ``earlier`` for a message before the last hour, ``other_job`` for one about a
    GPU that only other programs use; without it if it may concern the target."""
    age_s = finding.metrics.get("age_s")
    if age_s is not None and age_s > RECENT_S:
        return _with(finding, "earlier")
    if finding.kind == "gpu.xid" and _of_others(finding.subject.device or "", recording):
        return _with(finding, "other_job")
    return finding


def _of_others(device: str, recording: Recording) -> bool:
    """Return whether the target works on other GPUs, and only programs of other names work on `device`.

    Ranks of one job have one name, so that those of the target's name may be its peers. A GPU on which nothing works
    proves nothing: the one that failed has lost its processes.
    """
    if recording.manifest.target.everything or not recording.has(gpus.COLLECTOR):
        return False
    target = set(recording.manifest.target.pids)
    rows = gpus.process_rows(recording)
    names = {row.comm for row in rows if row.pid in target}
    here = [row for row in rows if row.gpu == device]
    return bool(names) and bool(here) and all(row.pid not in target and row.comm not in names for row in here)


def _with(finding: Finding, relevance: str) -> Finding:
    return finding.model_copy(update={"attributes": {**finding.attributes, "relevance": relevance}})
