"""What findings have to do with each other: threads, files and disks that they name, topics, and layers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from whystall.knowledge_base.causes import device_of
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.text import path_pattern

ROLES = ("holder", "waker", "peer", "neighbour", "file", "device")
"""What one finding's subject is to a thread that waits for it."""

# worker (812), worker (813 of 812) +3. A command may hold parentheses itself, so only the end counts.
_THREAD = re.compile(r"\((?P<tid>\d{1,10})(?: of (?P<pid>\d{1,10}))?\)(?: \+\d+)?$")
# Attributes that name a thread or process, and what that is.
_NAMED = {
    **{"by": "waker", "root_by": "waker", "waker": "waker", "holder": "holder", "peer": "peer"},
    "neighbour": "neighbour",
}
_PID_DIGITS = 10
_LOCKS = ("lock", "interpreter_lock", "file_lock")
_HANDED = ("queue", "queue_full", "barrier", "join", "child", "start_process", "pipe", "pipe_full", "collective")
_REMOTE = ("socket", "socket_full", "connect", "dns", "events")
_OF_FILES = ("file", "file_lock", "page_fault", "io_uring")
_WAITS = ("path.wait", "path.waker", "lock.", "offcpu.blocked", "offcpu.lock_wait", "net.", "accel.host_bound")
_WAITS_TOO = ("sched.preempted_by", "rank.not_entered", "file.slow_", "block.slow_io")

# What kinds of findings are about, by prefix; the first match counts. Empty: it depends, or anything.
_TOPICS: tuple[tuple[str, str], ...] = (
    ("file.lock_contention", "lock storage"),
    *((prefix, "storage") for prefix in ("file.", "block.", "disk.", "filesystem.", "cgroup.io_limit", "io.")),
    *((prefix, "storage memory") for prefix in ("process.io_wait", "writeback.", "process.major_faults", "cache.")),
    ("memory.", "memory storage running"),
    ("process.minor_faults", "memory running"),
    *((prefix, "lock") for prefix in ("lock.", "offcpu.lock_wait")),
    ("net.", "network"),
    *((prefix, "cpu") for prefix in ("sched.", "offcpu.preempted", "cpu.", "cgroup.cpu")),
    ("irq.", "interrupt"),
    *((prefix, "running") for prefix in ("path.running", "syscall.cpu_time", "process.system_time", "profile.")),
    *((prefix, "ranks") for prefix in ("rank.", "stage.", "link.", "replica.")),
)
_OF_WAITS = {
    **dict.fromkeys(_LOCKS, "lock"),
    **dict.fromkeys(("queue", "queue_full", "barrier", "join"), "lock"),
    **dict.fromkeys((*_REMOTE, "collective"), "network"),
    **dict.fromkeys(("cpu", "quota"), "cpu"),
    **{"file": "storage", "io_uring": "storage", "file_lock": "lock storage", "page_fault": "storage memory"},
    **dict.fromkeys(("swap", "memory"), "memory storage"),
    **{"sleep": "sleep", "poll": "sleep", "timeout": "sleep lock network", "device": "device"},
}
_OF_MODES = {**dict.fromkeys(("fault", "copy", "swap_in"), "memory"), "interrupt": "interrupt", "spin": "lock"}
# Reasons for which an accelerator waits for its host; others are about anything.
_OF_REASONS = {
    **dict.fromkeys(("no_cpu", "moved", "throttled", "late"), "cpu"),
    **{"interrupt": "interrupt", "running": "running", "lock": "lock", "sleep": "sleep", "io": "storage"},
}
_OF_ROLES = dict.fromkeys(("network_client", "collective"), "network")
_OF_CALLS = (
    (re.compile(r"futex.*"), "lock"),
    (re.compile(r".*nanosleep"), "sleep"),
    (re.compile(r"recv.*|send(?:to|msg|mmsg)|accept.*|connect|.*poll.*|p?select.*"), "network"),
)
# From the symptom to its origin: a finding is brought about by one of a higher layer only.
_LAYERS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (5, ("disk.neighbour", "cpu.neighbour", "sched.real_time", "cpu.outweighed", "cache.streaming")),
    (4, ("disk.", "cgroup.", "cpu.saturated", "memory.cgroup_limit", "memory.group_growth", "memory.growth")),
    (4, ("memory.copies", "memory.oom_kills", "irq.load", "process.stopped", "filesystem.full", "cache.limit_small")),
    (3, ("block.", "memory.reclaim_stall", "writeback.", "irq.steal", "cache.", "file.lock_contention")),
    (3, ("memory.", "sched.affinity_crowded", "lock.held", "syscall.failed", "process.major_faults")),
    (2, ("file.", "lock.", "net.", "path.waker", "sched.preempted_by", "sched.throttled", "process.minor_faults")),
    (2, ("syscall.", "rank.")),
    (0, ("thread.time", "accel.idle", "job.")),
)
_LAYER = 1
# Kinds whose findings about one thread share no time.
_ACCOUNTS = (("path.running", "path.wait"), ("file.slow_",))


def layer(finding: Finding) -> int:
    """Return how far from the symptom a kind of finding is: 0 (time of a thread) to 5 (another process)."""
    return next((number for number, kinds in _LAYERS if finding.kind.startswith(kinds)), _LAYER)


def topics(finding: Finding, *, chain: bool = False) -> frozenset[str]:
    """Return what `finding` is about (``storage``, ``cpu``, ``lock``); empty if it may be anything. `chain`: or what is
    waited for at the end of its chain of waits."""
    words = finding.attributes
    if finding.kind.startswith("path.") and finding.kind not in ("path.pause", "path.loop_lag"):
        waits = [code for code in (words.get("wait"), words.get("root_wait") if chain else None) if code]
        known = [_OF_WAITS.get(code, "") for code in waits] if "wait" in words else ["running"]
        found = frozenset(" ".join((*known, _OF_MODES.get(words.get("mode", ""), ""))).split())
        return found | frozenset(_OF_ROLES.get(words.get("role", ""), "").split()) if found else found
    if finding.kind == "accel.host_bound":
        return frozenset(_OF_REASONS.get(words.get("reason", ""), "").split())
    if finding.kind == "offcpu.blocked":
        if words.get("state") == "D" or finding.subject.path:
            return frozenset(("storage", "memory"))
        call = words.get("syscall", "")
        return frozenset(topic for pattern, topic in _OF_CALLS if pattern.fullmatch(call))
    return frozenset(next((text for kind, text in _TOPICS if finding.kind.startswith(kind)), "").split())


def same_topic(one: Finding, other: Finding, *, chain: bool = False) -> bool:
    """Return whether two findings may be about the same waits or work; `chain` as in `topics`."""
    a, b = topics(one, chain=chain), topics(other, chain=chain)
    return not a or not b or bool(a & b)


def same_thread(one: Finding, other: Finding) -> bool:
    """Return whether both findings are about one thread (or rank), or one of them about its process or cgroup."""
    a, b = one.subject, other.subject
    if None not in (a.rank, b.rank):
        return a.rank == b.rank
    if a.tid is not None and b.tid is not None:
        return a.tid == b.tid
    if a.pid is None or a.pid != b.pid:
        return False
    # What is measured per thread, and names none, is about all threads: nothing was found in any.
    return not any(f.subject.tid is None and f.spec.subject in ("thread", "file") for f in (one, other))


def same_object(one: Finding, other: Finding) -> bool:
    """Return whether nothing that both findings name differs: file, disk, system calls."""
    for of in (_file, device_of):
        a, b = of(one), of(other)
        if a is not None and b is not None and a != b:
            return False
    calls, others = _calls(one), _calls(other)
    return not calls or not others or bool(calls & others)


def in_different_rows(one: Finding, other: Finding) -> bool:
    """Return whether two findings are parts of one account, which share no time."""
    return (
        any(one.kind.startswith(rows) and other.kind.startswith(rows) for rows in _ACCOUNTS) or one.kind == other.kind
    )


def _file(finding: Finding) -> str | None:
    words = finding.attributes
    path = finding.subject.path or (words.get("object") if words.get("wait") in _OF_FILES else None)
    return path_pattern(path) if path and path.startswith("/") else None


def _calls(finding: Finding) -> set[str]:
    words = finding.attributes
    detail = words.get("detail", "").partition(" ")[0] if words.get("wait") in _OF_FILES else ""
    return {call for call in (words.get("syscall", ""), *words.get("operations", "").split("+"), detail) if call}


def roles(wait: Finding, other: Finding) -> frozenset[str]:
    """Return what the subject of `other` is to the thread of `wait`, which waits for it; empty if it does not."""
    if not wait.kind.startswith((*_WAITS, *_WAITS_TOO)) or wait.id == other.id:
        return frozenset()
    found = set(_named_roles(wait, other))
    if other.subject.pid is not None and str(other.subject.pid) in wait.attributes.get("processes", "").split(", "):
        found.add("neighbour")
    waiter = _THREAD.search(other.attributes.get("waiter", ""))
    if waiter is not None:
        if int(waiter["tid"]) != wait.subject.tid:
            return frozenset()  # what it did while another thread waited
        if other.kind == "path.waker" and _at(wait, other):
            found |= set(_as(wait, "by"))
    if same_thread(wait, other):
        names = {tid for _, tid, _ in _named(wait)}
        if other.kind.startswith("lock.") and not wait.kind.startswith("lock.") and same_topic(wait, other):
            holders = {tid for _, tid, _ in _named(other)}
            found |= {"holder"} if holders & names or (holders and not names) else set()
        if other.kind.startswith("net.") and other.attributes.get("peer") in _objects(wait):
            found.add("peer")
        elsewhere = wait.kind.startswith(("path.", "offcpu.")) and other.kind.startswith(("file.", "cache."))
        if elsewhere and _file(wait) is not None and _file(wait) == _file(other) and same_object(wait, other):
            found.add("file")
    # Whoever waits for a lock of a file waits for its holder, not for the disk of the file.
    locked = wait.kind.startswith("lock.") or wait.attributes.get("wait") in _LOCKS
    if other.kind.startswith(("block.", "disk.")) and not wait.kind.startswith("block.") and not locked:
        known = device_of(wait)
        found |= {"device"} if known is not None and known == other.subject.device else set()
    return frozenset(found)


def named_processes(finding: Finding) -> dict[str, int]:
    """Return the processes that `finding` names, by what they are: ``subject``, or a role of a thread in `ROLES`.

    Of several with one role, the one at the end of its chain of waits. Pids are those of the recording's host.
    """
    found: dict[str, int] = {}
    if finding.subject.pid is not None:
        found["subject"] = finding.subject.pid
    named = sorted(_named(finding), key=lambda one: not one[0].startswith("root_"))
    for attribute, tid, pid in named:
        for role in _as(finding, attribute):
            found.setdefault(role, pid or tid)
    for text in finding.attributes.get("processes", "").split(", "):
        if text.isdecimal() and len(text) <= _PID_DIGITS:
            found.setdefault("neighbour", int(text))
    return found


def roles_in_chain(wait: Finding, other: Finding, findings: Iterable[Finding]) -> frozenset[str]:
    """Return the roles of the thread of `other`, which `wait` names, if `other` is what it did while a third thread
    waited for the thread of `wait`; `findings`: among which that is sought."""
    waiter, via = _waited_at(other)
    if waiter is None or not via or not wait.kind.startswith((*_WAITS, *_WAITS_TOO)) or wait.id == other.id:
        return frozenset()
    if _waited_at(wait) == (waiter, via):
        return _named_roles(wait, other)  # one chain has both
    through = any(
        any(tid == wait.subject.tid for _, tid, _ in _named(of))
        if of.kind == "path.wait" and of.subject.tid == waiter and of.attributes.get("function") == via
        else of.kind == "path.waker" and of.subject.tid == wait.subject.tid and _waited_at(of) == (waiter, via)
        for of in findings
    )
    return _named_roles(wait, other) if through else frozenset()


def _waited_at(waker: Finding) -> tuple[int | None, str]:
    """Return the thread that waits for what `waker` did, and where; None if it names none."""
    words = waker.attributes
    waiter = _THREAD.search(words.get("waiter", ""))
    return (int(waiter["tid"]) if waiter is not None else None), words.get("via", "")


def waits(wait: Finding, other: Finding, findings: Iterable[Finding] = ()) -> frozenset[str]:
    """Return `roles`, or `roles_in_chain` among `findings`, unless the subject of `other` waits for `wait` in turn:
    taking turns holds nobody up, a deadlock does."""
    known = list(findings)
    back = roles(other, wait) or roles_in_chain(other, wait, known)
    if back and not (wait.attributes.get("open") == other.attributes.get("open") == "yes"):
        return frozenset()
    return roles(wait, other) or roles_in_chain(wait, other, known)


def _named_roles(wait: Finding, other: Finding) -> frozenset[str]:
    """Return the roles in which attributes of `wait` name the thread or process of `other`."""
    named = (attribute for attribute, tid, pid in _named(wait) if _is(other, wait, tid, pid))
    return frozenset(role for attribute in named for role in _as(wait, attribute))


def _named(finding: Finding) -> Iterator[tuple[str, int, int | None]]:
    """Yield attribute, thread and process (None: not stated) that `finding` names."""
    remote = finding.attributes.get("wait") in _REMOTE  # else the object is no process: a path may look like one
    for attribute in (*_NAMED, *(("object",) if remote else ())):
        match = _THREAD.search(finding.attributes.get(attribute, ""))
        if match is not None:
            yield attribute, int(match["tid"]), int(match["pid"]) if match["pid"] else None


def _is(other: Finding, wait: Finding, tid: int, pid: int | None) -> bool:
    """Return whether `other` is about the thread `tid`, or about its process if that is not the waiting one."""
    subject = other.subject
    if subject.tid is not None:
        return subject.tid == tid
    return subject.pid is not None and subject.pid != wait.subject.pid and subject.pid in (tid, pid)


def _as(wait: Finding, attribute: str) -> tuple[str, ...]:
    """Return the roles of the thread in an attribute: who ends a wait for a lock had the lock."""
    role, code = _NAMED.get(attribute, "peer"), wait.attributes.get("wait", "")
    if role != "waker":
        return (role,)
    if code == "cpu" or wait.kind == "sched.preempted_by":
        return role, "neighbour", "holder"
    locked = code in _LOCKS or wait.kind == "offcpu.lock_wait"
    handed = code in (*_HANDED, *_REMOTE) or _hands(wait)
    return (role, "holder") if locked else (role, "peer") if handed else (role,)


def _at(wait: Finding, waker: Finding) -> bool:
    """Return whether `wait` is at the line at which what `waker` did was waited for."""
    words, via = wait.attributes, waker.attributes.get("via")
    if wait.kind == "offcpu.blocked":  # by its innermost line; another wait there may be shorter
        return via is not None and words.get("code") == via and _hands(wait) and wait.window_pct >= waker.window_pct
    return words.get("function") == via


def _hands(wait: Finding) -> bool:
    """Return whether another thread ends a blocked call: by sending something or by exiting. Not a file or a sleep."""
    plain = wait.kind == "offcpu.blocked" and wait.attributes.get("state") == "S" and wait.subject.path is None
    return plain and "sleep" not in topics(wait)


def _objects(wait: Finding) -> set[str]:
    return {text for name in ("object", "root_object", "peer") if (text := wait.attributes.get(name))}


def abnormal(finding: Finding) -> bool:
    """Return whether `finding` was judged to be a fault of its subject."""
    return finding.polarity is Polarity.ABNORMAL
