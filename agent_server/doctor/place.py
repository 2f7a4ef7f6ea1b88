"""Check the kernel's file systems: tracefs, control groups, /proc, delay accounting."""

from __future__ import annotations

from whystall.agent_server.doctor.containers import share_pids, situation
from whystall.agent_server.doctor.kernel import version
from whystall.agent_server.doctor.report_model import Check, State
from whystall.agent_server.doctor.rights import become_root
from whystall.agent_server.doctor.view import View
from whystall.tools.collect.ftrace.tracefs import find
from whystall.tools.collect.ftrace.tracefs_engine import READ_ONLY, TracefsEngine
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.node.vantage import PARTIAL_PROC, in_sidecar, node_path

# Controllers of version 1 with a group's limits and throttling counts.
_WANTED = {"cpu": "cpu", "memory": "memory", "io": "blkio"}

_GROUPS = "/sys/fs/cgroup"
_MOUNT_PROC = "mount -t proc proc /proc"


def tracefs(view: View) -> Check:
    """Check that the tracefs engine could make an instance."""
    means, here = view.say("tracefs.means"), situation(view)
    try:
        there = find()
    except ToolError as error:
        fix = error.remedy if view.uid == 0 else become_root(view, here)
        return Check(name="tracefs", state=State.MISSING, found=view.reason(error.message), means=means, fix=fix)
    try:
        found = view.say("tracefs.private") if there.private else view.say("tracefs.mounted", path=there.root)
    finally:
        there.close()
    if "pid" in here.own:
        return view.limited("tracefs", found, view.say("tracefs.foreign"), share_pids(view, here))
    why = TracefsEngine().unavailable()
    if why is not None:
        found = f"{found}{view.say('semicolon')}{view.reason(why)}"
        # a container with the capabilities for observing needs another user for this, not more capabilities
        fix = view.say("tracefs.fix_container") if here.runtime and view.uid != 0 else become_root(view, here)
        if why == PARTIAL_PROC:
            fix = view.sudo(_MOUNT_PROC)
        elif why == READ_ONLY and view.uid == 0:
            fix = f"mount -o remount,bind,rw {there.root}"
        return view.missing("tracefs", found, means, fix)
    return view.ok("tracefs", found)


def cgroups(view: View) -> Check:
    """Check the version, and the controllers that throttle and limit."""
    processes = view.path("/proc")  # a sidecar reads the node's
    top = node_path(_GROUPS, processes) if in_sidecar(processes) else view.path(_GROUPS)
    try:
        controllers = clean((top / "cgroup.controllers").read_bytes().strip()).split()
    except OSError:
        try:
            places = [path.name for path in top.iterdir() if (path / "cgroup.procs").is_file()]
        except OSError:
            places = []
    else:
        lacks = [name for name in _WANTED if name not in controllers]
        return _judged(view, view.say("cgroups.two", names=", ".join(controllers) or view.say("none")), lacks)
    if not places:
        there = view.exists(_GROUPS)  # the kernel makes it, wherever sysfs is mounted
        fix = view.sudo(f"mount -t cgroup2 none {_GROUPS}" if there else "mount -t sysfs sysfs /sys")
        return view.limited("cgroups", view.say("cgroups.none"), view.say("cgroups.means"), fix)
    names = sorted({one for name in places for one in name.split(",")} - {"systemd", "unified"})
    lacks = [old for old in _WANTED.values() if old not in names]
    return _judged(view, view.say("cgroups.one", names=", ".join(names)), lacks)


def _judged(view: View, found: str, lacks: list[str]) -> Check:
    if not lacks:
        return view.ok("cgroups", found)
    means = view.say("cgroups.lacks", names=", ".join(lacks))
    return view.limited("cgroups", found, means, view.say("cgroups.lacks_fix", names=", ".join(lacks)))


def proc(view: View) -> Check:
    """Check that /proc is mounted and shows all processes."""
    fix = view.sudo(_MOUNT_PROC)
    if not view.read_bytes("/proc/self/stat"):
        return view.missing("/proc", view.say("proc.none"), view.say("proc.none_means"), fix)
    if not view.read_bytes("/proc/stat"):
        return view.missing("/proc", view.say("proc.partial"), view.say("proc.partial_means"), fix)
    if not view.exists("/proc/1/stat"):
        fix = view.sudo("mount -o remount,hidepid=0 /proc")
        return view.limited("/proc", view.say("proc.hidden"), view.say("proc.hidden_means"), fix)
    return view.ok("/proc", view.say("proc.readable"))


def delay_accounting(view: View, release: str | None = None) -> Check:
    """Check that the kernel counts waits for block I/O: off by default since 5.14 (commit e4042ad49235, which added the
    switch), before that on unless booted with ``nodelayacct``.
    """
    setting, name = view.read("/proc/sys/kernel/task_delayacct"), "delay accounting"
    if setting == "1":
        return view.ok(name, view.say("delay.on"))
    if setting is None and version(release) < (5, 14) and "nodelayacct" not in (view.read("/proc/cmdline") or ""):
        return view.ok(name, view.say("delay.on"))
    if setting is None:
        means = view.say("delay.means")
        return view.limited(name, view.say("delay.no_switch"), means, view.say("delay.boot"))
    fix = view.sudo("sysctl kernel.task_delayacct=1")
    return view.limited(name, view.say("delay.off"), view.say("delay.means"), fix)
