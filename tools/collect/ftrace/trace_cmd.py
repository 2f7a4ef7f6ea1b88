"""The engine ``trace-cmd``: the same capture in trace-cmd's own format. Standard library only.

trace-cmd runs in an instance of ours, which we remove; it leaves its own behind when it fails.
"""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from whystall.tools.collect.ftrace.cpus import mask_of
from whystall.tools.collect.ftrace.options import Progress, Recorded, RecordOptions
from whystall.tools.collect.ftrace.session import Session
from whystall.tools.contract.commands import argv, program
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

_PROGRAM = "trace-cmd"
_PROBE_S, _FINISH_S, _TICK_S, _PROGRESS_S = 20, 600, 0.05, 0.5


def unavailable(options: RecordOptions) -> str | None:
    """Return why trace-cmd cannot record this here; None if it can. Runs it once."""
    if program("trace-cmd.record") is None:
        return "trace-cmd: not installed"
    if options.rotate_bytes or options.mode == "ring":
        return "trace-cmd: writes one file continuously"
    with tempfile.TemporaryDirectory(prefix="whystall-") as directory, Session(RecordOptions()) as session:
        words = _argv(session, RecordOptions(), Path(directory, "probe.dat"), "true")
        try:
            done = subprocess.run(words, capture_output=True, timeout=_PROBE_S, stdin=subprocess.DEVNULL, cwd=directory)
        except (OSError, subprocess.TimeoutExpired) as error:
            return clean(f"trace-cmd: {error}", 200)
    if done.returncode == 0:
        return None
    text = " ".join(done.stderr.decode("utf-8", "replace").split())
    return clean(f"trace-cmd: {text or f'ended with status {done.returncode}'}", 200)


def record(
    options: RecordOptions,
    output: Path,
    *,
    stop: Callable[[], bool],
    progress: Callable[[Progress], None] | None = None,
) -> Recorded:
    """Record as `recorder.record`, into a trace-cmd file; raise `ToolError` (probe_failed) if trace-cmd fails."""
    with Session(options) as session, tempfile.TemporaryFile() as log:
        words = _argv(session, options, output)
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it shall not get the terminal's Ctrl-C, which we pass on
                cwd=output.absolute().parent,  # where it puts its temporary files
            )
        except OSError as error:
            raise _failed(error.strerror or "") from None
        try:
            while not session.recording() and process.poll() is None and not stop():
                time.sleep(_TICK_S)  # a signal before that would not end it cleanly
            start_ns = time.monotonic_ns()
            ended = _wait(process, session, options, output, stop, progress)
            asked, end_ns = time.monotonic(), time.monotonic_ns()
            process.send_signal(signal.SIGINT)
            status = process.wait(_FINISH_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for piece in output.absolute().parent.glob(f"{glob.escape(output.name)}.{session.instance_name}.cpu*"):
                piece.unlink(missing_ok=True)
        losses, notes, cpus = session.losses(), session.notes(), session.cpus
        log.seek(0)
        text = " ".join(log.read(4096).decode("utf-8", "replace").split())
    if status != 0 or not output.exists():
        raise _failed(text or f"status {status}")
    return Recorded(
        files=(output,),
        bytes=output.stat().st_size,
        events=-1,
        losses=losses,
        start_ns=start_ns,
        end_ns=end_ns,
        stopped_by=ended,
        clock=options.clock,
        cpus=cpus,
        engine=_PROGRAM,
        notes=tuple(notes),
        write_s=time.monotonic() - asked,
    )


def _failed(why: str) -> ToolError:
    return ToolError(ErrorCode.PROBE_FAILED, f"trace-cmd failed: {why}", "use the engine tracefs")


def _argv(session: Session, options: RecordOptions, output: Path, probe: str | None = None) -> list[str]:
    """Return the command line; `probe`: a program to run and record."""
    return argv(
        "trace-cmd.record",
        instance=session.instance_name,
        output=os.path.abspath(output),
        clock=options.clock,
        kilobytes=session.buffer_kb,
        mask=mask_of(session.cpus).replace(",", ""),
        events=[event.replace("/", ":") for event in session.events],
        threads=[*session.threads],
        children=True if session.threads else None,
        probe=probe,
    )


def _wait(
    process: subprocess.Popen[bytes],
    session: Session,
    options: RecordOptions,
    output: Path,
    stop: Callable[[], bool],
    progress: Callable[[Progress], None] | None,
) -> str:
    began = reported = time.monotonic()
    while process.poll() is None:
        now = time.monotonic()
        if stop():
            return "asked"
        if 0 < options.duration_s <= now - began:
            return "duration"
        if now - reported >= _PROGRESS_S:
            reported = now
            room = os.statvfs(output.absolute().parent)
            if room.f_bavail * room.f_frsize < options.min_free_bytes:
                return "disk_guard"
            if not session.alive():
                return "target_exited"
            if progress is not None:
                size = sum(path.stat().st_size for path in output.parent.glob(f"{output.name}*"))
                progress(Progress("recording", now - began, size, sum(loss.overrun for loss in session.losses())))
        time.sleep(_TICK_S)
    return "asked"
