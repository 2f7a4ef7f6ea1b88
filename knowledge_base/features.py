"""Typed features: what two cases can have in common beyond words, as ``type:value``.

They come from findings and from cards. Features that nearly every case has (system call entry, interpreter, read and
write) are left out or are not `distinctive`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base.faults import generic_program
from whystall.knowledge_base.models import Diagnosis, Incident
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.text import clean

# Feature types allowed on a card; `cause:` and `kind:` are derived from the card's own fields.
TYPES = {
    "op": "system call: op:fsync",
    "frame": "function of the kernel that was waited in: frame:jbd2_log_wait_commit",
    "code": "function and file of the program that waited: code:save@train.py",
    "fs": "file system: fs:nfs",
    "device": "class of block device: device:nvme",
    "file": "kind of file, by its ending: file:pt",
    "place": "special place of a file: place:shm",
    "program": "command that suffered: program:vllm",
    "neighbour": "command that was in its way: neighbour:dcgm-exporter",
    "irq": "interrupt: irq:net_rx",
    "reason": "what kept it from feeding an accelerator: reason:lock",
    "wake": "why it woke late: wake:idle_exit",
    "wait": "what the job waited for, a code of the critical path: wait:interpreter_lock",
    "root": "what the thread at the end of the chain of waits did: root:running",
    "role": "library code that the job was in: role:data_loader",
    "mode": "how it ran: mode:garbage_collection",
    "collective": "operation of ranks: collective:allreduce",
    "mismatch": "what differed between ranks: mismatch:size",
    "crash": "class of a crash: crash:rcu_stall",
    "xid": "error of a GPU, by NVIDIA's number: xid:79",
    "cgroup": "who made the cgroup: cgroup:kubepods",
    "quota": "CPU quota, rounded up to a power of two: quota:4",
    "period": "time between episodes, as the lower end of half a decade in seconds: period:30",
}
# Sharing a feature of these types suggests the same problem; other types only support it.
_DISTINCTIVE = frozenset(
    {"kind", "cause", "op", "frame", "code", "xid", "neighbour", "irq", "wake", "mismatch", "wait", "role", "mode"}
)
# Waits and roles that jobs with different problems share.
_GENERIC_WAITS = frozenset(
    {"queue", "queue_full", "events", "timeout", "file", "cpu", "lock", "socket", "other", "unknown"}
)
_GENERIC_MODES = frozenset({"user", "system", "fault"})
# System calls that every program waits in or uses all the time.
_WAITS = (
    "read write pread pwrite readv writev preadv pwritev futex poll ppoll select pselect6 epoll_wait epoll_pwait "
    "nanosleep clock_nanosleep ioctl wait4 waitid recvfrom recvmsg sendto sendmsg accept accept4 connect "
    "restart_syscall io_getevents io_uring_enter rt_sigtimedwait pause close openat open stat fstat newfstatat"
)
_GENERIC_OPS = frozenset(_WAITS.split())
# Kernel entry points and waits that unrelated stacks share.
_GENERIC_FRAMES = re.compile(
    r"(vfs_|ksys_|do_sys|do_f?sync|do_writev?|do_readv?|__x64_|__arm64_|__se_|__do_sys|new_sync_|schedule|io_schedule|"
    r"bit_wait|out_of_line_wait|__wait_on_bit|wait_for_completion|wait_on_page|folio_wait|filemap_|generic_file_|"
    r"generic_perform|submit_bio|do_syscall|entry_|ret_from|futex_wait|do_futex|__futex|hrtimer_|do_nanosleep|"
    r"ep_poll|do_epoll|do_poll|do_select|path_openat|do_filp|link_path_walk|kthread|worker_thread|process_one_work)"
)
# Standard library modules that wait for others: not a line of the program's own.
_LIBRARY = re.compile(r"(threading|queues?|selectors|socket|subprocess|connection|popen_fork|ssl)\.py")
_FILE_SYSTEMS = {"nfs4": "nfs", "fuseblk": "fuse", "ext2": "ext4", "ext3": "ext4", "smb3": "cifs", "devtmpfs": "tmpfs"}
_DEVICES = (
    ("nvme", "nvme"),
    ("sd", "scsi"),
    ("xvd", "virtual"),
    ("vd", "virtual"),
    ("loop", "loop"),
    ("dm-", "mapped"),
    ("md", "raid"),
    ("mmcblk", "mmc"),
    ("nbd", "network"),
    ("rbd", "network"),
    ("drbd", "network"),
    ("zram", "zram"),
)
_PLACES = (("/dev/shm/", "shm"), ("/proc/", "proc"), ("/sys/", "sys"), ("/dev/", "dev"), ("/tmp/", "tmp"))  # noqa: S108
_MANAGERS = ("kubepods", "docker", "containerd", "crio", "libpod", "slurm", "lxc", "user.slice", "system.slice")
_ENDING = re.compile(r"\.([a-z][a-z0-9_]{0,11})$")
_CODE = re.compile(r"(.+) \((?:.*/)?([^()/]+):\d+\)")
_CLONE = re.compile(r"(\.(isra|constprop|part|cold|llvm)[.\d]*)+$|\+0x.*$")
_ODD = re.compile(r"[^\w.@+*/<>-]+")
_PERIODS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)
_LONGEST = 80


def of_diagnosis(diagnosis: Diagnosis) -> list[str]:
    """Return the features of the evidence of `diagnosis`, in the order of its chain, without `cause:`."""
    found = [feature for finding in keys.evidence(diagnosis) for feature in of_finding(finding)]
    found += [f"op:{_op(name)}" for name in keys.operations(diagnosis)]
    culprit, victim = diagnosis.culprit, diagnosis.victim
    if culprit is not None:
        found += [*_frames(culprit.kernel_path or ""), *_code(culprit.code or "")]
    if victim is not None and victim.type == "thread":
        found += _program("program", victim.comm)
    return list(dict.fromkeys(found))


def of_finding(finding: Finding) -> Iterator[str]:
    """Yield the features of one finding; generic kinds (time lost, cause unknown) yield no ``kind:``."""
    if finding.kind not in keys.GENERIC_KINDS:
        yield f"kind:{finding.kind}"
    subject, words, metrics = finding.subject, finding.attributes, finding.metrics
    for name in re.split(r"[^a-z0-9_]+", f"{words.get('syscall', '')} {words.get('operations', '')}".lower()):
        if name:
            yield f"op:{_op(name)}"
    yield from _frames(words.get("kernel_path", ""))
    yield from _code(words.get("function") or words.get("code", "") if not finding.kind.startswith("profile.") else "")
    yield from _file(subject.path or "")
    if system := words.get("filesystem", "").lower():
        yield from (f"fs:{part}" for part in dict.fromkeys(_file_systems(system)))
    if subject.device and (family := _device(subject.device)):
        yield f"device:{family}"
    yield from (f"cgroup:{name}" for name in _MANAGERS if name in (subject.cgroup or ""))
    if quota := metrics.get("quota_cpus"):
        yield f"quota:{_power(quota)}"
    if period := metrics.get("period_s"):
        yield f"period:{max((p for p in _PERIODS if p <= period), default=0):g}"
    if finding.kind in ("cpu.neighbour", "disk.neighbour"):
        yield from _program("neighbour", subject.comm or "")
    yield from _program("neighbour", words.get("neighbour", ""))
    if finding.kind.startswith("path."):
        yield from _path(finding)
    for kind, name, attribute in (
        ("irq.steal", "irq", "interrupt"),
        ("accel.host_bound", "reason", "reason"),
        ("sched.wakeup_latency", "wake", "mostly"),
        ("rank.mismatch", "mismatch", "what"),
    ):
        if finding.kind == kind and words.get(attribute):
            yield f"{name}:{plain(words[attribute])}"
    if finding.kind in ("crash.kernel", "crash.program"):
        yield from _frames(words.get("function", ""))
        yield from _code(words.get("code", ""))
        if words.get("what"):
            yield f"crash:{plain(words['what'])}"
    if finding.kind == "gpu.xid" and (code := words.get("xid", "").partition(".")[0]):
        yield f"xid:{code}"
    if finding.kind.startswith(("rank.", "link.")) and words.get("operation"):
        yield f"collective:{re.sub(r'[^a-z]', '', words['operation'].lower())}"


def of_card(incident: Incident) -> list[str]:
    """Return the features of a card, including those implied by its cause, kinds and signatures."""
    found = [f"cause:{incident.cause}"] if incident.cause else []
    found += [f"kind:{kind}" for kind in incident.kinds if kind not in keys.GENERIC_KINDS]
    found += [f"op:{_op(s.rpartition(':')[2])}" for s in incident.signatures if s.startswith("cause+op:")]
    found += normalized(incident.features)
    return list(dict.fromkeys(found))


def normalized(features: Iterable[str]) -> list[str]:
    """Normalize `features` for comparison; unknown types are dropped."""
    found = []
    for feature in features:
        kind, _, value = feature.partition(":")
        kind, value = kind.strip().lower(), plain(value.strip())
        if not value:
            continue
        if kind == "kind" and value in KINDS:
            found.append(f"kind:{value}")
        elif kind == "op":
            found.append(f"op:{_op(value)}")
        elif kind == "fs":
            found += [f"fs:{name}" for name in _file_systems(value)]
        elif kind in TYPES:
            found.append(f"{kind}:{value}")
    return list(dict.fromkeys(found))


def unknown(features: Iterable[str]) -> list[str]:
    """Return those of `features` that `normalized` drops."""
    return [feature for feature in features if not normalized([feature])]


def distinctive(feature: str) -> bool:
    """Return whether sharing `feature` suggests the same problem."""
    kind, _, value = feature.partition(":")
    if kind == "op":
        return value not in _GENERIC_OPS
    if kind == "wait":
        return value not in _GENERIC_WAITS
    return kind in _DISTINCTIVE and value not in keys.GENERIC_KINDS


def plain(text: str) -> str:
    """Return `text` as the value of a feature: lower case, one word, without numbers that change from run to run."""
    return _ODD.sub("_", clean(text, _LONGEST).lower()).strip("_")


def _path(finding: Finding) -> Iterator[str]:
    """Yield the codes of a row of the critical path."""
    words = finding.attributes
    for name, attribute in (("wait", "wait"), ("root", "root_wait"), ("role", "role"), ("mode", "mode")):
        value = plain(words.get(attribute, ""))
        if value and value not in _GENERIC_MODES:
            yield f"{name}:{value}"


def _op(name: str) -> str:
    return re.sub(r"(_time)?64$", "", name)


def _frames(path: str) -> Iterator[str]:
    for name in path.split(" < "):
        function = plain(_CLONE.sub("", name.strip()))
        if function and not _GENERIC_FRAMES.match(function):
            yield f"frame:{function}"


def _code(text: str) -> Iterator[str]:
    known = _CODE.fullmatch(text)
    if known and not _LIBRARY.fullmatch(known[2]) and not known[1].startswith("<"):
        yield f"code:{plain(known[1].rpartition('.')[2])}@{plain(known[2])}"


def _file(path: str) -> Iterator[str]:
    if ending := _ENDING.search(PurePosixPath(path).name.lower()):
        yield f"file:{ending[1]}"
    if place := next((name for prefix, name in _PLACES if path.startswith(prefix)), None):
        yield f"place:{place}"


def _file_systems(name: str) -> list[str]:
    """Yield the names of a file system: ``fuse.s3fs`` is a ``fuse`` and itself."""
    head, _, tail = name.partition(".")
    return [_FILE_SYSTEMS.get(head, head), *([tail] if tail else [])]


def _device(name: str) -> str:
    leaf = name.rpartition("/")[2]
    return next((family for prefix, family in _DEVICES if leaf.startswith(prefix)), "")


def _program(kind: str, comm: str) -> Iterator[str]:
    name = re.sub(r"\d+", "*", plain(comm))
    if name and not generic_program(name):
        yield f"{kind}:{name}"


def _power(cpus: float) -> str:
    size = 0.25
    while size < cpus and size < 1024:
        size *= 2
    return f"{size:g}"
