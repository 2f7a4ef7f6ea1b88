"""Parse and format lists of CPUs (``0,1,4``, ``0-3,8``) and the kernel's hexadecimal masks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError

MAX_CPU = 8191
"""Kernels can be built for at most 8192 CPUs (NR_CPUS)."""
_PART = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse a list like ``0,1,4`` or ``0-3,8``: sorted, each CPU once; empty for ``all`` or empty text.

    Raises `ToolError` (bad_argument) for anything else, and for a descending range.
    """
    if text.strip() in ("", "all"):
        return ()
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > MAX_CPU:
            raise _bad(f"{part.strip()!r} is no CPU or range of CPUs")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest list of `cpus`: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def online_cpus() -> tuple[int, ...]:
    """Return the online CPUs of this host."""
    try:
        return parse_cpus(Path("/sys/devices/system/cpu/online").read_text())
    except OSError:
        return tuple(range(os.cpu_count() or 1))


def chosen_cpus(asked: Iterable[int]) -> tuple[int, ...]:
    """Return `asked`, or all online CPUs if empty; raise `ToolError` (bad_argument) for CPUs that are not online."""
    online, wanted = online_cpus(), tuple(sorted(set(asked)))
    if absent := sorted(set(wanted) - set(online)):
        raise _bad(f"this host runs no CPU {format_cpus(absent)}, it has {format_cpus(online)}")
    return wanted or online


def mask_of(cpus: Iterable[int]) -> str:
    """Return `cpus` as a mask for the kernel's files: hexadecimal words of 32 bits, the highest first."""
    bits = sum(1 << cpu for cpu in set(cpus))
    words: list[str] = []
    while bits or not words:
        words.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(words))


def _bad(message: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, message, "give CPUs like 0,1,4 or 0-3,8")
