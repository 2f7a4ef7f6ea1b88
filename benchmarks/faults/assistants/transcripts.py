"""Transcripts of assistants: the question, the tools offered, each call with its result, and the conclusion.

JSON lines in ASCII, one event per line, written at once; docs/benchmark.md explains the fields. One line of each::

    {"event": "start", "version": 1, "pid": 812, "symptom": "stops and goes", "assistant": "careful", ...}
    {"event": "tools", "tools": [{"name": "diagnose", "description": "...", "input_schema": {"type": "object"}}]}
    {"event": "call", "tool": "diagnose", "arguments": {"pid": 812}, "text": "Verdict: ...", "seconds": 14.2, ...}
    {"event": "conclusion", "answer": {"verdict": "likely", "causes": ["slow_peer"], "scope": {}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.faults.answer import Answer

VERSION = 1
MAX_BYTES = 64 << 20
"""The largest transcript that is read: a result has about 100 KB."""


class TranscriptError(ValueError):
    """The file is no transcript, or cannot be used."""


class Event(BaseModel):
    """One line. Fields that are not known are ignored, so that other programs may add theirs."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Tool(Event):
    """A tool as the server declares it."""

    name: str
    title: str = ""
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)


class Started(Event):
    """The first line. `pid`, `symptom`: the question; `assistant`, `model`: who answers, the model's name if it is one;
    `server`: name and version of the server; `instructions`: its instructions; `at`: RFC 3339.
    """

    event: Literal["start"] = "start"
    version: int = VERSION
    pid: int
    symptom: str
    assistant: str
    model: str = ""
    server: str = ""
    instructions: str = ""
    at: str = ""


class Offered(Event):
    """The tools that the server offers."""

    event: Literal["tools"] = "tools"
    tools: list[Tool]


class Called(Event):
    """A call and its result. `message`: what the assistant wrote with it; `error`: it failed, and `text` says why."""

    event: Literal["call"] = "call"
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    message: str = ""
    text: str = ""
    structured: dict[str, Any] | None = None
    error: bool = False
    seconds: float = 0.0


class Concluded(Event):
    """The conclusion. `stopped`: why the assistant did not reach one by itself, and `answer` is all there is."""

    event: Literal["conclusion"] = "conclusion"
    answer: Answer
    stopped: str = ""


_EVENTS: dict[str, type[Event]] = {"start": Started, "tools": Offered, "call": Called, "conclusion": Concluded}


@dataclass
class Transcript:
    """The events of a session. `conclusion`: None if the session or the file ended before."""

    start: Started
    tools: list[Tool] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    conclusion: Concluded | None = None


class Writer:
    """Append the events of one session to a file; without a file, do nothing."""

    def __init__(self, path: Path | None, start: Started) -> None:
        """`path`: a file, overwritten; or a directory, in which a new one is named by time and pid. Raises OSError."""
        if path is not None and path.is_dir():
            path = path / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%f}-{start.pid}.jsonl"
        if path is not None:
            path.write_bytes(b"")
        self._path = path
        self.put(start)

    def put(self, event: Event) -> None:
        """Append one event."""
        if self._path is not None:
            with self._path.open("a", encoding="ascii") as file:
                # ASCII, so that a line separator of Unicode or an escape sequence in a file's name stays in its string.
                file.write(json.dumps(event.model_dump(mode="json"), ensure_ascii=True) + "\n")


def read(path: Path) -> Transcript:
    """Return the transcript in a file. A last line that was cut is left out. Raises TranscriptError, OSError."""
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise TranscriptError(f"{path.name}: no regular file of at most {MAX_BYTES >> 20} MiB")
    lines = path.read_bytes().split(b"\n")
    lines.pop()  # empty, or cut
    events = [_event(path, number, line) for number, line in enumerate(lines, 1)]
    if not events or not isinstance(start := events[0], Started):
        raise TranscriptError(f"{path.name}: the first line is not the event start")
    found = Transcript(start)
    for event in events[1:]:
        if found.conclusion is not None:
            raise TranscriptError(f"{path.name}: there is an event after the conclusion")
        if isinstance(event, Offered):
            found.tools = event.tools
        elif isinstance(event, Called):
            found.calls.append(event)
        elif isinstance(event, Concluded):
            found.conclusion = event
        elif isinstance(event, Started):
            raise TranscriptError(f"{path.name}: a second event start")
    return found


def _event(path: Path, number: int, line: bytes) -> Event | None:
    """Return the event of a line; None for one of another name. Raises TranscriptError."""
    try:
        value = json.loads(line)
        if value["event"] == "start" and value["version"] != VERSION:
            raise TranscriptError(f"{path.name}: version {value['version']} is not {VERSION}")
        kind = _EVENTS.get(value["event"])
        return kind.model_validate(value) if kind else None
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        if isinstance(error, TranscriptError):
            raise
        raise TranscriptError(f"{path.name}, line {number}: {type(error).__name__}: {str(error)[:300]}") from None


def read_all(directory: Path) -> Iterable[tuple[Path, Transcript]]:
    """Yield the transcripts of a directory by name. Raises TranscriptError, OSError."""
    for path in sorted(directory.glob("*.jsonl")):
        yield path, read(path)


def answer_of(transcript: Transcript) -> Answer:
    """Return what was concluded, with a summary of the session in `detail`. Raises TranscriptError without one."""
    if transcript.conclusion is None:
        raise TranscriptError(f"no conclusion after {len(transcript.calls)} calls")
    start, answer = transcript.start, transcript.conclusion.answer
    summary = {
        "assistant": start.assistant,
        "model": start.model,
        "server": start.server,
        "stopped": transcript.conclusion.stopped,
        "calls": [{"tool": c.tool, "seconds": round(c.seconds, 1), "error": c.error} for c in transcript.calls],
    }
    return answer.model_copy(update={"detail": {**answer.detail, "session": summary}})
