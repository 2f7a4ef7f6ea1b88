"""What makes two diagnoses the same fault of the same job."""

from __future__ import annotations

import hashlib
import re

from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.text import path_pattern

_KEY_VERSION = 1
_GENERIC_PROGRAMS = re.compile(
    r"(python[\d.*]*|pt_main_thread|pt_data_worker|bash|sh|java|node|perl|ruby|main|worker|thread[-_*\d]*|a\.out|\?)?"
)


def dedup_key(diagnosis: Diagnosis) -> str:
    """``1:`` and a hash of the cause and of what stays the same from run to run: command, series of files,
    device, cgroup. Pids, times and the number in a file's name do not count; the host does not either,
    since a job that moves takes its fault along. Where only the traces of ranks were seen the host does count,
    and what the evidence names: a slow node stays slow for the next job.
    """
    culprit, victim = diagnosis.culprit, diagnosis.victim
    parts = [diagnosis.cause or "", victim.comm if victim else ""]
    if culprit is not None:
        path = path_pattern(culprit.path) if culprit.path else ""
        parts += [culprit.comm or "", path, culprit.device or "", culprit.cgroup or ""]
    if diagnosis.cause is None:  # stalls of one program without a known cause are the same only if they look the same
        bad = [f for f in diagnosis.findings if f.polarity is Polarity.ABNORMAL]
        worst = max(bad, key=lambda f: (f.severity.rank, f.window_pct), default=None)
        parts.append(worst.fingerprint if worst else "")
    if victim is not None and victim.type != "thread":
        first = next((f for f in diagnosis.findings if f.id in diagnosis.chain[:1]), None)
        parts += [victim.host or "", "" if victim.host or first is None else first.fingerprint]
    return f"{_KEY_VERSION}:{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"


def names_its_place(diagnosis: Diagnosis) -> bool:
    """Whether `dedup_key` holds more than a cause and a command that any host may run."""
    culprit, victim = diagnosis.culprit, diagnosis.victim
    if culprit is not None and (culprit.path or culprit.device or culprit.cgroup):
        return True
    return victim is not None and (victim.type != "thread" or not generic_program(victim.comm))


def generic_program(comm: str) -> bool:
    """Whether `comm` is an interpreter, a framework's thread or the like, and says nothing of the job."""
    return _GENERIC_PROGRAMS.fullmatch(comm.lower()) is not None
