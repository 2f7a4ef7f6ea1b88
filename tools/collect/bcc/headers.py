"""Check that the kernel headers that BCC would compile against are those of the running kernel.

With headers of another kernel its programs read fields at wrong offsets, report nothing or nonsense, and exit with
status 0. BCC searches (loader.cc, `ClangLoader::parse`) BCC_KERNEL_SOURCE, then /lib/modules/RELEASE, then
/sys/kernel/kheaders.tar.xz, which it unpacks below the temporary directory and finds there the next time.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from whystall.tools.contract.text import clean, clean_path

_MOST = 4 << 20
# #define UTS_RELEASE "6.1.0-50-amd64"   (include/generated/utsrelease.h)
_RELEASE = re.compile(r'#define\s+UTS_RELEASE\s+"([^"\n]{1,64})"')
# CONFIG_SMP=y   (auto.conf, /boot/config-RELEASE, /proc/config.gz)
_OPTION = re.compile(r"^(CONFIG_\w+)=([ym])$", re.MULTILINE)
# Options that move fields of the structures read here: tasks, their memory and files, requests, the scheduler. Others
# (module keys, compiler features) differ between a kernel and its packaged headers and move nothing.
_LAYOUT = re.compile(
    r"CONFIG_(SMP|NUMA\w*|PREEMPT\w*|CGROUPS?|CGROUP_\w+|MEMCG\w*|BLK_\w+|SCHED_\w+|\w+_GROUP_SCHED|UCLAMP_\w+|PSI|KEYS"
    r"|LOCKDEP|PROVE_\w+|LOCK_STAT|DEBUG_(SPINLOCK|MUTEXES|RWSEMS|LOCK_ALLOC|PREEMPT|LIST)|KASAN\w*|KCSAN|KMSAN"
    r"|GCC_PLUGIN_RANDSTRUCT\w*|RANDSTRUCT\w*|THREAD_INFO_IN_TASK|VMAP_STACK|TASKSTATS|TASK_\w+|AUDIT\w*|SECCOMP\w*"
    r"|SECURITY|FUTEX\w*|PERF_EVENTS|BPF_SYSCALL|FUNCTION_\w*TRACER|FSNOTIFY|FANOTIFY|FS_\w+|QUOTA|UNICODE|EPOLL|SYSVIPC"
    r"|DETECT_HUNG_TASK|COMPAT|NO_HZ\w*|VIRT_CPU_ACCOUNTING\w*|POSIX_TIMERS|KRETPROBES|LATENCYTOP|RSEQ|X86_64|64BIT)"
)


@dataclass(frozen=True)
class HeadersProblem:
    """Why BCC cannot be trusted here: `found` in one line, and the command that fixes it."""

    found: str
    remedy: str


def problem(root: Path = Path("/"), release: str | None = None) -> HeadersProblem | None:
    """Return what is wrong with the headers that BCC would use; None if they are the running kernel's.

    `root` and `release` (``uname -r``): those of the host, or others for tests.
    """
    release = release or os.uname().release
    named = os.environ.get("BCC_KERNEL_SOURCE")
    if named:
        wrong = _wrong(Path("/", named), root, release)  # our children run in "/"
        return HeadersProblem(wrong, "unset BCC_KERNEL_SOURCE, or set it to this kernel's headers") if wrong else None
    modules = root / "lib/modules" / release
    tree = modules / "build"
    if not _resolved(tree, root).is_dir():
        if _resolved(modules / "source", root).is_dir():
            return HeadersProblem(f"{modules}/source without build", _install(root, release))
        return _kheaders(root, release)
    wrong = _wrong(tree, root, release)
    return HeadersProblem(wrong, _install(root, release)) if wrong else None


def _kheaders(root: Path, release: str) -> HeadersProblem | None:
    """Check the kernel's own headers. A directory of earlier unpacked ones must be root's: any user can create it."""
    if not (root / "sys/kernel/kheaders.tar.xz").exists():
        return HeadersProblem(f"no headers of the running kernel {clean(release)}", _install(root, release))
    directory = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as BCC has it
    unpacked = root / directory.lstrip("/") / f"kheaders-{release}"
    try:
        owner = unpacked.lstat().st_uid
    except OSError:
        return None
    if owner in (0, os.geteuid()):
        return None
    return HeadersProblem(f"{clean_path(str(unpacked))} belongs to user {owner}", f"remove {unpacked}")


def _resolved(tree: Path, root: Path) -> Path:
    """Follow `tree`, often a symbolic link to an absolute path of the host, below `root`."""
    try:
        target = os.readlink(tree)
    except OSError:
        return tree
    return root / target.lstrip("/") if target.startswith("/") else tree.parent / target


def _wrong(tree: Path, root: Path, release: str) -> str | None:
    place = _resolved(tree, root)
    # distributions may split the tree: generated headers in `build`, the others in `source`
    beside = _resolved(tree.with_name("source"), root)
    if not any((part / "include/linux/kconfig.h").is_file() for part in (place, beside)):
        return f"{clean_path(str(tree))} holds no headers"
    text = _read(place / "include/generated/utsrelease.h")
    defined = _RELEASE.search(text) if text else None
    # second choice, since a distribution may put a shorter text into it
    found = defined[1] if defined else (_read(place / "include/config/kernel.release") or "").strip()
    if not found:
        return f"{clean_path(str(tree))} does not state its kernel"
    if found != release:
        return f"headers are of kernel {clean(found, 64)}, running is {clean(release, 64)}"
    return _other_options(place, root, release)


def _other_options(place: Path, root: Path, release: str) -> str | None:
    """Compare the options: a custom kernel keeps its release when they change, and with them the structures' layout."""
    running = _running_options(root, release)
    built = _options(_read(place / "include/config/auto.conf") or _read(place / ".config"))
    if not running or not built:
        return None
    differ = sorted(
        name
        for name in running.keys() | built.keys()
        if running.get(name) != built.get(name) and _LAYOUT.fullmatch(name)
    )
    if not differ:
        return None
    return f"headers are of a kernel with other options: {', '.join(differ[:3])}" + (" ..." if len(differ) > 3 else "")


def _running_options(root: Path, release: str) -> dict[str, str]:
    try:
        with gzip.open(root / "proc/config.gz") as file:
            return _options(file.read(_MOST).decode("ascii", "replace"))
    except (OSError, EOFError, zlib.error):
        return _options(_read(root / "boot" / f"config-{release}"))


def _options(text: str | None) -> dict[str, str]:
    return dict(_OPTION.findall(text)) if text else {}


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_MOST).decode("ascii", "replace")
    except OSError:
        return None


def packaged(root: Path, release: str) -> bool:
    """Return whether the kernel `release` came as a package of the distribution: only then is there one with headers.

    Judged by the files that such a package installs below `root`; an unreadable directory (/boot) counts as empty.
    """
    places = ("boot/vmlinuz-", "boot/config-", "lib/modules/")
    return any(os.path.exists(root / f"{place}{release}") for place in places)


def _install(root: Path, release: str) -> str:
    """Return the command that installs the headers of the running kernel on this distribution."""
    if not packaged(root, release):
        return "install the headers that came with this kernel: it is none of this distribution's packages"
    words: set[str] = set()
    for line in (_read(root / "etc/os-release") or "").splitlines():
        key, _, value = line.partition("=")
        if key in ("ID", "ID_LIKE"):
            words |= set(value.strip().strip("\"'").lower().split())
    release = clean(release, 64)
    if words & {"debian", "ubuntu"}:
        command = f"sudo apt-get install -y linux-headers-{release}"
    elif words & {"openeuler", "fedora", "rhel", "centos", "anolis", "amzn"}:
        command = f"sudo dnf install -y kernel-devel-{release}"
    elif words & {"suse", "opensuse", "sles"}:
        command = "sudo zypper install -y kernel-default-devel"
    else:
        command = f"install the headers of kernel {release} with this system's package manager"
    return f"{command} (in a container: mount the host's /lib/modules and /usr/src, read-only)"
