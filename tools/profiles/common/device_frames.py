"""Frames of an accelerator's profile, with the parts of names removed that differ between steps, processes and runs.

These are step numbers, addresses and the counters of collectives: they would split equal work in drawings and
comparisons.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from whystall.tools.timeline.profile_reading.build import is_step

GPU, NPU = "GPU:", "NPU:"
IDLE = "[idle]"
UNKNOWN_LAUNCH = "[launch not in the profile]"

_PYTHON = re.compile(r"(?P<file>.+)\((?P<line>[0-9]{1,9})\): (?P<name>.+)", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# hcom_allReduce__586_0_1@group: by group, number and rank
_COUNTED = re.compile(r"(?P<name>[A-Za-z]\w*?)__[0-9]+(?:_[0-9]+)*(?:@.*)?", re.DOTALL)
_HOST = {kind: kind for kind in ("python", "operator", "annotation", "launch")} | {"sync": "native"}


class Frame(NamedTuple):
    """A row of the frames of `whystall.tools.stacks.model`, without its number."""

    name: str
    file: str
    line: int
    kind: str


def prefix_of(source: str) -> str:
    """Return the prefix of device frames; `source` as in `whystall.tools.timeline.profile.Profile`."""
    return NPU if source.startswith(("ascend", "msprof")) else GPU


def host_frame(kind: str, name: str) -> Frame:
    """Return the frame of a host activity.

    A Python function's name holds its file and line (``train.py(12): forward``); a wait for the device is a native
    call into its runtime; all profiler steps are one frame.
    """
    if kind == "python":
        name = _ADDRESS.sub("", name)
        if (found := _PYTHON.fullmatch(name)) and int(found["line"]) < 1 << 31:
            return Frame(found["name"], found["file"], int(found["line"]), "python")
    elif is_step(name):
        name = name.partition("#")[0]
    return Frame(name, "", 0, _HOST.get(kind, "other"))


def device_frame(kind: str, name: str, prefix: str) -> Frame:
    """Return the frame of device work."""
    if kind == "collective" and (counted := _COUNTED.fullmatch(name)):
        name = counted["name"]
    return Frame(prefix + name, "", 0, "device")
