"""Exact keys that identify a problem."""

from __future__ import annotations

import re

from whystall.knowledge_base.faults import fault_key, names_a_job, names_no_place
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.findings import Finding, Polarity

# Kinds that show lost time without a cause: sharing only these means nothing.
GENERIC_KINDS = frozenset(
    {
        "thread.time",
        "process.io_wait",
        "process.system_time",
        "process.major_faults",
        "offcpu.blocked",
        "offcpu.preempted",
        "cpu.saturated",
        "accel.idle",
        "path.running",
        "path.wait",
        "path.waker",
        "rank.late",
        "rank.even",
        # what crashed is in their signature; two crashes have nothing else in common
        "crash.kernel",
        "crash.program",
        "crash.first",
    }
)
_FAULT, _FINDING, _OPERATION = "fault:", "finding:", "cause+op:"
_CRASH = "crash:"


def signatures(diagnosis: Diagnosis) -> list[str]:
    """Return the exact keys of `diagnosis`, most specific first.

    ``fault:KEY`` for the same fault (see `faults.fault_key`), ``finding:FINGERPRINT`` for evidence on a file of one
    job, ``crash:TITLE`` for a crash, ``cause+op:CAUSE:OPERATION``.
    """
    keys = []
    fault = fault_key(diagnosis) if diagnosis.cause is not None else None
    if fault is not None:
        keys.append(f"{_FAULT}{fault}")
    if fault is None or "@" not in fault:  # else the host counts, which fingerprints lack
        keys += [f"{_FINDING}{f.fingerprint}" for f in evidence(diagnosis) if distinctive(f)]
    keys += [key for f in evidence(diagnosis) for key in crash_keys(f)]
    if diagnosis.cause is not None:
        keys += [f"{_OPERATION}{diagnosis.cause}:{operation}" for operation in operations(diagnosis)]
    return list(dict.fromkeys(keys))


def crash_keys(finding: Finding) -> list[str]:
    """Return the keys of a crash: its title and its other titles. Two crashes that share one are of the same bug.

    Empty if the title names no place (a function that is unknown, a signal), or a kill for lack of memory of a program
    whose name says nothing.
    """
    words = finding.attributes
    if not finding.kind.startswith("crash.") or words.get("reaction") or names_no_place(finding):
        return []
    titles = [words.get("name", ""), *words.get("also", "").split(" | ")]
    return [f"{_CRASH}{title}" for title in titles if title and not title.endswith(" in corrupted")]


def weight(signature: str) -> int:
    """Specificity of `signature`: 4 for a fault, 3 for a finding or a key that a person put on a card, 2 for cause and
    operation.
    """
    return 4 if signature.startswith(_FAULT) else 2 if signature.startswith(_OPERATION) else 3


def names_a_fault(signature: str) -> bool:
    """Return whether `signature` is of one fault at one place. A key that a person put on a card (``xid:79``) is
    trusted.
    """
    if signature.startswith(_FAULT):
        _, at, place = signature.partition("@")
        return not at or "/" in place
    return not signature.startswith(_OPERATION)


def evidence(diagnosis: Diagnosis) -> list[Finding]:
    """Return the abnormal findings of the causal chain in its order; without a chain, all abnormal ones."""
    by_id = {f.id: f for f in diagnosis.findings}
    chain = [by_id[i] for i in diagnosis.chain if i in by_id] or diagnosis.findings
    return [f for f in chain if f.polarity is Polarity.ABNORMAL]


def discriminating_kinds(diagnosis: Diagnosis) -> set[str]:
    """Return the kinds of the evidence that are not generic."""
    return {f.kind for f in evidence(diagnosis)} - GENERIC_KINDS


def operations(diagnosis: Diagnosis) -> list[str]:
    """Return the system calls of the culprit, slowest first."""
    culprit = diagnosis.culprit
    if culprit is None:
        return []
    named = [culprit.syscall or "", *re.split(r"[^a-z0-9_]+", (culprit.operations or "").lower())]
    return list(dict.fromkeys(name for name in named if name))


def distinctive(finding: Finding) -> bool:
    """Return whether the fingerprint of `finding` is a key: only if its file belongs to one job."""
    return names_a_job(finding.subject.path or "", finding.subject.comm or "")
