"""What a caller names by a path: a recording or a trace file to judge, a profile to lay beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio.to_thread

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.home import home
from whystall.tools.recording.store import Recording

if TYPE_CHECKING:
    from whystall.tools.timeline.profiles import Candidate

T = TypeVar("T")
_NAMED = 4


def open_source(path: Path) -> Recording:
    """The recording in the directory `path`, or the trace file `path` as one.

    Raises `ToolError`: bad_recording for anything but a directory and a regular file; what their readers raise.
    """
    if not path.is_file():
        return Recording.open(path, COLLECTORS)
    from whystall.tools.timeline.open_trace import open_trace
    from whystall.tools.timeline.recorded import recording_of

    return recording_of(open_trace(path), name=clean(path.name))


def join_profile(recording: Recording, path: Path) -> Recording:
    """`recording` with the profile in `path` on its clock.

    Raises `ToolError`: missing_collector when there is no trace to align with, bad_trace when it cannot be read,
    bad_argument when there are several, clock_mismatch when they share no clock, no_overlap when they share no time.
    """
    from whystall.tools.timeline.alignment.align import align
    from whystall.tools.timeline.recorded import trace_of, with_profile

    trace = trace_of(recording, absolute=True)
    found = profiles_at(path)
    if len(found) > 1:
        names = ", ".join(str(one.path) for one in found[:_NAMED])
        message = f"there are {len(found)} profiles below {path}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"give one of them: {names}")
    profile = found[0].read()
    return with_profile(recording, profile, align(trace, profile))


def profiles_at(path: Path) -> list[Candidate]:
    """The profiles at or below `path`, by rank, at least one; `ToolError` (bad_trace) when there is none."""
    from whystall.tools.timeline.profiles import candidates, with_work

    if not path.is_file() and not path.is_dir():  # a pipe would be waited for, a device never ends
        raise ToolError(ErrorCode.BAD_TRACE, f"there is no profile at {path}", "give a file, or a profiler's directory")
    return with_work(candidates(path))


def check_profile_place(path: Path) -> None:
    """Whether a profile can be at `path` once a window is over; it may be written meanwhile.

    Raises `ToolError` (bad_trace): a window is not to be spent first.
    """
    try:
        possible = path.is_file() or path.is_dir() or (path.parent.is_dir() and not path.exists())
    except (OSError, ValueError):  # a name that is too long, or with a NUL
        possible = False
    if not possible:
        raise ToolError(ErrorCode.BAD_TRACE, f"no profile can be at {path}", "give a file, or a profiler's directory")


def join_after_window(recording: Recording, path: Path) -> Recording:
    """As `join_profile`, after a live window: when that fails the recording is kept and the error says where."""
    try:
        return join_profile(recording, path)
    except ToolError as error:
        kept = home() / "recordings" / recording.manifest.id
        recording.save(kept)
        remedy = f"{error.remedy}; what was recorded is kept: judge it with --from {kept}"
        raise ToolError(error.code, error.message, remedy) from error


async def in_thread(work: Callable[[], T]) -> T:
    """`work` beside the event loop: a large file takes seconds, and progress and cancellation go on."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


async def opened(source: Path, profile: Path | None) -> Recording:
    """`open_source` beside the event loop, with `profile` on its clock where there is one."""
    recording = await in_thread(lambda: open_source(source))
    return recording if profile is None else await in_thread(lambda: join_profile(recording, profile))


def joining(profile: Path | None) -> Callable[[Recording], Awaitable[Recording]] | None:
    """What adds `profile` to a recording after its window; None without one. See `join_after_window`."""
    if profile is None:
        return None

    async def join(recording: Recording) -> Recording:
        return await in_thread(lambda: join_after_window(recording, profile))

    return join
