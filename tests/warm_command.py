"""The installed command without its start: a child of a process that has imported all of it, and run none of it.

Half a second of each start is spent on imports, the same each time. Here one process per test worker makes them, and
forks for every command: the child has the arguments, environment, directory and streams that it is given, runs the
entry point of the console script, and ends as that does. What is about the start itself wants the real one
(``COMMAND``), and so does whatever must outlive its call.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("whystall"))
FORKER = Path(__file__).with_name("warm_forker.py")
_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "POLARS_", "OPENBLAS_", "OMP_", "_RJEM_")
"""Variables that count while an interpreter and its libraries start: where they differ, a real one is started."""


class Forker:
    """The process that has imported the command. It ends with the one that made it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.started_with = dict(os.environ)
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._directory = tempfile.TemporaryDirectory()
        with theirs:
            argv = [sys.executable, str(FORKER), str(theirs.fileno()), self._directory.name]
            self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def serves(self, env: Mapping[str, str]) -> bool:
        """Whether a child of it is what a start with `env` gives."""
        return all(
            env.get(name) == self.started_with.get(name)
            for name in {*env, *self.started_with}
            if name.startswith(_AT_START)
        )

    def fork(self, request: dict[str, Any], streams: tuple[int, int, int]) -> int:
        """Begin a command with these standard streams; a file that gives its process id, and then its status."""
        told, tells = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._ours, [json.dumps(request).encode()], [*streams, tells])
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(tells)
        return told


_forker: Forker | None = None
_making = threading.Lock()


def forker() -> Forker:
    """The one of this process."""
    global _forker
    with _making:
        if _forker is None or _forker.owner != os.getpid():
            _forker = Forker()
        return _forker


def run(
    *words: str,
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    input: str | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """The command to its end, as ``subprocess.run(capture_output=True, text=True)`` gives it, and raises what it raises
    where `timeout`, seconds, is over. Without `input` it reads from where this process does.
    """
    argv = [COMMAND, *words]
    warm = forker()
    if not warm.serves(env):
        return subprocess.run(argv, env=env, cwd=cwd, input=input, capture_output=True, text=True, timeout=timeout)
    request = {"argv": argv, "env": dict(env), "cwd": os.path.abspath(cwd or ".")}
    with ExitStack() as open_here, ExitStack() as open_there:

        def pipe() -> tuple[int, int]:
            reads, writes = os.pipe()
            return reads, writes

        stdin, feed = 0, -1
        if input is not None:
            stdin, feed = pipe()
            open_there.callback(os.close, stdin)
        out, stdout = pipe()
        err, stderr = pipe()
        for number in (stdout, stderr):
            open_there.callback(os.close, number)
        told = open_here.enter_context(os.fdopen(warm.fork(request, (stdin, stdout, stderr))))
        open_there.close()
        heard: dict[int, str] = {}
        workers = [threading.Thread(target=_read, args=(number, heard)) for number in (out, err)]
        if input is not None:
            workers.append(threading.Thread(target=_write, args=(feed, input)))
        for worker in workers:
            worker.start()
        pid = int(told.readline())
        late = threading.Timer(timeout, os.kill, (pid, signal.SIGKILL))
        late.start()
        try:
            status = int(told.readline())
        finally:
            expired = not late.is_alive()
            late.cancel()
            for worker in workers:
                worker.join()
        if expired and status == -signal.SIGKILL:
            raise subprocess.TimeoutExpired(argv, timeout, heard[out], heard[err])
        return subprocess.CompletedProcess(argv, status, heard[out], heard[err])


def _read(number: int, heard: dict[int, str]) -> None:
    with open(number, encoding="utf-8") as stream:
        heard[number] = stream.read()


def _write(number: int, text: str) -> None:
    try:
        with open(number, "w", encoding="utf-8") as stream:
            stream.write(text)
    except BrokenPipeError:
        pass  # it did not want to read on, as with subprocess
