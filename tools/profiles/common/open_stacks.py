"""Open stack samples from any path: a recording, an accelerator's profile, or a file of any stack format.

The content decides the format. `accelerator` converts profiles to stacks, `off_cpu` a recording's waits;
`whystall.tools.stacks.formats` lists every other format.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Format, Head, format_of
from whystall.tools.files.input import unreadable
from whystall.tools.profiles.common.accelerator import DEVICE, HOST, profile_in, stacks_of_profile
from whystall.tools.profiles.common.events import only_event
from whystall.tools.profiles.common.off_cpu import OFF_CPU, stacks_of_waits
from whystall.tools.recording.followed import of_target
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.formats import FORMATS as STACK_FORMATS
from whystall.tools.stacks.formats import format_at
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import CALLS, NOW, NUMBER, TIME, stacks_of
from whystall.tools.timeline.profile_reading.format import ProfileFormat
from whystall.tools.timeline.profiles import FORMATS as PROFILE_FORMATS
from whystall.tools.timeline.profiles import open_profile

_MANIFEST = "manifest.json"
_REMEDY = (
    "give a recording, a profile of an accelerator, or stack samples (folded, perf script, pprof, speedscope, Chrome"
    " trace, py-spy raw)"
)


def open_stacks(
    path: str | os.PathLike[str],
    *,
    event: str = "",
    rank: int | None = None,
    step: int | None = None,
    idle: bool = False,
) -> StackProfile:
    """Return the stack samples of one event at `path`. Never blocks on a pipe or device.

    `event`: needed where the source has several and no default; ``device`` (default with device work) or ``host`` of
    an accelerator's profile; ``off-cpu`` selects the waits of a recording, ``accelerator-calls`` and
    ``accelerator-time`` the calls of accelerators' libraries that a watch recorded. `rank`: selects one of several
    accelerator profiles below a directory. `step`, `idle`: see `stacks_of_profile`.

    Raises `ToolError`: bad_argument for an unknown or ambiguous `event`, `rank` or `step` (it lists the choices), or
    when `rank`, `step` or `idle` do not apply to the source; bad_recording, missing_collector, bad_trace, io_error.
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
        return only_event(_recorded(of_target(Recording.open(place, COLLECTORS)), event, rank, step, idle=idle), event)
    if not regular and not directory:
        raise ToolError(ErrorCode.BAD_TRACE, f"{place} is not a regular file", _REMEDY)
    found = None if directory else _format(place)
    if found is None or isinstance(found, ProfileFormat):
        return stacks_of_profile(open_profile(place, rank), event=event, step=step, idle=idle)
    _refuse(place, rank, step, idle=idle)
    return only_event(found.read(place), event)


def _format(path: Path) -> Format[Any]:
    """Return the format of the regular file `path`. Raises `ToolError`."""
    working = [one for one in PROFILE_FORMATS if not (one.directory or one.only_collectives)]
    try:
        return format_of(Head(path), (*working, *STACK_FORMATS)) or format_at(path)
    except OSError as error:
        raise unreadable(path, error) from None


def _recorded(recording: Recording, event: str, rank: int | None, step: int | None, *, idle: bool) -> StackProfile:
    """Return the recording's samples, else its waits, else its accelerator's profile."""
    has = recording.has
    if has("profile") and (event in (DEVICE, HOST) or not (has(NOW) or has("switches"))):
        return stacks_of_profile(profile_in(recording), event=event, step=step, idle=idle)
    _refuse(Path(recording.manifest.id), rank, step, idle=idle)
    if event in (NUMBER, TIME) and has(CALLS):
        return stacks_of(recording, CALLS)
    if has("switches") and (event == OFF_CPU or not has(NOW)):
        return stacks_of_waits(recording)
    return stacks_of(recording)


def _refuse(place: Path, rank: int | None, step: int | None, *, idle: bool) -> None:
    """Reject options that apply only to a profile of an accelerator."""
    for name, given in (("rank", rank is not None), ("step", step is not None), ("idle", idle)):
        if given:
            message = f"{place.name} has no {name}: it is not a profile of an accelerator"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"leave {name} out")
