"""Which features of the kernel this host has: those that a scenario `needs`. Each check leaves the host as it was."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

CONTROLLERS = frozenset({"cpu", "io", "memory"})


def hierarchy() -> Path | None:
    """Return where a cgroup v2 hierarchy with the controllers for CPU, I/O and memory is mounted; None without one."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split(" ")
        if kind == "cgroup2" and CONTROLLERS.issubset((Path(place) / "cgroup.controllers").read_text().split()):
            return Path(place)
    return None


def _netem() -> bool:
    """Try one in a network namespace that ends with the command."""
    return _runs("unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")


def _dm_delay() -> bool:
    _runs("modprobe", "-q", "dm_delay")
    # Without the driver dmsetup would leave a device node behind.
    if "device-mapper" not in Path("/proc/misc").read_text():
        return False
    return "delay" in _output("dmsetup", "targets").split()


def _cgroup_v2() -> bool:
    return hierarchy() is not None


CHECKS: Mapping[str, Callable[[], bool]] = {"netem": _netem, "dm_delay": _dm_delay, "cgroup_v2": _cgroup_v2}


@functools.cache
def has(name: str) -> bool:
    """Return whether this host has a feature; raise KeyError for an unknown one."""
    return CHECKS[name]()


def lacking(names: Iterable[str]) -> list[str]:
    """Return those features that this host lacks."""
    return [name for name in names if not has(name)]


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout + "\n"


def _runs(*argv: str) -> bool:
    return bool(_output(*argv))
