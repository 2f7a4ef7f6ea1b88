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

from whystall.tools.collect.bcc.child import enlarge_pipe, kill_group, start_guarded
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

MAX_RECORD_BYTES = 32 << 20
"""Memory for records; what comes later is counted as lost."""
_MAX_LINE = 4 << 20
_MAX_ROWS = 1 << 18
_CHUNK = 1 << 20
_CHUNKS = 8  # a child that says more than we can take in gets no more of our time at once
_KILL_S = 5.0
_LISTEN_S = 60.0  # an interpreter starts in seconds even in an emulated machine


class ThreadNow(NamedTuple):
    """A thread: how often it had had a CPU, its line of /proc/TID/syscall, and how long it had run, in ns."""

    runs: int
    syscall: str
    ran_ns: int


class OwnLink:
    """One child: see `own_child`. An invalid line from it raises `ToolError`."""

    def __init__(self, argv: Sequence[str], plan: dict[str, Any]) -> None:
        """Start it with its plan; `ToolError` where that fails."""
        self.hooks: list[str] | None = None
        self.begun = self.end = 0
        self.records: list[bytes] = []
        self.rows: dict[str, list[tuple[bytes, bytes]]] = {}
        self.threads: dict[int, ThreadNow] = {}
        """Threads at the end."""
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
            self.say(plan)
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

    def say(self, what: dict[str, Any]) -> None:
        """Send a command; raise `ToolError` if the child is gone."""
        if self._in.closed:
            raise failed("is not there any more")
        data = memoryview(json.dumps(what).encode() + b"\n")
        deadline = time.monotonic() + _LISTEN_S
        try:
            while data:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([], [self._in], [], left)[1]:
                    raise failed("does not listen")
                data = data[self._in.write(data) or 0 :]
        except OSError:
            self.take()  # it may have said why
            raise failed(self._status()) from None

    def take(self) -> bool:
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
                raise failed("said a line without an end")
            for line in lines:
                self._understand(line)
        return True

    def wait(self, what: str, deadline: float) -> None:
        """Take in until attribute `what` is told; `ToolError` when the child ends or `deadline` (monotonic) is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            while not getattr(self, what):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise failed("took too long")
                if selector.select(left) and not self.take() and not getattr(self, what):
                    raise failed(self._status())

    def close(self) -> None:
        """End it, whatever it does; idempotent. The kernel detaches what it had attached."""
        for pipe in (self._in, self._out):
            with suppress(OSError):
                pipe.close()
        kill_group(self._process)

    def _understand(self, line: bytes) -> None:
        try:
            said = json.loads(line)
            if "records" in said:
                for text in said["records"]:
                    self._keep(base64.b64decode(text, validate=True))
            elif "map" in said:
                rows = [
                    (base64.b64decode(k, validate=True), base64.b64decode(v, validate=True)) for k, v in said["rows"]
                ]
                self._count(len(rows))
                self.rows.setdefault(said["map"], []).extend(rows)
            elif "threads" in said:
                self._count(len(said["threads"]))
                self.threads.update(
                    {int(tid): ThreadNow(int(runs), str(call), int(ran)) for tid, runs, call, ran in said["threads"]}
                )
            elif "hooks" in said:
                self.hooks = [clean(str(name)) for name in said["hooks"]]
            elif "begun" in said:
                self.begun = int(said["begun"])
            elif "end" in said:
                self.end, self.lost = int(said["end"]), int(said["lost"])
            else:
                self._complain(said)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error):
            raise failed("said what nobody understands") from None

    def _keep(self, record: bytes) -> None:
        if self._bytes + len(record) > MAX_RECORD_BYTES:
            self.dropped += 1
            return
        self._bytes += len(record)
        self.records.append(record)

    def _count(self, more: int) -> None:
        self._counted += more
        if self._counted > _MAX_ROWS:
            raise failed("said too much")

    @staticmethod
    def _complain(said: dict[str, Any]) -> None:
        log = " ".join(str(said.get("log", "")).split())
        error = clean(str(said["error"]), 200)
        raise failed(f"{error} ({clean(log, 300)})" if log else error)

    def _status(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)
        return f"ended with status {self._process.returncode}"


def failed(why: str) -> ToolError:
    """The error of a child that does not do its work."""
    return ToolError(
        ErrorCode.PROBE_FAILED,
        f"our own programs for BCC: {why}",
        "run `whystall doctor`, or use another engine: `--engine procfs`",
    )
