"""Check what stack samples need: the timer, Python frames, py-spy."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from pathlib import Path

from whystall.agent_server.doctor.containers import situation
from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.rights import held_capabilities, let_trace
from whystall.agent_server.doctor.view import ENGLISH, View
from whystall.bpf.errors import BpfError
from whystall.bpf.perf_events import cpu_clock, online_cpus
from whystall.bpf.python_find import NotReady, find
from whystall.bpf.python_offsets import NEWEST, OLDEST, UnknownLayout
from whystall.tools.collect.py_spy import installed
from whystall.tools.contract.text import clean

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
# The kernel's highest level is 2. Debian and Ubuntu add 3 and 4, which exclude all but CAP_SYS_ADMIN (Debian 5.10) or
# CAP_PERFMON.
_STRICTEST = 2
_PERIOD_NS = 10_101_010
_LOOKED_AT = 64
_FAULTS = 3


def sampling(view: View = ENGLISH) -> Check:
    """Check that the kernel grants a sampling timer: one is opened, not started, and closed."""
    setting = _setting()
    try:
        timer = cpu_clock(online_cpus()[0], _PERIOD_NS)
    except BpfError as error:
        found = f"{clean(view.reason(error.message))} (perf_event_paranoid {setting})"
        fix = error.remedy if error.code != "no_privilege" else let_trace(view, situation(view))
        if "CAP_PERFMON" in held_capabilities(view) and setting.isdigit() and int(setting) > _STRICTEST:
            fix = view.sudo(f"sysctl kernel.perf_event_paranoid={_STRICTEST}")
        return view.limited("sampling", found, view.say("sampling.means"), fix)
    if timer is not None:
        os.close(timer)
    return view.ok("sampling", f"cpu-clock (perf_event_paranoid {setting})")


def python_frames(view: View = ENGLISH) -> Check:
    """Check for how many running Python processes frames can be walked."""
    walked: Counter[str] = Counter()
    faults: dict[str, int] = {}
    pids, unread = _pythons()
    for pid in pids:
        try:
            runtime = find(pid, named_only=True)
        except UnknownLayout as error:
            faults.setdefault(clean(str(error)), pid)
        except (NotReady, OSError):
            unread += 1
        else:
            if runtime is not None:
                walked[f"3.{runtime.minor}"] += 1
    known = view.say("python.known", oldest=OLDEST, newest=NEWEST)
    running = ", ".join(f"{version} ({count})" for version, count in sorted(walked.items()))
    found = view.say("python.walked", known=known, running=running or view.say("python.none"))
    if faults:
        shown = "; ".join(f"pid {pid}: {why}" for why, pid in list(faults.items())[:_FAULTS])
        found += view.say("python.refused", faults=shown)
        return view.limited("python frames", found, view.say("python.means"), view.say("python.fix", known=known))
    if unread:
        found += view.say("python.unread", count=unread)
    return view.ok("python frames", found)


def py_spy(view: View = ENGLISH) -> Check:
    """Check that py-spy is installed, which samples processes whose frames cannot be walked."""
    path = installed()
    if path:
        return view.ok("py-spy", clean(path))
    fix = f"{clean(sys.executable)} -m pip install py-spy"
    if not os.access(sysconfig.get_path("scripts"), os.W_OK, effective_ids=True):
        fix = f"sudo {fix}"
    return view.limited("py-spy", view.say("not_found"), view.say("py_spy.means"), fix)


def _pythons() -> tuple[list[int], int]:
    """Return processes whose executable has a name like Python's, and how many more claim so in their command line
    while their executable is unreadable to us.
    """
    found: list[int] = []
    hidden = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and len(found) < _LOOKED_AT:
            try:
                name = os.path.basename(os.readlink(f"/proc/{entry.name}/exe"))
            except PermissionError:
                hidden += _started_as(entry.name).startswith("python")
                continue
            except OSError:
                continue
            if name.startswith("python"):
                found.append(int(entry.name))
    return found, hidden


def _started_as(pid: str) -> str:
    """Return the first word of its command line, which all users may read."""
    try:
        return os.path.basename(clean(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]))
    except OSError:
        return ""


def _setting() -> str:
    try:
        return clean(_PARANOID.read_text().strip())
    except OSError:
        return "unknown"
