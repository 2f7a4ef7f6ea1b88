"""Report what a watcher of this host watches, and what it costs."""

from __future__ import annotations

import time
from typing import Any

from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import ENGLISH, View
from whystall.agent_server.watch.status import read_status, runs
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.home import home

_NAME = "watch"
_SHOWN = 5
_LONGEST = 300


def watching(view: View = ENGLISH) -> Check:
    """Report on the watcher whose state is in the same directory; it is fine that none runs."""
    try:
        found = read_status(home() / "watch")
    except ToolError:
        found = None
    if found is None or not found.get("running"):
        return view.ok(_NAME, view.say("watch.stopped"))
    try:
        if not runs(found, time.time()):
            return view.limited(_NAME, view.say("watch.dead"), view.say("watch.means"), view.say("watch.fix"))
        lowered = list(found["cost"]["reasons"])
        text = view.say(
            "watch.runs",
            jobs=_names(view, found["jobs"]),
            cpu=f"{100 * float(found['cost']['cpu_share']):.2f}",
            memory=f"{float(found['memory_mib']):.0f}",
            disk=f"{float(found['cost']['disk_bytes']) / (1 << 20):.0f}",
            threshold=f"{float(found['cost']['min_ns']) / 1e6:.0f}",
            lost=int(found["cost"]["lost"]),
            tickets=int(found["counts"].get("tickets", 0)),
        )
        wrong = _not_as_wanted(view, found)
    except (KeyError, TypeError, ValueError, AttributeError):
        return view.limited(_NAME, view.say("watch.unreadable"), view.say("watch.means"), view.say("watch.fix"))
    if lowered:
        text += view.say("watch.lowered", why=clean(str(lowered[-1])))
        text += _lowered(view, found["cost"].get("lowered"))
    text += wrong
    text += _calls(view, found["cost"].get("calls"))
    return _with_profiles(view, found, text)


def _lowered(view: View, found: object) -> str:
    """Return from which length waits are recorded of processes with less detail; empty without any."""
    if not isinstance(found, dict):
        return ""
    known = sorted(((ns, str(pid)) for pid, ns in found.items() if isinstance(ns, int)), reverse=True)
    names = [view.say("watch.from", pid=clean(pid, 20), threshold=f"{ns / 1e6:.0f}") for ns, pid in known[:_SHOWN]]
    if len(known) > _SHOWN:
        names.append(view.say("watch.more", count=len(known) - _SHOWN))
    return view.say("watch.less", names="; ".join(names)) if names else ""


def _not_as_wanted(view: View, found: dict[str, Any]) -> str:
    """Return what the recorder cannot do, as a log that is kept in memory, and which signs of progress are not read."""
    notes, signs = found["cost"].get("notes", ()), found.get("progress", ())
    text = "".join(view.say("watch.notes", why=clean(str(note), _LONGEST)) for note in notes[:_SHOWN])
    unread = [clean(str(sign["name"]), 80) for sign in signs if sign.get("unreadable")]
    return text + (view.say("watch.signs", names=", ".join(unread[:_SHOWN])) if unread else "")


def _calls(view: View, calls: object) -> str:
    """Return what is probed of the calls of accelerators, and its cost; empty if nothing is wanted."""
    if not isinstance(calls, dict) or calls.get("detail") not in ("all", "waits", "none"):
        return ""
    numbers = {name: clean(str(calls.get(name, 0)), 20) for name in ("functions", "processes")}
    share = calls.get("cpu_share")
    cpu = f"{100 * share:.2f}" if isinstance(share, float) else "?"
    return view.say(f"watch.calls_{calls['detail']}", cpu=cpu, **numbers)


def _with_profiles(view: View, found: dict[str, Any], text: str) -> Check:
    """Add what became of the profiles, if they are sent; limited if the last ones were not stored."""
    pushed = found.get("profiles")
    if not isinstance(pushed, dict):
        return view.ok(_NAME, text)
    sent, lost, error = pushed.get("spans_sent", 0), pushed.get("spans_lost", 0), clean(str(pushed.get("error", "")))
    text += view.say("watch.profiles", sent=clean(str(sent)), lost=clean(str(lost)))
    if error:
        text += view.say("watch.profiles_failed", why=error)
        return view.limited(_NAME, text, view.say("watch.profiles_means"), view.say("watch.profiles_fix"))
    return view.ok(_NAME, text)


def _names(view: View, jobs: list[dict[str, Any]]) -> str:
    names = [clean(f"{job['name']} ({len(job['processes'])})", 80) for job in jobs]
    shown = ", ".join(names[:_SHOWN]) or view.say("none")
    return shown + (view.say("watch.more", count=len(names) - _SHOWN) if len(names) > _SHOWN else "")
