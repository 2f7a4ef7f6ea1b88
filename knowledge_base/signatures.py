"""Exact keys that make two cases the same problem, and what is too common to say so."""

from __future__ import annotations

import re

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
        "rank.unattributed",
    }
)
_PREFIXES = ("finding:", "cause+op:", "cause:")


def signatures(diagnosis: Diagnosis) -> list[str]:
    """Exact keys of `diagnosis`, the most telling first.

    ``finding:FINGERPRINT`` for the evidence on a named file or system call, ``cause+op:CAUSE:OPERATION``,
    ``cause:CAUSE``.
    """
    keys = [f"finding:{f.fingerprint}" for f in evidence(diagnosis) if _telling(f)]
    if diagnosis.cause is not None:
        keys += [f"cause+op:{diagnosis.cause}:{operation}" for operation in operations(diagnosis)]
        keys.append(f"cause:{diagnosis.cause}")
    return list(dict.fromkeys(keys))


def weight(signature: str) -> int:
    """How telling `signature` is: 3 for a finding, 2 for cause and operation, 1 for a cause, 0 for anything
    else.
    """
    for points, prefix in zip((3, 2, 1), _PREFIXES, strict=True):
        if signature.startswith(prefix):
            return points
    return 0


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


def _telling(finding: Finding) -> bool:
    """A fingerprint of a host or a bare command recurs everywhere; one with a file or system call does
    not.
    """
    return finding.subject.path is not None or "syscall" in finding.attributes
