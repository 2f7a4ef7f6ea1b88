"""Check the kernel: version, type information, lockdown, kprobes."""

from __future__ import annotations

import gzip
import platform
import re
import zlib

from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import View
from whystall.tools.contract.text import clean

BTF = "/sys/kernel/btf/vmlinux"
_RING_BUFFER = (5, 8)  # BPF_MAP_TYPE_RINGBUF, commit 457f44363a88
_TASK_STORAGE = (5, 11)  # in tracing programs, commit 4cf1bc1f1045
_ARMED = "/sys/kernel/debug/kprobes/enabled"


def kernel(view: View, release: str | None = None) -> Check:
    """Check that the kernel is recent enough for the ebpf engine."""
    release = clean(release or platform.release())
    found = f"{release} {platform.machine()}"
    if version(release) >= _TASK_STORAGE:
        return view.ok("kernel", found)
    if version(release) >= _RING_BUFFER:
        return view.ok("kernel", view.say("kernel.older", found=found))
    return view.missing("kernel", found, view.say("kernel.too_old"), view.say("kernel.too_old_fix"))


def version(release: str | None = None) -> tuple[int, int]:
    """Return major and minor of a kernel `release` (default: the running one's); (0, 0) if unknown."""
    head = re.match(r"(\d+)\.(\d+)", release or platform.release())
    return (int(head[1]), int(head[2])) if head else (0, 0)


def btf(view: View) -> Check:
    """Check that the kernel has type information (BTF), and if not, whether it could."""
    if view.path(BTF).is_file():
        return view.ok("btf", BTF)
    found, means = view.say("btf.none", path=BTF), view.say("btf.means")
    covering = [(point, kind) for point, kind in _mounts(view) if f"{BTF}/".startswith(f"{point}/")]
    if covering and covering[-1][1] != "sysfs" and covering[-1][0] not in ("", "/"):
        return view.missing("btf", found, means, view.sudo(f"umount {covering[-1][0]}"))
    if not any(kind == "sysfs" for _, kind in covering):
        return view.missing("btf", found, means, view.sudo("mount -t sysfs sysfs /sys"))
    return view.missing("btf", found, means, view.say("btf.fix"))


def lockdown(view: View) -> Check:
    """Check that BPF may read kernel memory; falls back to `/proc/cmdline` if securityfs is not mounted."""
    text = view.read("/sys/kernel/security/lockdown")
    if text is None:
        asked = re.search(r"(?:^|\s)lockdown=(\w+)", view.read("/proc/cmdline") or "")
        mode = asked[1] if asked else ""
        mounted = any(kind == "securityfs" for _, kind in _mounts(view))
        found = view.say("lockdown.none" if mounted else "lockdown.unseen")
    else:
        mode = text.partition("[")[2].partition("]")[0] or text
        found = mode
    if mode == "confidentiality":
        return view.missing("lockdown", mode, view.say("lockdown.means"), view.say("lockdown.fix"))
    return view.ok("lockdown", mode or found)


def kprobes(view: View) -> Check:
    """Check that kprobes exist and are armed: disarmed ones see nothing. Only BCC and such need them."""
    armed = view.read(_ARMED)
    if armed == "0":
        fix = "echo 1 | " + view.sudo(f"tee {_ARMED}")
        return view.limited("kprobes", view.say("kprobes.disarmed"), view.say("kprobes.means"), fix)
    if armed == "1":
        return view.ok("kprobes", view.say("kprobes.armed"))
    config = kernel_config(view)
    if view.exists("/sys/kernel/debug/kprobes") or view.exists("/proc/sys/debug/kprobes-optimization"):
        return view.ok("kprobes", view.say("kprobes.there"))
    if config is None and not view.names("/sys/kernel/debug"):  # debugfs is root's to see
        return view.ok("kprobes", view.say("kprobes.unknown"))
    there = config is not None and "CONFIG_KPROBES" in config
    return view.ok("kprobes", view.say("kprobes.there" if there else "kprobes.none"))


def kernel_config(view: View, release: str | None = None) -> frozenset[str] | None:
    """Return the options that the running kernel was built with (``=y`` or ``=m``); None if unknown."""
    release = release or platform.release()
    raw = view.read_bytes("/proc/config.gz")
    if raw is not None:
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error):
            raw = None
    for place in (f"/boot/config-{release}", f"/lib/modules/{release}/config"):
        raw = raw if raw is not None else view.read_bytes(place)
    if raw is None:
        return None
    return frozenset(found.decode() for found in re.findall(rb"^(CONFIG_\w+)=[ym]$", raw, re.MULTILINE))


def _mounts(view: View) -> list[tuple[str, str]]:
    """Return mount points and kinds of file system, in mount order; ``""`` is the root."""
    found = []
    for line in view.lines("/proc/self/mounts"):
        fields = line.split(" ")
        if len(fields) > 2:
            found.append((fields[1].rstrip("/"), fields[2]))
    return found
