"""Ask the package sources of this host whether they offer a version, without changing anything: apt and pip.

The programs run with words from `tools.contract.commands`; their output is foreign text and bounded.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import Literal

from whystall.tools.contract.commands import argv
from whystall.tools.contract.text import clean
from whystall.tools.known_fixes.catalogue import components
from whystall.tools.known_fixes.versions import UnknownVersion, parsed

State = Literal["offered", "too_old", "not_offered", "unreachable", "not_installed", "no_package"]
TIMEOUT_S = 30.0
_MOST = 1 << 20
#  libnccl2 | 2.21.5-1+cuda12.4 | https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64  Packages
_APT = re.compile(r"^\s*\S+ \| (?:\d+:)?(\d[\w.]*)", re.MULTILINE)
# Available versions: 2.7.1, 2.7.0, 2.6.0
_PIP = re.compile(r"^Available versions: (.{1,20000})$", re.MULTILINE)
# pip only says that it found nothing, unless it tries again
_NONE = "No matching distribution found"
_FAILED = (
    "connection",
    "Could not fetch",
    "timed out",
    "Temporary failure",
    "ConnectTimeout",
    "ProxyError",
    "403",
    "SSL",
)


@dataclass(frozen=True)
class Offer:
    """What a package source offers. `version`: the newest one that is offered; `why`: of `unreachable`."""

    component: str
    manager: str
    package: str
    wanted: str
    state: State
    version: str = ""
    why: str = ""


def offers(component: str, wanted: str) -> list[Offer]:
    """Return for each known package of `component` whether a version from `wanted` on is offered here."""
    about = components()[component]
    asked = [("apt", name) for name in about.apt] + [("pip", name) for name in about.pip]
    if not asked:
        return [Offer(component, "", "", wanted, "no_package")]
    return [_asked(component, manager, package, wanted) for manager, package in asked]


def _asked(component: str, manager: str, package: str, wanted: str) -> Offer:
    try:
        words = argv(f"{manager}.versions", package=package)
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C", "PIP_NO_COLOR": "1"},
        )
    except FileNotFoundError:
        return Offer(component, manager, package, wanted, "not_installed")
    except subprocess.TimeoutExpired:
        return Offer(component, manager, package, wanted, "unreachable", why=f"no answer in {TIMEOUT_S:.0f} s")
    except OSError as error:
        return Offer(component, manager, package, wanted, "unreachable", why=error.strerror or str(error))
    out, err = (text[:_MOST].decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    listed = _APT.findall(out) if manager == "apt" else [v for m in _PIP.findall(out) for v in m.split(",")]
    found = [version for text in listed if (version := _version(text))]
    if found:
        newest = max(found, key=parsed)
        state: State = "offered" if parsed(newest) >= parsed(wanted) else "too_old"
        return Offer(component, manager, package, wanted, state, version=clean(newest))
    reason = next((line for line in reversed(err.splitlines()) if line.strip()), "")
    unreached = any(word.lower() in err.lower() for word in _FAILED)
    if unreached or (done.returncode and _NONE not in err):
        return Offer(
            component, manager, package, wanted, "unreachable", why=clean(reason or f"exit {done.returncode}", 200)
        )
    return Offer(component, manager, package, wanted, "not_offered")


def _version(text: str) -> str:
    """Return the version in a listed one; empty for none."""
    try:
        parsed(text.strip())
    except UnknownVersion:
        return ""
    return text.strip()
