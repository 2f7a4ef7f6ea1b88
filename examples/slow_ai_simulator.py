#!/usr/bin/env python3
"""A small training loop with realistic stalls, which it logs.

Each step is a fixed amount of matrix work on one core.  Every N steps the loop writes a
checkpoint, by default synchronously and with fsync, so that this step stalls for as long as the
disk takes.  Two variants have another cause:

``--background``      another thread writes, as slowly, but no step waits for it.
``--random-in-line``  the step first draws the bytes from the kernel's random generator: on a fast
                      disk the time is CPU time in getrandom(2), not in the disk.

The log is one JSON object per line, each written with a single write(2):

``start``       pid, tid, mono_ns, directory and every option
``step``        step, t_mono_ns (its start), compute_s, random_s, stall_s, total_s
``checkpoint``  step, path, bytes, open_s, write_s, fsync_s, unlink_s, total_s, start_mono_ns,
                end_mono_ns, thread ("main" or "background"), tid
``skipped``     step: a background checkpoint was due while the previous one was still written
``end``         steps, checkpoints, skipped, reason, compute_s, random_s, stall_s, elapsed_s

Times ending in ``_s`` are seconds; those ending in ``mono_ns`` are CLOCK_MONOTONIC nanoseconds.
A checkpoint's ``total_s`` spans open to close, without the removal of older files (``unlink_s``);
a step's ``stall_s`` is all the time the training thread spent in the checkpoint code.
Exit status: 0 after a clean end (SIGTERM and SIGINT included), 1 when a write fails, 2 for bad options.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import queue
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

from _command import Parser, between

MIB = 1 << 20
BLOCK = 4096  # O_DIRECT asks for lengths and addresses in multiples of the logical block, at most this
STAMP_STRIDE = 64 * 1024
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS")


class Log:
    """JSON lines, each written with one write(2) so that readers seldom see half a line."""

    def __init__(self, target: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = 1 if target == "-" else os.open(target, flags, 0o644)
        self._lock = threading.Lock()

    def emit(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._fd, line) :]


class Compute:
    """A training step's arithmetic: a fixed number of matrix products, calibrated once."""

    SIDE = 256

    def __init__(self, step_ms: float) -> None:
        import numpy as np  # after BLAS_VARIABLES are set: the library reads them when it loads

        self._np = np
        rng = np.random.default_rng(0)
        # Gain 2 keeps the values within -1..1 changing; with less they decay, and tanh gets cheaper.
        self._weights = 2 * rng.standard_normal((self.SIDE, self.SIDE), dtype=np.float32) / self.SIDE**0.5
        self._state = rng.standard_normal((self.SIDE, self.SIDE), dtype=np.float32)
        self._rounds = 1
        self.run()
        # Trials of growing length, the last about half a step: short ones run on colder caches.
        # The fastest trial counts, since other processes can only slow it down.
        for length in (0.05, 0.5):
            trials = []
            for _ in range(3):
                began = time.perf_counter()
                self.run()
                trials.append((time.perf_counter() - began) / self._rounds)
            self._rounds = max(1, round(length * step_ms / 1000 / min(trials)))
        self._rounds = max(1, round(self._rounds / length))

    def run(self) -> None:
        """Do one step's work; the values stay bounded, so no step is cheaper than another."""
        for _ in range(self._rounds):
            self._state = self._np.tanh(self._state @ self._weights)


class Checkpointer:
    """Writes ``chk_<step>.bin`` files and keeps the newest few.

    The bytes come from one prepared buffer (page-aligned, as O_DIRECT requires); ``stamp`` changes a few
    of them so that no two checkpoints are equal, at hardly any cost.
    """

    def __init__(self, options: argparse.Namespace, log: Log) -> None:
        self._directory: Path = options.directory
        self._keep: int = options.keep
        self._fsync: bool = options.fsync
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        if options.direct:
            self._flags |= os.O_DIRECT
        self._log = log
        self._written: list[Path] = []
        self.size = max(BLOCK, int(options.size_mib * MIB) // BLOCK * BLOCK)
        self.buffer = mmap.mmap(-1, self.size)
        for offset in range(0, self.size, MIB):
            chunk = os.urandom(min(MIB, self.size - offset))
            self.buffer[offset : offset + len(chunk)] = chunk
        self.count = 0

    def stamp(self, step: int) -> None:
        """Mark the buffer with the step's number."""
        mark = step.to_bytes(8, "little")
        for offset in range(0, self.size, STAMP_STRIDE):
            self.buffer[offset : offset + 8] = mark

    def draw(self) -> None:
        """Fill the buffer from the kernel's random generator (CPU time in getrandom)."""
        self.buffer[:] = os.urandom(self.size)

    def write(self, step: int, thread: str) -> None:
        """Write one checkpoint and log its times.  Raises OSError."""
        path = self._directory / f"chk_{step}.bin"
        times = [time.monotonic_ns()]
        fd = os.open(path, self._flags, 0o644)
        self._written.append(path)
        try:
            times.append(time.monotonic_ns())
            with memoryview(self.buffer) as view:
                done = 0
                while done < self.size:
                    done += os.write(fd, view[done:])
            times.append(time.monotonic_ns())
            if self._fsync:
                os.fsync(fd)
            times.append(time.monotonic_ns())
        finally:
            os.close(fd)
        end = time.monotonic_ns()
        while len(self._written) > self._keep:
            self._written.pop(0).unlink(missing_ok=True)
        unlinked = time.monotonic_ns()
        self.count += 1
        self._log.emit(
            "checkpoint",
            step=step,
            path=str(path),
            bytes=self.size,
            open_s=seconds(times[1] - times[0]),
            write_s=seconds(times[2] - times[1]),
            fsync_s=seconds(times[3] - times[2]),
            unlink_s=seconds(unlinked - end),
            total_s=seconds(end - times[0]),
            start_mono_ns=times[0],
            end_mono_ns=end,
            thread=thread,
            tid=threading.get_native_id(),
        )


class BackgroundWriter:
    """Write checkpoints in another thread, without making the training thread wait."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self._queue: queue.Queue[int | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint")
        self._thread.start()

    @property
    def idle(self) -> bool:
        return self._idle.is_set()

    def submit(self, step: int) -> None:
        """Queue a checkpoint; only while ``idle``, since the writer uses the buffer until then."""
        self._idle.clear()
        self._queue.put(step)

    def close(self) -> None:
        """Wait for the write in progress, and join the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            try:
                self._checkpointer.write(step, "background")
            except OSError as error:
                self.error = error
            self._idle.set()


class Stop:
    """SIGTERM and SIGINT end the run after the step in progress."""

    def __init__(self) -> None:
        self.reason: str | None = None
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, _frame: object) -> None:
        self.reason = signal.Signals(signum).name


class Training:
    """The training loop: compute, and a checkpoint every few steps."""

    def __init__(self, options: argparse.Namespace, log: Log, stop: Stop) -> None:
        self._options = options
        self._log = log
        self._compute = Compute(options.step_ms)
        self._checkpointer = Checkpointer(options, log)
        self._background = BackgroundWriter(self._checkpointer) if options.background else None
        self._stop = stop
        self._skipped = 0

    def run(self) -> None:
        """Run until the requested number of steps or seconds, or a signal.  Raises OSError if a write fails."""
        began = time.monotonic_ns()
        self._log.emit("start", pid=os.getpid(), tid=threading.get_native_id(), mono_ns=began, **self._config())
        sums = {"compute_s": 0.0, "random_s": 0.0, "stall_s": 0.0}
        step = 0
        try:
            while self._reason(step, began) is None:
                step += 1
                for key, value in self._step(step).items():
                    sums[key] += value
        finally:
            if self._background:
                self._background.close()
        self._check_background()
        self._log.emit(
            "end",
            steps=step,
            checkpoints=self._checkpointer.count,
            skipped=self._skipped,
            reason=self._reason(step, began),
            **{key: round(value, 6) for key, value in sums.items()},
            elapsed_s=seconds(time.monotonic_ns() - began),
        )

    def _reason(self, step: int, began: int) -> str | None:
        if self._stop.reason:
            return self._stop.reason
        if self._options.steps is not None and step >= self._options.steps:
            return "steps"
        if self._options.duration is not None and time.monotonic_ns() - began >= self._options.duration * 1e9:
            return "duration"
        return None

    def _step(self, step: int) -> dict[str, float]:
        start = time.monotonic_ns()
        self._compute.run()
        computed = drawn = stalled = time.monotonic_ns()
        if step % self._options.every == 0:
            if self._background and not self._background.idle:
                self._skipped += 1
                self._log.emit("skipped", step=step)
            else:
                if self._options.random_in_line:
                    self._checkpointer.draw()
                else:
                    self._checkpointer.stamp(step)
                drawn = time.monotonic_ns()
                if self._background:
                    self._check_background()
                    self._background.submit(step)
                else:
                    self._checkpointer.write(step, "main")
            stalled = time.monotonic_ns()
        parts = {
            "compute_s": seconds(computed - start),
            "random_s": seconds(drawn - computed) if self._options.random_in_line else 0.0,
            "stall_s": seconds(stalled - max(drawn, computed)),
        }
        self._log.emit("step", step=step, t_mono_ns=start, **parts, total_s=seconds(time.monotonic_ns() - start))
        return parts

    def _check_background(self) -> None:
        if self._background and self._background.error:
            raise self._background.error

    def _config(self) -> dict[str, Any]:
        config = {key: value for key, value in vars(self._options).items() if key != "log"}
        return {**config, "directory": str(self._options.directory)}


def seconds(nanoseconds: int) -> float:
    """Return nanoseconds as seconds, rounded to microseconds."""
    return round(nanoseconds / 1e9, 6)


def parser() -> Parser:
    """The command line."""

    out = Parser(description=(__doc__ or "").split("\n\n")[0])
    option = out.add_argument
    option("--directory", type=Path, default=Path("."), help="where checkpoints go (default: here)")
    option("--size-mib", type=between(float, 0.01, 2000), default=50.0, help="checkpoint size (default %(default)s)")
    option("--every", type=between(int, 1, 1e6), default=5, help="steps from one to the next (default %(default)s)")
    option("--keep", type=between(int, 1, 1000), default=2, help="checkpoints kept (default %(default)s)")
    option("--fsync", action=argparse.BooleanOptionalAction, default=True, help="fsync each checkpoint")
    option("--direct", action="store_true", help="write with O_DIRECT, past the page cache")
    option("--background", action="store_true", help="write from another thread while steps continue")
    option("--random-in-line", action="store_true", help="draw the bytes from the kernel inside the step")
    option("--step-ms", type=between(float, 0.1, 60000), default=100.0, help="compute per step (default %(default)s)")
    option("--blas-threads", type=between(int, 1, 1024), default=1, help="threads of matrix code (default %(default)s)")
    option("--steps", type=between(int, 1, 1e9), default=None, help="stop after this many steps")
    option("--duration", type=between(float, 0.001, 1e6), default=None, help="stop after this many seconds")
    option("--log", default="-", metavar="FILE", help="JSON lines go here (default: standard output)")
    return out


def check_directory(directory: Path) -> Path:
    """Return the directory as an absolute path; raise OSError unless files can be created in it."""
    absolute = directory.resolve(strict=True)
    if not stat.S_ISDIR(absolute.stat().st_mode):
        raise NotADirectoryError(20, "Not a directory", str(directory))
    probe = absolute / f".probe_{os.getpid()}"
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    probe.unlink()
    return absolute


def main(argv: list[str] | None = None) -> int:
    """Run the simulator; return the exit status."""
    command = parser()
    options = command.parse_args(argv)
    for variable in BLAS_VARIABLES:
        os.environ[variable] = str(options.blas_threads)
    try:
        options.directory = check_directory(options.directory)
        log = Log(options.log)
        training = Training(options, log, Stop())
    except OSError as error:
        command.error(f"{error.strerror}: {error.filename!s}")
    except ImportError:
        command.error("NumPy is missing: pip install numpy")
    try:
        training.run()
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.close(1)
        return 1
    except OSError as error:
        print(f"{command.prog}: checkpoint failed: {error.strerror} ({options.directory})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
