"""Read the signs of progress that were named for a job: a step log, a heartbeat file, a counter of Prometheus.

Each source returns a `Reading`: a number that changes when the job makes progress. What is read is foreign: files are
opened without waiting and only if they are regular, and of each at most 1 MiB is read at once.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from whystall.agent_server.watch.background_source import BackgroundSource
from whystall.agent_server.watch.jobs import Selection
from whystall.agent_server.watch.pauses import RUNNING
from whystall.agent_server.watch.progress import Stall
from whystall.agent_server.watch.signals import Reading, Signal
from whystall.tools.collect.serving.scrape import Endpoint, endpoint_of, get
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

_MOST_READ, _MOST_LINE = 1 << 20, 4096
_MOST_PATTERN = 500
_EACH_S = 2.0
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,255}")
# train_steps_total{rank="0"} 812 1700000000000
_VALUE = re.compile(r"(?:\{.{0,4000}\})?[ \t]+(\S{1,40})(?:[ \t]+-?\d{1,20})?[ \t]*")


class ProgressSource(Protocol):
    """A sign of progress. `name`: for people."""

    name: str

    def read(self) -> Reading | None:
        """Return what it shows now; None: it cannot be read."""
        ...

    def close(self) -> None:
        """Release what is open; idempotent."""
        ...


@dataclass(frozen=True)
class SourceNames:
    """The sources of the watched job: ``FILE`` or ``FILE:REGEX``, files, ``URL#METRIC``."""

    step_logs: tuple[str, ...] = ()
    heartbeats: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def open(self) -> list[ProgressSource]:
        """Return the sources. Raises `ToolError` (bad_argument)."""
        return [
            *(StepLog(*_file_and_pattern(text)) for text in self.step_logs),
            *(Heartbeat(path) for path in self.heartbeats),
            *(ProgressMetric(*text.rpartition("#")[::2]) for text in self.metrics),
        ]

    def __bool__(self) -> bool:
        return bool(self.step_logs or self.heartbeats or self.metrics)


def check_one_job(selection: Selection, names: SourceNames) -> None:
    """Raise `ToolError` (bad_argument) if there are sources, and not exactly one job is selected."""
    selected = sum(map(len, (selection.pids, selection.names, selection.cgroups, selection.pods, selection.slurm_jobs)))
    if names and selected != 1:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            "a step log, heartbeat or metric is one of a single job",
            "select one job, with --pid, --name, --cgroup, --pod or --slurm-job",
        )


class _File(NamedTuple):
    """An open file, how far it was read, and a line that is not complete yet."""

    descriptor: int
    identity: tuple[int, int]
    offset: int
    rest: bytes = b""


class StepLog:
    """A file whose growth marks steps; with a pattern, lines in which it is found. If the pattern has a group, only a
    line with another text there than the last one: ``step (\\d+)`` passes over what else is logged about a step."""

    def __init__(self, path: str, pattern: re.Pattern[bytes] | None = None) -> None:
        self.name = clean(path, 200)
        self._path, self._pattern = path, pattern
        self._file: _File | None = None
        self._steps, self._last = 0, b""

    def read(self) -> Reading | None:
        file = self._renewed()
        if file is None:
            return None
        try:
            seen = os.fstat(file.descriptor)
            size = seen.st_size
            offset, rest = (file.offset, file.rest) if size >= file.offset else (0, b"")  # it was truncated
            if size - offset > _MOST_READ:
                offset, rest = size - _MOST_READ, b""
            taken = os.pread(file.descriptor, _MOST_READ, offset)
        except OSError:
            self.close()
            return None
        if self._pattern is None:
            self._steps += bool(taken)
            rest = b""
        elif taken:
            *lines, rest = (rest + taken).split(b"\n")
            rest = rest[-_MOST_LINE:]
            self._steps += sum(self._is_step(line[:_MOST_LINE]) for line in lines)
        self._file = file._replace(offset=offset + len(taken), rest=rest)
        return Reading(self._steps, _monotonic(seen.st_mtime_ns))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file.descriptor)
        self._file = None

    def _is_step(self, line: bytes) -> bool:
        found = self._pattern.search(line) if self._pattern is not None else None
        if found is None:
            return False
        if found.re.groups:
            text = found.group(1) or b""
            if text == self._last:
                return False
            self._last = text
        return True

    def _renewed(self) -> _File | None:
        """Return the file at the path: another one than before is read from its start, the first one from its end."""
        try:
            seen = os.stat(self._path)
        except OSError:
            self.close()
            return None
        if self._file is not None and self._file.identity == (seen.st_dev, seen.st_ino):
            return self._file
        first = self._file is None and not self._steps
        self.close()
        if not stat.S_ISREG(seen.st_mode):  # opening a FIFO would wake its writer
            return None
        try:
            descriptor = os.open(self._path, _FLAGS)
        except OSError:
            return None
        found = os.fstat(descriptor)
        self._file = _File(descriptor, (found.st_dev, found.st_ino), found.st_size if first else 0)
        return self._file


class Heartbeat:
    """A file whose time of modification marks progress."""

    def __init__(self, path: str) -> None:
        self.name = clean(path, 200)
        self._path = path

    def read(self) -> Reading | None:
        try:
            changed = os.stat(self._path).st_mtime_ns
        except OSError:
            return None
        return Reading(changed, _monotonic(changed))

    def close(self) -> None:
        """Nothing is open."""


class ProgressMetric:
    """A metric in the text format of Prometheus that changes with progress; of several series the sum. It is asked for
    in a thread of its own, every 2 s. A server that accepts a connection and does not answer is stalled: the last value
    holds."""

    def __init__(self, url: str, metric: str, each_s: float = _EACH_S) -> None:
        """Raises `ToolError` (bad_argument)."""
        if _METRIC.fullmatch(metric) is None:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"{metric[:100]!r} is no name of a metric",
                "give URL#NAME, like http://127.0.0.1:9400/metrics#train_steps_total",
            )
        self.name = clean(f"{metric} of {url}", 200)
        self._endpoint, self._metric, self._each_s = endpoint_of(url), metric, each_s
        self._value: Reading | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> Reading | None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask, name="whystall-metric", daemon=True)
            self._thread.start()
        return self._value

    def close(self) -> None:
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.wait(self._each_s if self._value is not None else min(self._each_s, 0.5)):
            self._value = asked_once(self._endpoint, self._metric, self._value)


def asked_once(endpoint: Endpoint, metric: str, before: Reading | None) -> Reading | None:
    """Return what the server answers; `before` if it accepts the connection and does not answer, None if it is gone."""
    answer = get(endpoint, endpoint.path)
    if answer.error == "timeout":
        return before
    values = list(_values(answer.text, metric)) if not answer.error else []
    return Reading(sum(values), time.monotonic_ns()) if values else None


def _monotonic(realtime_ns: int) -> int:
    """Return an instant of CLOCK_REALTIME by CLOCK_MONOTONIC. It is wrong if the date jumped since."""
    return time.monotonic_ns() - (time.time_ns() - realtime_ns)


def _values(text: str, metric: str) -> Iterator[float]:
    for line in text.split("\n"):
        found = _VALUE.fullmatch(line, len(metric)) if line.startswith(metric) and len(line) <= _MOST_LINE else None
        if found is not None:
            try:
                value = float(found[1])
            except ValueError:
                continue
            if value - value == 0:  # finite
                yield value


def _file_and_pattern(text: str) -> tuple[str, re.Pattern[bytes] | None]:
    r"""Return the parts of ``/data/train.log:step (\d+)``. Raises `ToolError` (bad_argument)."""
    path, _, pattern = text.partition(":")
    if not path:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{text[:200]!r} names no file", "give FILE or FILE:REGEX")
    if len(pattern) > _MOST_PATTERN:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT, f"the pattern of {path[:200]} is too long", f"at most {_MOST_PATTERN} characters"
        )
    try:
        return path, re.compile(os.fsencode(pattern)) if pattern else None
    except re.error as error:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"the pattern of {path[:200]} is no regular expression: {error}",
            r"give one like step (\d+)",
        ) from None


def _apart(source: ProgressSource) -> ProgressSource:
    """Return `source` so that reading it never waits for a file system."""
    return source if isinstance(source, ProgressMetric) else BackgroundSource(source)


class NamedProgress:
    """The signs of progress of the watched job."""

    def __init__(self, names: SourceNames, learn_ns: int) -> None:
        """Raises `ToolError` (bad_argument)."""
        self._sources = [(_apart(source), Signal(learn_ns)) for source in names.open()]

    def look(self, now_ns: int, tid: int) -> list[Stall]:
        """Read all, and return the stalls that begin or have ended, as ones of thread `tid`."""
        found = [signal.look(source.read(), now_ns, tid) for source, signal in self._sources]
        return [stall for stall in found if stall is not None]

    def unobserved(self, until_ns: int) -> None:
        """Forget the time before `until_ns`, in which nothing was observed."""
        for _, signal in self._sources:
            signal.unobserved(until_ns)

    @property
    def stalled(self) -> bool:
        """Whether a sign stays away now."""
        return any(signal.open is not None for _, signal in self._sources)

    def accept(self, length_ns: int) -> None:
        """Accept pauses of up to 1.5 times this length: a look at one found no fault."""
        for _, signal in self._sources:
            signal.pauses.accept(RUNNING, length_ns)

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each, for the status."""
        return [{"name": source.name, **signal.state()} for source, signal in self._sources]

    def close(self) -> None:
        """Close all; idempotent."""
        for source, _ in self._sources:
            source.close()
