"""What makes two diagnoses the same fault of the same job."""

from __future__ import annotations

import hashlib
import re

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.tools.contract.findings import Polarity
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


def fault_key(diagnosis: Diagnosis) -> str | None:
    """By what `diagnosis` is known to show a fault again, for one with a cause; None where nothing is named.

    ``KEY`` (`dedup_key`) where a file tells the job wherever it runs; ``KEY@HOST/WHAT`` where it is told by what is of
    its host alone: a device, a cgroup, a command that is its own, the line that waits, a rank's work; and ``KEY@HOST``
    where cause, host and a command that any job may run are all that is the same, which is no proof.
    """
    culprit, victim = diagnosis.culprit, diagnosis.victim
    host = next((c.host for c in diagnosis.coverage if c.host), "").replace("/", "_")
    key = dedup_key(diagnosis)
    what: str | None = None
    if victim is None:
        pass
    elif victim.type != "thread":  # of a whole job, nothing says which job it is
        host = (victim.host or "").replace("/", "_") or host
        what = (culprit.name if culprit else None) or "rank" if victim.type == "rank" and victim.host else None
    elif culprit is not None and culprit.device and _of_a_device(diagnosis.cause):
        what = "device"  # the file of another host lies on another disk
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


def same_fault(one: Diagnosis, other: Diagnosis) -> bool:
    """Whether both are shown to be one fault of one job, and do not only look alike: both found the same cause, and
    what tells the job is the same (`fault_key`), or the process is.
    """
    if one.cause is None or not {one.verdict, other.verdict} <= _SURE or dedup_key(one) != dedup_key(other):
        return False
    key = fault_key(one)
    if key is None or key != fault_key(other):
        return False
    _, at, place = key.partition("@")
    return not at or "/" in place or _process(one) == _process(other) != 0


def _process(diagnosis: Diagnosis) -> int:
    """The process that was seen to suffer; 0: of ranks none was."""
    return diagnosis.victim.pid if diagnosis.victim is not None else 0


def names_a_job(path: str, comm: str) -> bool:
    """Whether the file `path`, used by `comm`, is of one job and no other, on whatever host.

    What belongs to the system or to a library is used by all; what lies in a place for temporary files is another file
    on each host, unless a command of its own tells the job.
    """
    return _own_path(path) and not (generic_program(comm) and _LOCAL_PATHS.match(path))


def _of_a_device(cause: str | None) -> bool:
    """Whether a cause blames a device itself."""
    known = load_causes().get(cause or "")
    patterns = [*known.primary, *known.required] if known else []
    return any(KINDS[pattern.kind].subject == "device" for pattern in patterns)


def _own_path(path: str) -> bool:
    return path.startswith("/") and _SHARED_PATHS.search(path) is None


def _own_cgroup(cgroup: str) -> bool:
    return bool(cgroup.strip("/")) and _COMMON_CGROUP.fullmatch(cgroup.rstrip("/").rpartition("/")[2]) is None


def generic_program(comm: str) -> bool:
    """Whether `comm` is an interpreter, a framework's thread or the like, and says nothing of the job."""
    return _GENERIC_PROGRAMS.fullmatch(comm.lower()) is not None
