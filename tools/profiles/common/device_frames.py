"""Frames of an accelerator's profile: what is one place in the code, or one kind of device work, gets one name.

Names that differ from step to step, process to process or run to run - step numbers, addresses, counters of
collectives - would keep equal work apart, in a picture and in a comparison.
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
_HOST = {
    "python": "python",
    "operator": "operator",
    "annotation": "annotation",
    "launch": "launch",
    "sync": "native",
}


class Frame(NamedTuple):
    """A row of the frames of `whystall.tools.stacks.model`, without its number."""

    name: str
    file: str
    line: int
    kind: str


def prefix_of(source: str) -> str:
    """What stands before the names of a device's work; `source` as in `whystall.tools.timeline.profile.Profile`."""
    return NPU if source.startswith(("ascend", "msprof")) else GPU


def host_frame(kind: str, name: str) -> Frame:
    """The frame of an activity on the host. A Python function's name holds its file and line; a wait for the device is
    a native call into its runtime; the steps of the profiler are one frame.
    """
    if kind == "python":
        name = _ADDRESS.sub("", name)
        if (found := _PYTHON.fullmatch(name)) and int(found["line"]) < 1 << 31:
            return Frame(found["name"], found["file"], int(found["line"]), "python")
    elif is_step(name):
        name = name.partition("#")[0]
    return Frame(name, "", 0, _HOST.get(kind, "other"))


def device_frame(kind: str, name: str, prefix: str) -> Frame:
    """The frame of work on a device."""
    if kind == "collective" and (counted := _COUNTED.fullmatch(name)):
        name = counted["name"]
    return Frame(prefix + name, "", 0, "device")
