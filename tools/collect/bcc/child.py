"""Run a foreign program as a child process: its output and run time are bounded, and it never outlives us."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

MOST_BYTES = 64 << 20
"""Limit of a child's output in one window: a million slow calls, or a day of histograms."""
_LINE = 16 << 10
_CHUNK = 1 << 20
_PIPE = 1 << 20  # fcntl(2), F_SETPIPE_SZ: the output between two polls
_ERRORS = 8 << 10
_AGAIN_S = 2.0
_EXIT_S = 10.0
_F_SETPIPE_SZ = 1031
_GUARD = str(Path(__file__).with_name("guard.py"))
# Variables by which BCC finds headers. Those of our interpreter are not passed on: the program has its own.
_KEPT = ("PATH", "HOME", "TMPDIR", "ARCH", "BCC_KERNEL_SOURCE", "BCC_KERNEL_MODULES_SUFFIX", "BCC_LINUX_VERSION_CODE")


class Child:
    """One running program. `lines` returns its output, `error` the end of its standard error.

    `cut`: why its output is incomplete, or None.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        """Start `argv`; raise `ToolError` (probe_failed) on failure."""
        self.name = os.path.basename(argv[0])
        self.cut: str | None = None
        self._errors, self._rest, self._bytes, self._interrupted = b"", b"", 0, 0.0
        environment = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            self._process = start_guarded(argv, environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except OSError as error:
            raise failed(f"{self.name}: {error.strerror}") from None
        out, err = self._process.stdout, self._process.stderr
        if out is None or err is None:
            raise ValueError("its output is no pipe")
        self._out, self._err = out, err
        self._both = select.epoll()
        self._open: set[int] = set()
        for pipe in (self._out, self._err):
            os.set_blocking(pipe.fileno(), False)
            self._open.add(pipe.fileno())
            self._both.register(pipe.fileno(), select.EPOLLIN)
        enlarge_pipe(self._out)

    def fileno(self) -> int:
        """Return a descriptor that is readable when it has written something, or ended."""
        return self._both.fileno()

    @property
    def ended(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def lines(self) -> list[str]:
        """Return the whole lines written since the last call, truncated if too long; never blocks.

        A program that writes more than `MOST_BYTES` is killed, and `cut` is set.
        """
        *whole, self._rest = (self._rest + self._read()).split(b"\n")
        if len(self._rest) > _LINE:
            whole, self._rest = [*whole, self._rest[:_LINE]], b""
        return [line[:_LINE].decode("utf-8", "replace") for line in whole]

    def interrupt(self) -> None:
        """Send SIGINT, as ^C does, without waiting."""
        if self.ended is None:
            self._interrupted = time.monotonic()
            self._process.send_signal(signal.SIGINT)

    def finish(self, within_s: float) -> list[str]:
        """Interrupt it and return its remaining lines; kill it after `within_s` seconds.

        The signal is repeated: a KeyboardInterrupt that Python raises within a callback from C is lost (BCC's
        perf_buffer_poll).
        """
        deadline = time.monotonic() + within_s
        lines: list[str] = []
        while self._open and self.cut is None and (now := time.monotonic()) < deadline:
            if now - self._interrupted >= _AGAIN_S:
                self.interrupt()
            self._both.poll(min(_AGAIN_S, deadline - now))
            lines += self.lines()
        if self._open and self.ended is None and self.cut is None:
            self.cut = f"did not end within {within_s:.0f} s"
        if self._rest:
            lines.append(self._rest[:_LINE].decode("utf-8", "replace"))
            self._rest = b""
        self.close()
        return lines

    def error(self) -> str:
        """Return the first error on its standard error, else the last line."""
        text = [line.strip() for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in text if "error:" in line.lower()] or text[-1:]
        return clean(errors[0], 300) if errors else ""

    def close(self) -> None:
        """Kill it and all that it started; idempotent."""
        kill_group(self._process)
        for pipe in (self._out, self._err):
            pipe.close()
        self._open.clear()
        self._both.close()

    def _read(self) -> bytes:
        output = b""
        for pipe in (self._out, self._err):
            if pipe.fileno() not in self._open:
                continue
            try:
                data = os.read(pipe.fileno(), _CHUNK)
            except BlockingIOError:
                continue
            if not data:
                self._both.unregister(pipe.fileno())
                self._open.discard(pipe.fileno())
            elif pipe is self._err:
                self._errors = (self._errors + data)[-_ERRORS:]
            else:
                output = data
        self._bytes += len(output)
        if self._bytes > MOST_BYTES and self.cut is None:
            self.cut = f"wrote more than {MOST_BYTES >> 20} MiB"
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return output


def start_guarded(
    argv: Sequence[str], environment: Mapping[str, str], stdin: int, stderr: int
) -> subprocess.Popen[bytes]:
    """Start `argv` in "/" and a session of its own, killed when we die (`guard.py`); raise ``OSError`` on failure.

    Of our environment it gets only the variables in `_KEPT`.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", _GUARD, str(os.getpid()), *argv],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={"PATH": os.defpath, **kept, "LC_ALL": "C.UTF-8", **environment},
        cwd="/",
        start_new_session=True,  # Ctrl-C at the terminal is for us to pass on
        bufsize=0,
    )


def enlarge_pipe(pipe: IO[bytes]) -> None:
    """Enlarge a pipe to hold the output between two polls, where the system allows it."""
    with suppress(OSError):
        fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, _PIPE)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of `start_guarded` and everything it started; idempotent."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
        process.wait(_EXIT_S)


def failed(why: str) -> ToolError:
    """Return the error of a child that failed because of `why`."""
    return ToolError(ErrorCode.PROBE_FAILED, why, "run `whystall doctor`, or use another engine: `--engine procfs`")
