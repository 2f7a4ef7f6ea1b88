"""Check what the BCC engine needs: stock tools, the module of the system's Python, headers of this kernel."""

from __future__ import annotations

import platform

from whystall.agent_server.doctor.containers import situation
from whystall.agent_server.doctor.kernel import kernel_config
from whystall.agent_server.doctor.packages import install_command
from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import View
from whystall.tools.collect.bcc.headers import packaged, problem
from whystall.tools.collect.bcc.own_program import python_bcc
from whystall.tools.contract.commands import COMMANDS, program
from whystall.tools.contract.text import clean


def bcc(view: View) -> Check:
    """Check that the tools and the module are installed."""
    stock = sorted(name.removeprefix("bcc.") for name in COMMANDS if name.startswith("bcc.") and name != "bcc.own")
    there = [name for name in stock if _installed(view, f"bcc.{name}")]
    module = python_bcc(view.root) is not None
    if module and len(there) == len(stock):
        return view.ok("bcc", view.say("bcc.all", names=", ".join(there)))
    fix = install_command("bcc", view)
    if not module and not there:
        return view.limited("bcc", view.say("bcc.none"), view.say("bcc.means"), fix)
    lacks = [*(name for name in stock if name not in there), *([] if module else [view.say("bcc.module")])]
    found = view.say("bcc.some", names=", ".join(there) or view.say("none"), lacks=", ".join(lacks))
    return view.limited("bcc", found, view.say("bcc.means_some"), fix)


def headers(view: View, release: str | None = None) -> Check:
    """Check that the headers are the running kernel's: with others BCC's programs are silently wrong."""
    wrong = problem(view.root, release)
    if wrong is None:
        return view.ok("kernel headers", view.say("bcc.headers", release=clean(release or platform.release())))
    return view.limited(
        "kernel headers", view.reason(wrong.found), view.say("bcc.headers_means"), _mend(view, wrong.remedy, release)
    )


def _mend(view: View, remedy: str, release: str | None) -> str:
    """Return the command that installs the headers; a package only if the kernel came as one."""
    if "install" not in remedy:  # a variable or a directory is in the way
        return remedy
    if situation(view).runtime:
        return view.say("bcc.headers_mount")
    if "CONFIG_IKHEADERS" in (kernel_config(view, release) or ()):
        return view.sudo("modprobe kheaders")
    release = release or platform.release()
    if packaged(view.root, release):
        return install_command("kernel headers", view, release)
    return view.say("bcc.headers_foreign")


def _installed(view: View, name: str) -> bool:
    if str(view.root) == "/":
        return program(name) is not None
    return any(view.exists(place) for place in COMMANDS[name].places)
