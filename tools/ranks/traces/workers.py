"""Processes of this machine that read traces in parallel.

Each is a fresh interpreter: a forked one would inherit the locks of polars' threads, and one spawned by
`multiprocessing` runs the caller's main module again. It gets one job at a time through a pipe, so that at most one
trace per process is in memory, and its death - out of memory - costs only the trace it was reading.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, TypeVar, cast

from whystall.tools.contract.text import clean

T = TypeVar("T")
R = TypeVar("R")

_LENGTH = struct.Struct("<Q")
# The kernel's preference when memory runs out: rather a reader than the process that waits for it (-1000 to 1000).
_FIRST_TO_GO = "500"
# The parent's import path, set before any import: a child would search the working directory first.
_START = "import sys; sys.path[:] = sys.argv[1:]; from whystall.tools.ranks.traces.workers import serve; serve()"


def processors() -> int:
    """Return the number of CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def in_processes(
    function: Callable[[T], R], tasks: Sequence[T], processes: int, died: Callable[[T, str], R]
) -> list[R]:
    """Return `function` of each of `tasks`, in their order; `function` must be importable by name, both ends picklable.

    `died` makes the answer for a task whose process ended during it, from the task and the reason. An exception of
    `function` is raised here.
    """
    results: dict[int, R] = {}
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(tasks)):
        waiting.put(number)
    workers: list[_Worker] = []

    def serve_one() -> None:
        worker: _Worker | None = None
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            if worker is None or not worker.alive:
                worker = _Worker(max(processors() // processes, 1))
                workers.append(worker)
            answer = worker.ask(function, tasks[number])
            results[number] = died(tasks[number], worker.exit_reason()) if isinstance(answer, _Gone) else answer

    try:
        with ThreadPoolExecutor(processes) as pool:
            for future in [pool.submit(serve_one) for _ in range(min(processes, len(tasks)))]:
                try:
                    future.result()
                except BaseException:
                    while not waiting.empty():
                        waiting.get_nowait()
                    for worker in workers:
                        worker.kill()
                    raise
    finally:
        for worker in workers:
            worker.end()
    return [results[number] for number in range(len(tasks))]


class _Gone:
    """Marks that the process has ended instead of answering."""


class _Worker:
    def __init__(self, threads: int) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, "POLARS_MAX_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C at a terminal is handled by the parent
        )
        self._tasks = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self.alive = True

    def ask(self, function: Callable[[T], R], task: T) -> R | _Gone:
        """Return the answer. Raises what `function` raised."""
        try:
            _send(self._tasks, (function, task))
            failed, answer = _received(self._answers)
        except (BrokenPipeError, EOFError):
            self.alive = False
            self._process.wait()
            return _Gone()
        if failed:
            raise answer
        return answer  # type: ignore[no-any-return]

    def exit_reason(self) -> str:
        """Return why it ended, in a few words."""
        status = self._process.returncode
        self._complaints.seek(0)
        lines = self._complaints.read()[-4096:].decode(errors="replace").strip().splitlines()
        last = f": {clean(lines[-1], 120)}" if lines else ""
        if status == -signal.SIGKILL:
            return "its reader was killed (SIGKILL): most likely too little memory"
        if status < 0:
            return f"its reader ended by {signal.Signals(-status).name}{last}"
        return f"its reader ended with status {status}{last}"

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def end(self) -> None:
        """End the process by closing its pipe."""
        with suppress(OSError):
            self._tasks.close()
        self._process.wait()
        self._answers.close()
        self._complaints.close()


def serve() -> None:
    """Run a worker: read jobs from standard input and write answers to standard output until the input ends."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_FIRST_TO_GO)
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text is no answer
    while True:
        try:
            function, task = _received(source)
        except EOFError:
            return
        try:
            answer = (False, function(task))
        except Exception as error:
            answer = (True, error)
        try:
            _send(target, answer)
        except BrokenPipeError:
            return


def _send(pipe: IO[bytes], content: Any) -> None:
    data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _received(pipe: IO[bytes]) -> Any:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    size = _LENGTH.unpack(head)[0]
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)  # noqa: S301 - from our own child or parent
