"""Open a recording or a trace file, and join a profile to it."""

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
    """Open the recording in the directory `path`, or the trace file `path` as a recording.

    Raises `ToolError`: bad_recording for anything else; what the readers raise.
    """
    if not path.is_file():
        return Recording.open(path, COLLECTORS)
    from whystall.tools.timeline.open_trace import open_trace
    from whystall.tools.timeline.recorded import recording_of

    return recording_of(open_trace(path), name=clean(path.name))


def open_earlier(path: str | None) -> Recording | None:
    """Return the recording `path`, with whose critical path that of a later one is compared; None without a path.

    Raises `ToolError`: missing_collector if it has no waits, bad_recording; what the readers raise.
    """
    if path is None:
        return None
    recording = open_source(Path(path))
    recording.table("switches.segments")
    return recording


def open_log(path: Path, source: Path | None) -> Recording:
    """Return the kernel log in the file `path` as a recording.

    Raises `ToolError`: bad_argument if a recording `source` is given too; what `recording_of_log` raises.
    """
    from whystall.tools.collect.log_file import recording_of_log

    if source is not None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "log and a recording exclude each other", "give one of them")
    return recording_of_log(path)


def open_cards(path: Path, source: Path | None) -> Recording:
    """Return the state of accelerators in the file or directory `path` as a recording.

    Raises `ToolError`: bad_argument if a recording `source` is given too; what `recording_of_cards` raises.
    """
    from whystall.tools.collect.cards.read import recording_of_cards

    if source is not None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "cards and a recording exclude each other", "give one of them")
    return recording_of_cards(path)


def join_profile(recording: Recording, path: Path) -> Recording:
    """Return `recording` with the profile in `path`, converted to its clock.

    Raises `ToolError`: missing_collector without a trace to align with, bad_trace, bad_argument if there are several
    profiles, clock_mismatch if they share no clock, no_overlap if they share no time.
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
    """Return the profiles at or below `path`, by rank. Raises `ToolError` (bad_trace) if there is none."""
    from whystall.tools.timeline.profiles import candidates, with_work

    if not path.is_file() and not path.is_dir():  # reading a pipe may block, a device never ends
        raise ToolError(ErrorCode.BAD_TRACE, f"there is no profile at {path}", "give a file, or a profiler's directory")
    return with_work(candidates(path))


def check_profile_place(path: Path) -> None:
    """Raise `ToolError` (bad_trace), before a window, if no profile can be written to `path` during it."""
    try:
        possible = path.is_file() or path.is_dir() or (path.parent.is_dir() and not path.exists())
    except (OSError, ValueError):  # a name that is too long, or with a NUL
        possible = False
    if not possible:
        raise ToolError(ErrorCode.BAD_TRACE, f"no profile can be at {path}", "give a file, or a profiler's directory")


def join_after_window(recording: Recording, path: Path) -> Recording:
    """Call `join_profile` after a live window; if it fails, save the recording and name its path in the error."""
    try:
        return join_profile(recording, path)
    except ToolError as error:
        kept = home() / "recordings" / recording.manifest.id
        recording.save(kept)
        remedy = f"{error.remedy}; what was recorded is kept: judge it with --from {kept}"
        raise ToolError(error.code, error.message, remedy) from error


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread beside the event loop; the thread is abandoned on cancellation."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


async def opened(source: Path, profile: Path | None) -> Recording:
    """Call `open_source` in a thread, and join `profile` if there is one."""
    recording = await in_thread(lambda: open_source(source))
    return recording if profile is None else await in_thread(lambda: join_profile(recording, profile))


def joining(profile: Path | None) -> Callable[[Recording], Awaitable[Recording]] | None:
    """Return a function that joins `profile` to a recording after its window; None without a profile."""
    if profile is None:
        return None

    async def join(recording: Recording) -> Recording:
        return await in_thread(lambda: join_after_window(recording, profile))

    return join
