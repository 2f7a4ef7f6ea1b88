"""Record around any code, from within the program itself. Standard library only; no thread is started.

The events stay in the kernel until the end, to disturb the program as little as possible; a buffer that is too small
keeps the newest, and the result contains the number of lost events.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from whystall.tools.collect.ftrace.cpus import parse_cpus
from whystall.tools.collect.ftrace.options import DEFAULT_GROUPS, Recorded, RecordOptions
from whystall.tools.collect.ftrace.recorder import Writing, check
from whystall.tools.collect.ftrace.session import Session
from whystall.tools.contract.errors import ErrorCode, ToolError


class _Captures:
    """The capture of `ftrace_record_start` in this process, if any."""

    running: Session | None = None
    process = -1


def ftrace_record_start(
    cpu: int | str | Sequence[int] | None = None,
    groups: Sequence[str] = DEFAULT_GROUPS,
    *,
    clock: str = "mono",
    buffer_kb: int = 0,
    only_self: bool = False,
) -> None:
    """Start to record the kernel's scheduling, until `ftrace_record_stop`.

    `cpu`: a CPU, several, or a list as text (``"0-3,8"``); all when None. `groups`, `clock`, `buffer_kb` (per CPU): see
    `whystall.tools.collect.ftrace.options.RecordOptions`. `only_self`: only this process and its children. Raises
    `ToolError`: busy if this process records already, bad_argument, no_privilege, no_tracefs, probe_failed; nothing
    is left then.
    """
    if _Captures.running is not None and _Captures.process == os.getpid():
        raise ToolError(ErrorCode.BUSY, "this process records already", "call ftrace_record_stop first")
    session = _start(cpu, groups, clock=clock, buffer_kb=buffer_kb, only_self=only_self)
    _Captures.running, _Captures.process = session, os.getpid()


def ftrace_record_stop(output: str | os.PathLike[str] = "ftrace.txt") -> Recorded:
    """Stop the capture of `ftrace_record_start`, write it to `output` and return its summary. An existing file is
    replaced, since an error would lose the recording.

    Raises `ToolError`: not_found if nothing records, io_error, disk_full, busy; the capture has ended even then.
    """
    session, _Captures.running = _Captures.running, None
    if session is None or _Captures.process != os.getpid():
        raise ToolError(ErrorCode.NOT_FOUND, "this process records nothing", "call ftrace_record_start first")
    return _stop(session, Path(output))


@contextmanager
def ftrace_record(
    output: str | os.PathLike[str] = "ftrace.txt",
    cpu: int | str | Sequence[int] | None = None,
    groups: Sequence[str] = DEFAULT_GROUPS,
    *,
    clock: str = "mono",
    buffer_kb: int = 0,
    only_self: bool = False,
) -> Iterator[None]:
    """Record while the block runs and write it to `output` at its end, also after an exception.

    Arguments and errors as of `ftrace_record_start` and `ftrace_record_stop`. Blocks may be nested; each records on its
    own.
    """
    session = _start(cpu, groups, clock=clock, buffer_kb=buffer_kb, only_self=only_self)
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # not in a child that was forked inside the block
            _stop(session, Path(output))


def _start(
    cpu: int | str | Sequence[int] | None,
    groups: Sequence[str],
    *,
    clock: str,
    buffer_kb: int,
    only_self: bool,
) -> Session:
    if cpu is None or isinstance(cpu, str):
        cpus = parse_cpus(cpu or "")
    else:
        cpus = (cpu,) if isinstance(cpu, int) else tuple(cpu)
    pids = (os.getpid(),) if only_self else ()
    options = RecordOptions(cpus=cpus, groups=tuple(groups), mode="ring", clock=clock, buffer_kb=buffer_kb, pids=pids)
    check(options)
    session = Session(options)
    try:
        session.open()
        session.start()
    except BaseException:
        session.close()
        raise
    atexit.register(session.close)  # without a stop it has no output file, and is dropped
    return session


def _stop(session: Session, output: Path) -> Recorded:
    atexit.unregister(session.close)
    try:
        session.halt()
        writing = Writing(session, output)
        try:
            return writing.finish("asked")
        except BaseException:
            writing.abandon()
            raise
    finally:
        session.close()
