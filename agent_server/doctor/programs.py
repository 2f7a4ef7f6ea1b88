"""Check installed and built programs: libbpf, the BPF objects, the compiler, trace-cmd."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil

from whystall.agent_server.doctor.packages import install_command
from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import View
from whystall.bpf.build import KINDS, object_path
from whystall.bpf.libbpf import CARRIED
from whystall.tools.contract.text import clean


def libbpf(view: View) -> Check:
    """Check that libbpf 1.x loads."""
    fix = install_command("libbpf", view)
    carried = [CARRIED] if os.path.exists(CARRIED) else []
    for path in (*carried, "libbpf.so.1", "libbpf.so.0"):
        name = os.path.basename(path)
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        try:
            library.libbpf_version_string.restype = ctypes.c_char_p
            found = f"{name} {clean(library.libbpf_version_string())}"
        except AttributeError:
            found = f"{name}, < 0.6"
        if path == CARRIED:
            return view.ok("libbpf", view.say("libbpf.carried", found=found))
        if name.endswith(".1"):
            return view.ok("libbpf", found)
        return view.missing("libbpf", found, view.say("libbpf.old"), fix)
    return view.missing("libbpf", view.say("libbpf.none"), view.say("libbpf.means"), fix)


def objects(view: View) -> Check:
    """Check that the BPF objects of this machine are built."""
    paths = [object_path(platform.machine(), kind) for kind in KINDS]
    absent = [path.name for path in paths if not path.is_file()]
    if not absent:
        return view.ok("bpf objects", ", ".join(path.name for path in paths))
    found = view.say("objects.none", names=", ".join(absent))
    fix = f"{install_command('clang,headers', view)} && make build"
    return view.missing("bpf objects", found, view.say("objects.means"), fix)


def clang(view: View) -> Check:
    """Check the compiler, which is only needed if the objects are not built."""
    path = shutil.which("clang") or next((p for n in range(22, 11, -1) if (p := shutil.which(f"clang-{n}"))), None)
    if path:
        return view.ok("clang", view.say("clang.there", path=clean(path)))
    if objects(view).state.value == "ok":
        return view.ok("clang", view.say("clang.not_needed"))
    return view.limited("clang", view.say("not_found"), view.say("clang.means"), install_command("clang", view))


def trace_cmd(view: View) -> Check:
    """Check that files of trace-cmd can be read."""
    path = shutil.which("trace-cmd")
    if path:
        return view.ok("trace-cmd", view.say("trace_cmd.there", path=clean(path)))
    fix = install_command("trace-cmd", view)
    return view.limited("trace-cmd", view.say("not_found"), view.say("trace_cmd.means"), fix)
