"""The pipes to the child that runs our own BCC programs: commands to it, bounded lines of JSON back."""

from __future__ import annotations

import base64
import binascii
import json
import os
import select
import selectors
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from whystall.tools.collect.bcc import child
from whystall.tools.collect.bcc.child import enlarge_pipe, kill_group, start_guarded
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean

MAX_RECORD_BYTES = 32 << 20
"""Memory for records; what comes later is counted as lost."""
_MAX_LINE = 4 << 20
_MAX_ROWS = 1 << 18
_CHUNK = 1 << 20
_CHUNKS = 8  # limit of one `poll`, for a child that writes faster than we read
_KILL_S = 5.0
_SEND_S = 60.0  # an interpreter starts in seconds even in an emulated machine


class ThreadNow(NamedTuple):
    """A thread at the end: how often it was given a CPU, its line of /proc/TID/syscall, its CPU time in ns."""

    runs: int
    syscall: str
    ran_ns: int


class OwnLink:
    """One child (`own_child`), and all that it has sent. An invalid line from it raises `ToolError`."""

    def __init__(self, argv: Sequence[str], plan: dict[str, Any]) -> None:
        """Start it with its plan; raise `ToolError` on failure."""
        self.hooks: list[str] | None = None
        self.started = self.end = 0
        self.records: list[bytes] = []
        self.rows: dict[str, list[tuple[bytes, bytes]]] = {}
        self.threads: dict[int, ThreadNow] = {}
        self.lost = self.dropped = 0
        self._rest = b""
        self._bytes = self._counted = 0
        try:
            self._process = start_guarded(argv, {}, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError as error:
            raise failed(f"cannot start: {error.strerror}") from None
        assert self._process.stdin is not None  # noqa: S101 - for the types
        assert self._process.stdout is not None  # noqa: S101
        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            os.set_blocking(pipe.fileno(), False)
        enlarge_pipe(self._out)
        try:
            self.send(plan)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The child's process."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that is readable when the child has written something, or ended."""
        return self._out.fileno()

    def send(self, command: dict[str, Any]) -> None:
        """Send a command; raise `ToolError` if the child is gone."""
        if self._in.closed:
            raise failed("the child has ended")
        data = memoryview(json.dumps(command).encode() + b"\n")
        deadline = time.monotonic() + _SEND_S
        try:
            while data:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([], [self._in], [], left)[1]:
                    raise failed("the child does not read")
                data = data[self._in.write(data) or 0 :]
        except OSError:
            self.poll()  # it may have sent an error
            raise failed(self._status()) from None

    def poll(self) -> bool:
        """Read its output without blocking; return False at its end."""
        for _ in range(_CHUNKS):
            try:
                data = os.read(self._out.fileno(), _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > _MAX_LINE:
                raise failed("a line is too long")
            for line in lines:
                self._parse(line)
        return True

    def wait(self, what: str, deadline: float) -> None:
        """Read until attribute `what` is set; raise `ToolError` if the child ends or `deadline` (monotonic) passes."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            while not getattr(self, what):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise failed("took too long")
                if selector.select(left) and not self.poll() and not getattr(self, what):
                    raise failed(self._status())

    def close(self) -> None:
        """Kill it; idempotent. The kernel then detaches its programs."""
        for pipe in (self._in, self._out):
            with suppress(OSError):
                pipe.close()
        kill_group(self._process)

    def _parse(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if "records" in message:
                for text in message["records"]:
                    self._keep(_decoded(text))
            elif "map" in message:
                rows = [(_decoded(key), _decoded(value)) for key, value in message["rows"]]
                self._count(len(rows))
                self.rows.setdefault(message["map"], []).extend(rows)
            elif "threads" in message:
                self._count(len(message["threads"]))
                self.threads.update(
                    {int(tid): ThreadNow(int(runs), str(call), int(ran)) for tid, runs, call, ran in message["threads"]}
                )
            elif "hooks" in message:
                self.hooks = [clean(str(name)) for name in message["hooks"]]
            elif "started" in message:
                self.started = int(message["started"])
            elif "end" in message:
                self.end, self.lost = int(message["end"]), int(message["lost"])
            else:
                raise _error(message)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error):
            raise failed("invalid output") from None

    def _keep(self, record: bytes) -> None:
        if self._bytes + len(record) > MAX_RECORD_BYTES:
            self.dropped += 1
            return
        self._bytes += len(record)
        self.records.append(record)

    def _count(self, more: int) -> None:
        self._counted += more
        if self._counted > _MAX_ROWS:
            raise failed("too many map entries")

    def _status(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)
        return f"ended with status {self._process.returncode}"


def failed(why: str) -> ToolError:
    """Return the error of a child that failed because of `why`."""
    return child.failed(f"our own programs for BCC: {why}")


def _error(message: dict[str, Any]) -> ToolError:
    log = " ".join(str(message.get("log", "")).split())
    error = clean(str(message["error"]), 200)
    return failed(f"{error} ({clean(log, 300)})" if log else error)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
