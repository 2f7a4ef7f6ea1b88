"""Open stack samples from any path: a recording, an accelerator's profile, or a file of any stack format.

The content decides the format. `accelerator` converts profiles to stacks, `off_cpu` a recording's waits;
`whystall.tools.stacks.formats` reads every other format.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.input import DAMAGED, opened, unreadable
from whystall.tools.profiles.common.accelerator import DEVICE, HOST, profile_in, stacks_of_profile
from whystall.tools.profiles.common.events import only_event
from whystall.tools.profiles.common.off_cpu import OFF_CPU, stacks_of_waits
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.formats import read
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import NOW, stacks_of
from whystall.tools.timeline.nsys import export as nsys
from whystall.tools.timeline.profile_reading.sqlite_tables import is_database
from whystall.tools.timeline.profiles import open_profile

_MANIFEST = "manifest.json"
_SNIFF = 1 << 20
_REMEDY = (
    "give a recording, a profile of an accelerator, or stack samples (folded, perf script, pprof, speedscope, Chrome"
    " trace, py-spy raw)"
)
# What only profilers of accelerators write: Kineto's head and categories, the arguments and sections of Ascend's.
_KINETO_HEAD = re.compile(rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:')
_KINETO = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|gpu_mem(?:cpy|set)|(?:cuda|hip|xpu|mtia|privateuse1)_(?:runtime|driver)'
    rb'|user_annotation|python_function|Operator|Runtime)"'
)
_ASCEND = re.compile(rb'"(?:connection_id|Task Type|Physic Stream Id|async_npu|Ascend Hardware|CANN|AscendCL)"')


def open_stacks(
    path: str | os.PathLike[str],
    *,
    event: str = "",
    rank: int | None = None,
    step: int | None = None,
    idle: bool = False,
) -> StackProfile:
    """The stack samples at `path`, of one event.

    `event`: its name, needed where the source has several and no default; of an accelerator's profile ``device`` (the
    default when it has device work) or ``host``; of a recording ``off-cpu`` asks for its waits although it has
    samples. `rank`: chooses among several profiles of accelerators below a directory. `step`: only work launched in
    that step of an accelerator's profile; `idle`: the device's gaps as frames of their own.

    Raises `ToolError`: bad_argument when `event`, `rank` or `step` is not there (it lists what is), when several
    events or profiles leave a choice, or when `rank`, `step` or `idle` are given for a source that knows no such
    thing; bad_recording, missing_collector, bad_trace, io_error. A pipe or device is never waited for.
    """
    place = Path(path)
    try:
        recording = (place / _MANIFEST).is_file()
        directory = place.is_dir()
        regular = place.is_file()
        place.stat()
    except OSError as error:
        raise unreadable(place, error) from None
    except ValueError:  # a NUL in the path
        raise ToolError(ErrorCode.BAD_ARGUMENT, "the path of the profile holds a NUL", _REMEDY) from None
    if recording:
        return only_event(_recorded(Recording.open(place, COLLECTORS), event, rank, step, idle=idle), event)
    if not regular and not directory:
        raise ToolError(ErrorCode.BAD_TRACE, f"{place} is not a regular file", _REMEDY)
    if directory or is_accelerators(place):
        return stacks_of_profile(open_profile(place, rank), event=event, step=step, idle=idle)
    _refuse(place, rank, step, idle=idle)
    return only_event(read(place, event), event)


def is_accelerators(path: Path) -> bool:
    """Whether the regular file `path` is a profile of an accelerator, by its first MiB. Raises `ToolError`."""
    try:
        if path.suffix in nsys.REPORTS or is_database(path):
            return True
        with opened(path) as file:
            text = file.read(_SNIFF)
    except DAMAGED:
        return False  # a reader will tell
    except OSError as error:
        raise unreadable(path, error) from None
    start = text.lstrip()[:1]
    if start == b"{":
        return b'"traceEvents"' in text and bool(_KINETO_HEAD.search(text) or _KINETO.search(text))
    return start == b"[" and bool(_ASCEND.search(text) or _KINETO.search(text))


def _recorded(recording: Recording, event: str, rank: int | None, step: int | None, *, idle: bool) -> StackProfile:
    """The samples of a recording, else its waits, else the accelerator's profile that was joined to it."""
    has = recording.has
    if has("profile") and (event in (DEVICE, HOST) or not (has(NOW) or has("switches"))):
        return stacks_of_profile(profile_in(recording), event=event, step=step, idle=idle)
    _refuse(Path(recording.manifest.id), rank, step, idle=idle)
    if has("switches") and (event == OFF_CPU or not has(NOW)):
        return stacks_of_waits(recording)
    return stacks_of(recording)


def _refuse(place: Path, rank: int | None, step: int | None, *, idle: bool) -> None:
    """Options that only a profile of an accelerator has: silence would answer another question than was asked."""
    for name, given in (("rank", rank is not None), ("step", step is not None), ("idle", idle)):
        if given:
            message = f"{place.name} knows no {name}: it is not a profile of an accelerator"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"leave {name} out")
