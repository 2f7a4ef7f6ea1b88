"""Whether two diagnoses are of the same fault of the same job."""

from __future__ import annotations

import hashlib
import re

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.text import path_pattern

_KEY_VERSION = 1
_SURE = {Verdict.CONFIRMED, Verdict.LIKELY}
_SHARED_PATHS = re.compile(
    r"^/(dev|proc|sys|usr|lib|lib32|lib64|libx32|bin|sbin|etc|boot|run)/|/(site|dist)-packages/|/lib/python[\d.]*/|^/memfd:"
)
_LOCAL_PATHS = re.compile(r"/(tmp|var/tmp|var/run)/")
_COMMON_CGROUP = re.compile(r"[\w.-]+\.(slice|scope|service)|kubepods|burstable|besteffort|docker|init|system|user")
_GENERIC_PROGRAMS = re.compile(
    r"(python[\d.*]*|pt_main_thread|pt_data_worker|bash|sh|java|node|perl|ruby|main|worker|thread[-_*\d]*|a\.out|\?)?"
)

# classes of crashes whose titles say what happened and not where
_UNNAMED = frozenset(
    {
        "machine_check",
        "machine_check_logged",
        "memory_error",
        "memory_error_corrected",
        "pcie_error",
        "pcie_error_survived",
        "exit_code",
        "killed_for_memory",
        "gpu_error",
    }
    | {"signal", "core_file", "collective_timeout", "reference_leak", "workqueue_lockup"}
)


def dedup_key(diagnosis: Diagnosis) -> str:
    """Return ``1:`` and a hash of the cause and of what is stable between runs: command, file series or device, cgroup.

    Of a crash its class and title count, on any host; its host, too, if the title names no place (`names_no_place`).
    Of a device in a log its address, the error and the host count. Pids, times and numbers in file names do not count.
    Neither does the host, since a job that moves takes its fault along; except for diagnoses from rank traces alone,
    where a slow node stays slow for the next job.
    """
    if (crash := _crash(diagnosis)) is not None:
        parts = [diagnosis.cause or "", crash.attributes.get("what", ""), crash.attributes.get("name", "")]
        if names_no_place(crash):
            parts += [_where_logged(diagnosis, crash), "limit" if crash.attributes.get("limit_of") else ""]
        return f"{_KEY_VERSION}:{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"
    culprit, victim = diagnosis.culprit, diagnosis.victim
    first = _first(diagnosis)
    if victim is None and diagnosis.cause is not None and first is not None and first.subject.type == "device":
        parts = [diagnosis.cause, first.fingerprint, _where_logged(diagnosis, first)]
        return f"{_KEY_VERSION}:{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"
    parts = [diagnosis.cause or "", victim.comm if victim else ""]
    if culprit is not None:
        path = path_pattern(culprit.path) if culprit.path else ""
        parts += [culprit.comm or "", path, "" if path else culprit.device or "", culprit.cgroup or ""]
    if diagnosis.cause is None:  # without a cause, stalls are the same only if their worst findings are
        bad = [f for f in diagnosis.findings if f.polarity is Polarity.ABNORMAL]
        worst = max(bad, key=lambda f: (f.severity.rank, f.window_pct), default=None)
        parts.append(worst.fingerprint if worst else "")
    if victim is not None and victim.type != "thread":
        parts += [victim.host or "", "" if victim.host or first is None else first.fingerprint]
    return f"{_KEY_VERSION}:{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"


def fault_key(diagnosis: Diagnosis) -> str | None:
    """Return the key by which a fault with a cause is recognized; None if nothing identifies it.

    ``KEY`` (`dedup_key`) if a file identifies the job on any host; ``KEY@HOST/WHAT`` if something of one host does: a
    device, a cgroup, a specific command, the waiting line of code, a rank's work; ``KEY@HOST`` if only cause, host and
    a generic command agree, which is no proof.
    """
    culprit, victim = diagnosis.culprit, diagnosis.victim
    if _crash(diagnosis) is not None:
        return None  # titles of crashes are signatures of their own
    host = next((c.host for c in diagnosis.coverage if c.host), "").replace("/", "_")
    key = dedup_key(diagnosis)
    what: str | None = None
    if victim is None:
        pass
    elif victim.type != "thread":  # nothing identifies the job
        host = (victim.host or "").replace("/", "_") or host
        what = (culprit.name if culprit else None) or "rank" if victim.type == "rank" and victim.host else None
    elif culprit is not None and culprit.device and _of_a_device(diagnosis.cause):
        what = "device"  # on another host the file is on another disk
    elif culprit is not None and names_a_job(culprit.path or "", victim.comm):
        return key
    elif culprit is not None and (_own_path(culprit.path or "") or _own_cgroup(culprit.cgroup or "")):
        what = "place"
    elif not generic_program(victim.comm):
        what = "program"
    elif culprit is not None and culprit.code:
        what = re.sub(r":\d+\)$", ")", culprit.code)
    if not host:
        return None
    return f"{key}@{host}" if what is None else f"{key}@{host}/{what}"


def names_no_place(crash: Finding) -> bool:
    """Return whether the title of `crash` names what happened and not where: hardware, a signal, a kill for lack of
    memory of a program with a generic name. Two such crashes are not of the same bug."""
    what = crash.attributes.get("what")
    return what in _UNNAMED or (what == "oom" and generic_program(crash.subject.comm or ""))


def _where_logged(diagnosis: Diagnosis, finding: Finding) -> str:
    """Return the host of `finding`; if the log does not state it, the name of the log."""
    return finding.subject.host or diagnosis.target


def _first(diagnosis: Diagnosis) -> Finding | None:
    """Return the first finding of the causal chain."""
    return next((f for f in diagnosis.findings if f.id in diagnosis.chain[:1]), None)


def _crash(diagnosis: Diagnosis) -> Finding | None:
    """Return the crash that a diagnosis by logs is about; None for other diagnoses."""
    first = _first(diagnosis)
    return first if first is not None and first.kind.startswith("crash.") else None


def same_fault(one: Diagnosis, other: Diagnosis) -> bool:
    """Return whether both diagnoses are of one fault of one job: the same cause at least likely, and the same identity
    (`fault_key`) or process.
    """
    if one.cause is None or not {one.verdict, other.verdict} <= _SURE or dedup_key(one) != dedup_key(other):
        return False
    key = fault_key(one)
    if key is None or key != fault_key(other):
        return False
    _, at, place = key.partition("@")
    return not at or "/" in place or _process(one) == _process(other) != 0


def _process(diagnosis: Diagnosis) -> int:
    """Return the pid of the victim; 0 for ranks."""
    return diagnosis.victim.pid if diagnosis.victim is not None else 0


def names_a_job(path: str, comm: str) -> bool:
    """Return whether the file `path`, used by `comm`, identifies a job on any host.

    System and library files do not; a temporary file does only with a specific command.
    """
    return _own_path(path) and not (generic_program(comm) and _LOCAL_PATHS.match(path))


def _of_a_device(cause: str | None) -> bool:
    """Return whether the findings of a cause are about a device itself."""
    known = load_causes().get(cause or "")
    patterns = [*known.primary, *known.required] if known else []
    return any(KINDS[pattern.kind].subject == "device" for pattern in patterns)


def _own_path(path: str) -> bool:
    return path.startswith("/") and _SHARED_PATHS.search(path) is None


def _own_cgroup(cgroup: str) -> bool:
    return bool(cgroup.strip("/")) and _COMMON_CGROUP.fullmatch(cgroup.rstrip("/").rpartition("/")[2]) is None


def generic_program(comm: str) -> bool:
    """Return whether `comm` is an interpreter, a framework's thread or similar, which does not identify a job."""
    return _GENERIC_PROGRAMS.fullmatch(comm.lower()) is not None
