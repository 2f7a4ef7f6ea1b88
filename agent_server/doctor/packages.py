"""Package names of the distributions."""

from __future__ import annotations

import platform

from whystall.agent_server.doctor.view import ENGLISH, View
from whystall.tools.contract.text import clean

_APT = {
    "libbpf": "libbpf1",
    "clang": "clang llvm",
    "headers": "libbpf-dev linux-libc-dev",
    "trace-cmd": "trace-cmd",
    "bcc": "python3-bpfcc bpfcc-tools",
    "kernel headers": "linux-headers-{release}",
}
_DNF = {
    "libbpf": "libbpf",
    "clang": "clang llvm",
    "headers": "libbpf-devel kernel-headers",
    "trace-cmd": "trace-cmd",
    "bcc": "python3-bcc bcc-tools",
    "kernel headers": "kernel-devel-{release}",
}


def install_command(what: str, view: View = ENGLISH, release: str | None = None) -> str:
    """Return the command that installs `what`, separated by commas: libbpf, clang, headers (of libbpf and the C
    library), trace-cmd, bcc, kernel headers (those of the kernel `release`, or of the running one).
    """
    family = _family(view)
    names = _DNF if family == "dnf" else _APT
    release = clean(release or platform.release())
    wanted = " ".join(names[one.strip()] for one in what.split(",")).format(release=release)
    if family == "apt":
        return view.sudo(f"apt-get install -y {wanted}")
    if family == "dnf":
        return view.sudo(f"dnf install -y {wanted}")
    return view.say("packages.unknown", names=wanted)


def _family(view: View) -> str:
    words: set[str] = set()
    for line in view.lines("/etc/os-release"):
        key, _, value = line.partition("=")
        if key in ("ID", "ID_LIKE"):
            words |= set(value.strip().strip("\"'").lower().split())
    if words & {"debian", "ubuntu"}:
        return "apt"
    return "dnf" if words & {"openeuler", "fedora", "rhel", "centos", "anolis", "amzn", "euleros", "kylin"} else ""
