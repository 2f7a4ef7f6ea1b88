"""Check privileges: BPF as the kernel permits it, capabilities, access to other processes, symbols."""

from __future__ import annotations

import os
import pwd
import sys
from itertools import islice
from pathlib import Path

from whystall.agent_server.doctor.containers import Situation, leave_user_namespace, situation
from whystall.agent_server.doctor.kernel import version
from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import View
from whystall.bpf import probe
from whystall.bpf.privileges import NEEDED, held
from whystall.tools.contract.text import clean

# Needed for tracing. Before Linux 5.8 (commits a17b53c4a4b5, 980737282232) CAP_SYS_ADMIN covered both; it still
# does.
_SYS_ADMIN = frozenset({"CAP_BPF", "CAP_PERFMON"})


def privilege(view: View) -> Check:
    """Check that the kernel lets us load BPF programs, by trying."""
    refused = probe.refusal()
    here = situation(view)
    who = _who(view, here)
    if refused is None:
        return view.ok("privilege", who)
    if refused.code == "no_libbpf" and _granted(view, here):  # the kernel could not be asked
        return view.ok("privilege", who)
    found, means = f"{who}{view.say('semicolon')}{view.reason(refused.message)}", view.say("privilege.means")
    if refused.code == "memlock" and view.uid and not here.runtime:
        return view.missing("privilege", found, means, grant(view, here))
    if refused.code != "no_privilege":
        return view.missing("privilege", found, means, refused.remedy)
    return view.missing("privilege", found, means, let_trace(view, here))


def let_trace(view: View, here: Situation) -> str:
    """Return what permits bpf(2) and perf_event_open(2): privileges, or removing a filter (seccomp(2)) if neither the
    user nor a capability is at fault.
    """
    if not _granted(view, here):
        return become_root(view, here)
    if here.kubernetes:
        return view.say("privilege.filter_kubernetes")
    if here.runtime in ("docker", "podman"):
        return f"{here.runtime} run --security-opt seccomp=unconfined ..."
    return view.say("privilege.filter")


def capabilities(view: View) -> Check:
    """Check each needed capability: what is missing without it, and the command that grants it."""
    effective, here = held_capabilities(view), situation(view)
    has = [name for name in NEEDED if name in effective]
    lacks = [name for name in NEEDED if name not in effective]
    if "user" in here.own:
        found = view.say("capabilities.namespace", names=_names(has) or view.say("none"))
        means = view.say("capabilities.namespace_means")
        return view.limited("capabilities", found, means, leave_user_namespace(view, here))
    if not lacks:
        return view.ok("capabilities", _names(has))
    found = view.say("capabilities.some", has=_names(has) or view.say("none"), lacks=_names(lacks))
    means = view.say("semicolon").join(view.say(f"capabilities.without.{name}") for name in lacks)
    return view.limited("capabilities", found, means, grant(view, here))


def held_capabilities(view: View) -> frozenset[str]:
    """Return the effective ones of `NEEDED`; CAP_SYS_ADMIN includes those that were once part of it."""
    found = held(view.path("/proc/thread-self/status"))
    if "CAP_SYS_ADMIN" in found:
        found |= _SYS_ADMIN
    return frozenset(NEEDED) & found


def grant(view: View, here: Situation) -> str:
    """Return the command, or the setting, that grants all of `NEEDED` and nothing else."""
    names = [name.removeprefix("CAP_") for name in NEEDED]
    if here.kubernetes:
        return view.say("capabilities.fix_kubernetes", names=", ".join(names))
    if here.runtime in ("docker", "podman"):
        sudo = "sudo " if here.runtime == "podman" else ""
        return f"{sudo}{here.runtime} run --pid=host {' '.join(f'--cap-add={name}' for name in names)} ..."
    if here.runtime:
        return view.say("capabilities.fix_runtime", names=", ".join(names))
    if view.uid == 0:  # a limited root was started so, by a unit or by its parent
        return view.say("capabilities.fix_bounding", names=" ".join(NEEDED))
    # before 5.11 BPF memory counts as locked memory, which is limited for users
    limit = "prlimit --memlock=unlimited " if version() < (5, 11) else ""
    return (
        f'sudo {limit}env HOME="$HOME" setpriv --reuid={view.uid} --regid={os.getegid()} {_groups(view.uid)} '
        f"--inh-caps={_plus()} --ambient-caps={_plus()} {own_command()} doctor"
    )


def ptrace(view: View) -> Check:
    """Check whose system calls, memory and open files we may read (ptrace(2), "access mode checking")."""
    scope = view.read("/proc/sys/kernel/yama/ptrace_scope")
    here = situation(view)
    found = view.say("ptrace.none") if scope is None else scope
    if scope == "3":
        return view.limited("ptrace_scope", found, view.say("ptrace.nobody"), view.say("ptrace.boot"))
    if "CAP_SYS_PTRACE" in held_capabilities(view) and "user" not in here.own:
        return view.ok("ptrace_scope", found)
    means = view.say("ptrace.own" if scope in (None, "0") else "ptrace.children")
    return view.limited("ptrace_scope", view.say("ptrace.without", found=found), means, become_root(view, here))


def symbols(view: View) -> Check:
    """Check that kernel functions have names for us (``kallsyms_show_value``, kernel/ksyms_common.c)."""
    setting = view.read("/proc/sys/kernel/kptr_restrict") or "?"
    try:
        with view.path("/proc/kallsyms").open("rb") as lines:
            shown = any(int(line.split()[0], 16) for line in islice(lines, 50))
    except (OSError, ValueError, IndexError):
        shown = False
    found = f"kptr_restrict {setting}"
    if shown:
        return view.ok("kernel symbols", found)
    here = situation(view)
    if setting in ("0", "1") and ("user" in here.own or "CAP_SYSLOG" not in held_capabilities(view)):
        return view.limited("kernel symbols", found, view.say("symbols.means"), become_root(view, here))
    fix = view.sudo("sysctl kernel.kptr_restrict=1")
    return view.limited("kernel symbols", found, view.say("symbols.means"), fix)


def own_command() -> str:
    """Return the path of our own command, since sudo has a path of its own."""
    own = Path(sys.executable).with_name("whystall")
    return clean(str(own)) if own.is_file() else "whystall"


def become_root(view: View, here: Situation) -> str:
    """Return how this user gets all privileges."""
    if "user" in here.own:
        return leave_user_namespace(view, here)
    if here.runtime or view.uid == 0:
        return grant(view, here)
    if _status(view).get("NoNewPrivs") == "1":
        return view.say("privilege.fix_no_new_privs", command=f"sudo {own_command()} doctor")
    return f"sudo {own_command()} doctor"


def _granted(view: View, here: Situation) -> bool:
    return "user" not in here.own and held_capabilities(view) >= _SYS_ADMIN


def _who(view: View, here: Situation) -> str:
    if "user" in here.own:
        return view.say("privilege.namespace", uid=view.uid)
    effective = held_capabilities(view)
    if view.uid == 0:
        lacks = [name for name in NEEDED if name not in effective]
        return view.say("privilege.root_without", names=_names(lacks)) if lacks else "root"
    if effective:
        return view.say("privilege.capable", uid=view.uid, names=_names([n for n in NEEDED if n in effective]))
    return view.say("privilege.user", uid=view.uid)


def _status(view: View) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in view.lines("/proc/self/status"))}


def _names(names: list[str]) -> str:
    return ", ".join(names)


def _plus() -> str:
    return ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in NEEDED)


def _groups(uid: int) -> str:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return "--clear-groups"
    return "--init-groups"
