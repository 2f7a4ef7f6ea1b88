"""What of stack samples works here: the timer, the frames of Python, py-spy beside them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from whystall.agent_server.health import Check, State
from whystall.tools.contract.text import clean

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_PERIOD_NS = 10_101_010
_LOOKED_AT = 64
_FAULTS = 3


def sampling() -> Check:
    """Whether the kernel gives us a timer to sample by: one is opened, which does not run, and closed."""
    from whystall.bpf.errors import BpfError
    from whystall.bpf.perf_events import cpu_clock, online_cpus

    setting = _setting()
    try:
        timer = cpu_clock(online_cpus()[0], _PERIOD_NS)
    except BpfError as error:
        means = (
            "what runs cannot be sampled live (cpu_profile, heat_map, record --samples); files of others can be read"
        )
        found = f"{clean(error.message)} (perf_event_paranoid {setting})"
        return Check(name="sampling", state=State.LIMITED, found=found, means=means, fix=error.remedy)
    if timer is not None:
        os.close(timer)
    return Check(name="sampling", state=State.OK, found=f"cpu-clock (perf_event_paranoid {setting})")


def python_frames() -> Check:
    """Of the Python processes that run now, whose frames can be walked, so that a sample tells the line."""
    from whystall.bpf.python_find import NotReady, find
    from whystall.bpf.python_offsets import NEWEST, OLDEST, UnknownLayout

    walked: Counter[str] = Counter()
    faults: dict[str, int] = {}
    unread = 0
    for pid in _pythons():
        try:
            runtime = find(pid, named_only=True)
        except UnknownLayout as error:
            faults.setdefault(clean(str(error)), pid)
        except (NotReady, OSError):
            unread += 1
        else:
            if runtime is not None:
                walked[f"3.{runtime.minor}"] += 1
    known = f"CPython 3.{OLDEST} to 3.{NEWEST}"
    running = ", ".join(f"{version} ({count})" for version, count in sorted(walked.items()))
    found = f"{known} are walked; running now: {running or 'none that could be looked at'}"
    if faults:
        found += "; not walked: " + "; ".join(f"pid {pid}: {why}" for why, pid in list(faults.items())[:_FAULTS])
        means = "samples and waits of those processes carry native frames, and no line of Python"
        fix = f"run them under {known}, or start them with python -X perf, or use py-spy"
        return Check(name="python frames", state=State.LIMITED, found=found, means=means, fix=fix)
    if unread:
        found += f"; {unread} could not be read"
    return Check(name="python frames", state=State.OK, found=found)


def py_spy() -> Check:
    """Whether py-spy is there, which is run beside us where frames cannot be walked."""
    from whystall.tools.collect.py_spy import installed

    path = installed()
    if path:
        return Check(name="py-spy", state=State.OK, found=clean(path))
    means, fix = "only for Python whose frames cannot be walked", "pip install 'whystall[py-spy]'"
    return Check(name="py-spy", state=State.LIMITED, found="not found", means=means, fix=fix)


def _pythons() -> list[int]:
    """Processes whose executable is called like Python, without looking into any."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and len(found) < _LOOKED_AT:
            try:
                name = os.path.basename(os.readlink(f"/proc/{entry.name}/exe"))
            except OSError:
                continue
            if name.startswith("python"):
                found.append(int(entry.name))
    return found


def _setting() -> str:
    try:
        return clean(_PARANOID.read_text().strip())
    except OSError:
        return "unknown"
