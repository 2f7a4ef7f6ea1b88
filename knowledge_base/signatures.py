"""Exact keys that make two cases the same problem, and what is too common to say so."""

from __future__ import annotations

import re

from whystall.knowledge_base.faults import dedup_key, names_its_place
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.findings import Finding, Polarity

# Kinds that say time was lost, not to what: two cases that share only these have nothing in common.
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
        "rank.late",
        "rank.even",
    }
)
_FAULT, _FINDING, _OPERATION = "fault:", "finding:", "cause+op:"


def signatures(diagnosis: Diagnosis) -> list[str]:
    """Exact keys of `diagnosis`, the most telling first.

    ``fault:KEY`` for the same fault of the same job (see `faults`; with ``@HOST`` where nothing but a common command is
    named), ``finding:FINGERPRINT`` for the evidence on a named file or system call, ``cause+op:CAUSE:OPERATION``.
    """
    keys = []
    if diagnosis.cause is not None:
        host = next((c.host for c in diagnosis.coverage if c.host), "")
        if names_its_place(diagnosis):
            keys.append(f"{_FAULT}{dedup_key(diagnosis)}")
        elif host and diagnosis.victim is not None:
            keys.append(f"{_FAULT}{dedup_key(diagnosis)}@{host}")
    keys += [f"{_FINDING}{f.fingerprint}" for f in evidence(diagnosis) if telling(f)]
    if diagnosis.cause is not None:
        keys += [f"{_OPERATION}{diagnosis.cause}:{operation}" for operation in operations(diagnosis)]
    return list(dict.fromkeys(keys))


def weight(signature: str) -> int:
    """How telling `signature` is: 4 for a fault, 2 for cause and operation, 3 for a finding and for keys that somebody
    put on a card himself.
    """
    return 4 if signature.startswith(_FAULT) else 2 if signature.startswith(_OPERATION) else 3


def names_a_fault(signature: str) -> bool:
    """Whether `signature` is of one fault at one place, and not of all of its sort. A key that somebody put on a card
    himself (``xid:79``) is taken as he meant it.
    """
    return not signature.startswith(_OPERATION)


def evidence(diagnosis: Diagnosis) -> list[Finding]:
    """The abnormal findings of the causal chain, in its order; without a chain, all abnormal ones."""
    by_id = {f.id: f for f in diagnosis.findings}
    chain = [by_id[i] for i in diagnosis.chain if i in by_id] or diagnosis.findings
    return [f for f in chain if f.polarity is Polarity.ABNORMAL]


def discriminating_kinds(diagnosis: Diagnosis) -> set[str]:
    """Kinds of its evidence that say to what the time was lost."""
    return {f.kind for f in evidence(diagnosis)} - GENERIC_KINDS


def operations(diagnosis: Diagnosis) -> list[str]:
    """System calls of the culprit, the one that took longest first."""
    culprit = diagnosis.culprit
    if culprit is None:
        return []
    named = [culprit.syscall or "", *re.split(r"[^a-z0-9_]+", (culprit.operations or "").lower())]
    return list(dict.fromkeys(name for name in named if name))


def telling(finding: Finding) -> bool:
    """Whether its fingerprint is a key. That of a host or a bare command recurs everywhere; one with a file or system
    call does not.
    """
    return finding.subject.path is not None or "syscall" in finding.attributes
