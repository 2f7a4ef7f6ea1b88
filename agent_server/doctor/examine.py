"""What works on this host, what is missing, and the command that fixes it. Reads only; attaches nothing."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sqlite3
from itertools import islice
from pathlib import Path

from whystall.agent_server.doctor.hybrid import hybrid_io
from whystall.agent_server.doctor.model import model
from whystall.agent_server.doctor.settings import settings
from whystall.agent_server.doctor.stacks import py_spy, python_frames, sampling
from whystall.agent_server.health import Check, Health, State
from whystall.agent_server.stack_sources import observes
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean

# Capability numbers, include/uapi/linux/capability.h.
_CAP_SYS_ADMIN, _CAP_SYS_PTRACE, _CAP_PERFMON, _CAP_BPF = 21, 19, 38, 39
_BTF = Path("/sys/kernel/btf/vmlinux")
_OS_RELEASE = Path("/etc/os-release")

# Package names by family of distribution: (libbpf, clang with its linker, libbpf headers).
_APT = {"libbpf": "libbpf1", "clang": "clang llvm", "headers": "libbpf-dev linux-libc-dev", "trace-cmd": "trace-cmd"}
_DNF = {"libbpf": "libbpf", "clang": "clang llvm", "headers": "libbpf-devel kernel-headers", "trace-cmd": "trace-cmd"}


_EBPF_NEEDS = ("kernel", "btf", "lockdown", "privilege", "libbpf", "bpf objects")


def examine() -> Health:
    """Look at this host."""
    checks = [
        _kernel(),
        _btf(),
        _lockdown(),
        _privilege(),
        _libbpf(),
        _objects(),
        _clang(),
        _tracefs(),
        _trace_cmd(),
        _cgroups(),
        _proc(),
        _ptrace(),
        _symbols(),
        _delay_accounting(),
        sampling(),
        python_frames(),
        py_spy(),
        hybrid_io(),
        _database(),
        model(),
        settings(),
    ]
    state = {check.name: check.state for check in checks}
    engines = []
    if all(state[name] is not State.MISSING for name in _EBPF_NEEDS):
        engines.append("ebpf")
    if state["tracefs"] is not State.MISSING:
        engines.append("tracefs")
    if state["/proc"] is not State.MISSING:
        engines.append("procfs")
    collectors = _collectors(engines)
    return Health(checks=checks, engines=engines, collectors=collectors, tools=_tools(collectors))


def report(health: Health) -> str:
    """`health` for a person."""
    width = max(len(check.name) for check in health.checks)
    lines = []
    for check in health.checks:
        lines.append(f"{check.state.value:<8} {check.name:<{width}}  {check.found}")
        if check.state is not State.OK:
            lines += [f"{'':<{width + 11}}{text}" for text in (check.means, check.fix and f"fix: {check.fix}") if text]
    lines += ["", f"engines: {', '.join(health.engines) or 'none: nothing can be observed here'}"]
    lines += [f"collectors: {', '.join(f'{name} {engine}' for name, engine in health.collectors.items())}"]
    lines += [f"  {tool}: {engine}" for tool, engine in health.tools.items()]
    return "\n".join(lines)


def _collectors(engines: list[str]) -> dict[str, str]:
    """The engine that would serve each collector: the first that can."""
    from whystall.tools.toolbox import ENGINES

    found: dict[str, str] = {}
    for engine in (make() for make in ENGINES):
        for collector in sorted(engine.serves):
            if found.get(collector, "none") == "none":
                found[collector] = engine.name if engine.name in engines else "none"
    return found


def _tools(collectors: dict[str, str]) -> dict[str, str]:
    """The engine each registered tool would use; counters, which every tool may look at too, come from /proc."""
    from whystall.agent_server.app import App

    found = {}
    for tool in App().tools():
        wanted = [need.collector for need in tool.needs(tool.params()) if need.collector in collectors]
        dearest = next((name for name in wanted if name != "proc"), "proc")
        found[tool.name] = collectors[dearest] if wanted and observes(tool) else "traces"
    return found


def install_command(what: str) -> str:
    """The command that installs `what` (``libbpf``, ``clang``, ``headers``, ``trace-cmd``) on this distribution."""
    family = _os_family()
    if family == "apt":
        return f"sudo apt-get install -y {_APT[what]}"
    if family == "dnf":
        return f"sudo dnf install -y {_DNF[what]}"
    return f"install {_APT[what]} (Debian's name) with this system's package manager"


def _os_family() -> str:
    words: set[str] = set()
    try:
        for line in _OS_RELEASE.read_text(errors="replace").splitlines():
            key, _, value = line.partition("=")
            if key in ("ID", "ID_LIKE"):
                words |= set(value.strip().strip("\"'").lower().split())
    except OSError:
        return ""
    if words & {"debian", "ubuntu"}:
        return "apt"
    return "dnf" if words & {"openeuler", "fedora", "rhel", "centos", "anolis"} else ""


def _read(path: str) -> str | None:
    try:
        return clean(Path(path).read_bytes().strip())
    except OSError:
        return None


def _kernel() -> Check:
    release = clean(platform.release())
    head = release.split("-")[0].split(".")
    numbers = tuple(int(part) for part in head[:2] if part.isdigit())
    found = f"{release} {platform.machine()}"
    if numbers >= (5, 11):
        return Check(name="kernel", state=State.OK, found=found)
    if numbers >= (5, 8):  # BPF ring buffer
        means = "older than 5.11: task-local storage in tracing programs is missing, a fallback is used"
        return Check(name="kernel", state=State.LIMITED, found=found, means=means)
    means = "older than 5.8: no BPF ring buffer; only the procfs engine works"
    return Check(name="kernel", state=State.MISSING, found=found, means=means, fix="boot a kernel of at least 5.8")


def _btf() -> Check:
    if _BTF.is_file():
        return Check(name="btf", state=State.OK, found=str(_BTF))
    means = "the ebpf engine cannot adapt to this kernel; the procfs engine is used"
    fix = "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (the distribution's default kernel has it)"
    return Check(name="btf", state=State.MISSING, found=f"no {_BTF}", means=means, fix=fix)


def _lockdown() -> Check:
    text = _read("/sys/kernel/security/lockdown")
    if text is None:
        return Check(name="lockdown", state=State.OK, found="not enabled, or not visible")
    mode = text.partition("[")[2].partition("]")[0] or text
    if mode == "confidentiality":
        means = "BPF may not read kernel memory; the ebpf engine cannot load"
        return Check(name="lockdown", state=State.MISSING, found=mode, means=means, fix="boot with lockdown=integrity")
    return Check(name="lockdown", state=State.OK, found=mode)


def _privilege() -> Check:
    status = _read_status()
    effective = int(status.get("CapEff", "0"), 16)

    def has(*capabilities: int) -> bool:
        return all(effective >> number & 1 for number in capabilities)

    if os.geteuid() == 0 and has(_CAP_SYS_ADMIN):
        return Check(name="privilege", state=State.OK, found="root")
    if has(_CAP_SYS_ADMIN) or has(_CAP_BPF, _CAP_PERFMON):
        return Check(name="privilege", state=State.OK, found="CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN")
    found = "root in a container without CAP_SYS_ADMIN" if os.geteuid() == 0 else f"user id {os.geteuid()}, no CAP_BPF"
    means = "the ebpf engine cannot load; procfs sees only this user's processes in full"
    fix = "run as root (sudo), or add the capabilities"
    return Check(name="privilege", state=State.MISSING, found=found, means=means, fix=fix)


def _read_status() -> dict[str, str]:
    text = Path("/proc/self/status").read_text(errors="replace")
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _libbpf() -> Check:
    for name in ("libbpf.so.1", "libbpf.so.0"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        try:
            library.libbpf_version_string.restype = ctypes.c_char_p
            found = f"{name} {clean(library.libbpf_version_string())}"
        except AttributeError:
            found = f"{name}, older than 0.6"
        if name.endswith(".1"):
            return Check(name="libbpf", state=State.OK, found=found)
        means = "older than 1.0, which the ebpf engine needs; the procfs engine is used"
        return Check(name="libbpf", state=State.MISSING, found=found, means=means, fix=install_command("libbpf"))
    means = "the ebpf engine cannot load; the procfs engine is used"
    return Check(name="libbpf", state=State.MISSING, found="no libbpf.so.1", means=means, fix=install_command("libbpf"))


def _objects() -> Check:
    import whystall.bpf

    roots = [Path(root) for root in whystall.bpf.__path__]
    found = sorted({path.name for root in roots for path in root.rglob("*.bpf.o") if _fits(path)})
    if found:
        return Check(name="bpf objects", state=State.OK, found=", ".join(found))
    means = "the ebpf engine has nothing to load; the procfs engine is used"
    fix = f"make build (first: {install_command('clang')}; {install_command('headers')})"
    return Check(name="bpf objects", state=State.MISSING, found="none built", means=means, fix=fix)


def _fits(path: Path) -> bool:
    """Objects are built per architecture, into a directory or a file name that names it, or for one only."""
    marks = {"x86_64": ("x86_64", "x86"), "aarch64": ("aarch64", "arm64")}
    mine = marks.get(platform.machine(), (platform.machine(),))
    others = [mark for machine, words in marks.items() if machine != platform.machine() for mark in words]
    words = [*path.parts[-2:-1], *path.name.split(".")]
    return any(mark in words for mark in mine) or not any(mark in words for mark in others)


def _clang() -> Check:
    path = shutil.which("clang") or next((p for n in range(22, 11, -1) if (p := shutil.which(f"clang-{n}"))), None)
    if path:
        return Check(name="clang", state=State.OK, found=f"{clean(path)} (needed only to build)")
    means = "needed only to build the BPF objects from source"
    return Check(name="clang", state=State.LIMITED, found="not found", means=means, fix=install_command("clang"))


def _tracefs() -> Check:
    from whystall.tools.collect.ftrace.tracefs import find
    from whystall.tools.collect.ftrace.tracefs_engine import TracefsEngine

    means = "`ftrace record` and the tracefs engine cannot record"
    try:
        tracefs = find()
    except ToolError as error:
        return Check(name="tracefs", state=State.MISSING, found=error.message, means=means, fix=error.remedy)
    try:
        found = "not mounted; a private mount is used" if tracefs.private else f"mounted at {tracefs.root}"
    finally:
        tracefs.close()
    why = TracefsEngine().unavailable()
    if why is not None:
        return Check(name="tracefs", state=State.MISSING, found=f"{found}, {why}", means=means, fix="run as root")
    return Check(name="tracefs", state=State.OK, found=found)


def _trace_cmd() -> Check:
    path = shutil.which("trace-cmd")
    if path:
        return Check(name="trace-cmd", state=State.OK, found=f"{clean(path)} (needed only for its own files, .dat)")
    means = "trace-cmd's own files (.dat) cannot be read; recording does not need it"
    fix = install_command("trace-cmd")
    return Check(name="trace-cmd", state=State.LIMITED, found="not found", means=means, fix=fix)


def _cgroups() -> Check:
    if Path("/sys/fs/cgroup/cgroup.controllers").is_file():
        return Check(name="cgroups", state=State.OK, found="version 2")
    names = sorted(p.name for p in Path("/sys/fs/cgroup").glob("*") if (p / "cgroup.procs").is_file())
    if names:
        return Check(name="cgroups", state=State.OK, found=f"version 1: {clean(', '.join(names))}")
    means = "throttling and memory limits cannot be seen"
    return Check(name="cgroups", state=State.LIMITED, found="not mounted", means=means, fix="mount /sys/fs/cgroup")


def _proc() -> Check:
    try:
        readable = Path("/proc/self/stat").read_bytes() and Path("/proc/stat").read_bytes()
    except OSError:
        readable = b""
    if not readable:
        means, fix = "nothing at all can be observed", "mount -t proc proc /proc"
        return Check(name="/proc", state=State.MISSING, found="not readable", means=means, fix=fix)
    if not Path("/proc/1/stat").exists():
        means = "only own processes are visible (hidepid)"
        return Check(name="/proc", state=State.LIMITED, found="restricted", means=means, fix="run as root")
    return Check(name="/proc", state=State.OK, found="readable")


def _ptrace() -> Check:
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    if scope is None:
        return Check(name="ptrace_scope", state=State.OK, found="not restricted")
    capable = int(_read_status().get("CapEff", "0"), 16) >> _CAP_SYS_PTRACE & 1
    if scope == "0" or (capable and scope != "3"):
        return Check(name="ptrace_scope", state=State.OK, found=scope)
    means = "procfs cannot read which system call another process is in"
    return Check(
        name="ptrace_scope",
        state=State.LIMITED,
        found=scope,
        means=means,
        fix="run as root" if scope != "3" else "boot without kernel.yama.ptrace_scope=3",
    )


def _symbols() -> Check:
    setting = _read("/proc/sys/kernel/kptr_restrict") or "unknown"
    try:
        with Path("/proc/kallsyms").open("rb") as lines:
            shown = any(int(line.split()[0], 16) for line in islice(lines, 50))
    except (OSError, ValueError, IndexError):
        shown = False
    if shown:
        return Check(name="kernel symbols", state=State.OK, found=f"kptr_restrict {setting}")
    means = "kernel stacks have no names"
    fix = "run as root; sudo sysctl kernel.kptr_restrict=1"
    return Check(name="kernel symbols", state=State.LIMITED, found=f"kptr_restrict {setting}", means=means, fix=fix)


def _delay_accounting() -> Check:
    setting = _read("/proc/sys/kernel/task_delayacct")
    if setting == "1":
        return Check(name="delay accounting", state=State.OK, found="on")
    means = "the kernel does not count waiting for block I/O; it is estimated from the states of threads"
    if setting is None:
        fix = "boot with the kernel parameter delayacct"
        return Check(name="delay accounting", state=State.LIMITED, found="no switch", means=means, fix=fix)
    fix = "sudo sysctl kernel.task_delayacct=1"
    return Check(name="delay accounting", state=State.LIMITED, found="off", means=means, fix=fix)


def _database() -> Check:
    from whystall.tools.recording.home import home

    means = "tickets and diagnoses cannot be stored"
    try:
        directory = home()
    except ToolError as error:
        return Check(name="database", state=State.MISSING, found=error.message, means=means, fix=error.remedy)
    fix = "set WHYSTALL_HOME to a directory you can write"
    if not os.access(directory, os.W_OK | os.X_OK):
        return Check(name="database", state=State.MISSING, found=f"{directory} is read-only", means=means, fix=fix)
    for path in sorted(directory.glob("*.db")):
        try:
            connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True)
            try:
                verdict = connection.execute("pragma quick_check(1)").fetchone()[0]
            finally:
                connection.close()
        except sqlite3.Error as error:
            verdict = str(error)
        if verdict != "ok" or not os.access(path, os.W_OK):
            found = f"{path}: {clean(verdict) if verdict != 'ok' else 'read-only'}"
            fix = f"move {path} away, or {fix}"
            return Check(name="database", state=State.MISSING, found=found, means=means, fix=fix)
    return Check(name="database", state=State.OK, found=clean(str(directory)))
