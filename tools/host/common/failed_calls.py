"""Report failing system calls whose errors mean that a resource is exhausted, broken or unreachable."""

from __future__ import annotations

from whystall.tools.contract.findings import Finding, Interval, Severity, Subject
from whystall.tools.contract.result import Model
from whystall.tools.host.common.findings import any_thread, finding, window
from whystall.tools.recording.store import Recording

# A single failure is reported: storage is full, broken or read-only, or no more files can be opened.
_ALWAYS = frozenset({"ENOSPC", "EDQUOT", "EIO", "EROFS", "ESTALE", "EMFILE", "ENFILE"})
# Reported from three failures on (a retry loop): programs fall back from huge pages, and single refused or closed
# connections are normal.
_REPEATED = frozenset(
    {"ENOMEM", "ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "ENETUNREACH", "EPIPE", "EADDRNOTAVAIL"}
)
_REPEATS = 3
# Calls that take locks of files, and their errors if another process has it.
_FILE_LOCKS, _HELD = frozenset({"fcntl", "flock"}), frozenset({"EAGAIN", "EACCES"})
# Error of calls on files whose FUSE daemon has ended (fs/fuse/dev.c). Of sockets that are not connected it is normal.
_NO_DAEMON = "ENOTCONN"
# Calls that start processes or threads, and their error if there may be no more.
_STARTS, _NO_MORE = frozenset({"clone", "clone3", "fork", "vfork"}), "EAGAIN"
_FINDINGS = 8


class FailureRow(Model):
    """Calls of one thread that failed with one error. `path`: of the first one; `object`: its socket or pipe. Times in
    seconds since the start. `dev`, `ino`: of the file; empty and -1 if unknown."""

    pid: int
    tid: int
    comm: str
    syscall: str
    error: str
    count: int
    first_s: float
    last_s: float
    path: str
    object: str
    dev: str = ""
    ino: int = -1


def failed_calls(recording: Recording) -> list[FailureRow]:
    """Return the failing calls, by severity, then by count."""
    table = recording.find("syscalls.failures")
    if table is None:
        return []
    known = recording.table("syscalls.files").select("file", "path", "dev", "ino").iter_rows()
    files = {file: (path, dev, ino) for file, path, dev, ino in known}
    names = ("pid", "tid", "comm", "syscall", "error", "count", "object")
    rows = [
        FailureRow(
            **{name: r[name] for name in names},
            first_s=r["first_ns"] / 1e9,
            last_s=r["last_ns"] / 1e9,
            **dict(zip(("path", "dev", "ino"), files.get(r["file"], ("", "", -1)), strict=True)),
        )
        for r in table.iter_rows(named=True)
    ]
    return sorted(rows, key=lambda row: (-_grade(row).rank, -row.count))


def failure_findings(recording: Recording, rows: list[FailureRow]) -> list[Finding]:
    """Return a finding per failing call above INFO; a normal finding if all calls were recorded and none is."""
    manifest = recording.manifest
    span_s = max(manifest.window_ns / 1e9, 1e-3)
    found = []
    for row in rows:
        if is_fault(row):
            words = {"syscall": row.syscall, "error": row.error, "path": row.path, "object": row.object}
            words = {name: text for name, text in words.items() if text}
            subject = Subject(type="thread", pid=row.pid, tid=row.tid, comm=row.comm, path=row.path or None)
            when = Interval(start_ns=int(row.first_s * 1e9), end_ns=int(row.last_s * 1e9))
            metrics = {"count": row.count, "rate": row.count / span_s}
            found.append(finding("syscall.failed", subject, when, metrics, _grade(row), words))
    whole = recording.find("syscalls.failures") is not None and manifest.saw_everything("syscalls")
    if not found and whole and not manifest.target.everything:
        about = any_thread(manifest.target)
        found.append(finding("syscall.failed", about, window(manifest.window_ns), {"count": 0, "rate": 0}))
    return found[:_FINDINGS]


def _grade(row: FailureRow) -> Severity:
    if row.error in _ALWAYS:
        return Severity.MAJOR
    if row.syscall in _STARTS and row.error == _NO_MORE:
        return Severity.MAJOR
    repeated = row.error in _REPEATED or is_held_lock(row) or (row.error == _NO_DAEMON and row.path.startswith("/"))
    return Severity.MINOR if repeated and row.count >= _REPEATS else Severity.INFO


def is_fault(row: FailureRow) -> bool:
    """Return whether the error means that a resource is exhausted, broken or unreachable, and came often enough."""
    return _grade(row) is not Severity.INFO


def is_held_lock(row: FailureRow) -> bool:
    """Return whether the call failed since another process has the lock of the file (fcntl(2), flock(2))."""
    return row.syscall in _FILE_LOCKS and row.error in _HELD
