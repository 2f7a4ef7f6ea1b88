"""Resolve where threads waited: file paths, and stacks of user frames, the system call and kernel frames."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from whystall.tools.recording.store import Recording
from whystall.tools.stacks.names import HOST_CALLS, host_call_kind

# A Python frame among a thread's user frames as the engines write it: function, file and line.
_PYTHON = re.compile(r"(?P<name>.+) \((?P<file>[^()]+):(?P<line>[0-9]{1,9})\)")


class WaitFrame(NamedTuple):
    """A frame: `text` as recorded; `name`, `file`, `line` and `kind` as in `whystall.tools.stacks.model`."""

    text: str
    name: str
    file: str
    line: int
    kind: str


def wait_stack(user: Sequence[str], syscall: str, path: str, kernel: Sequence[str]) -> Iterator[WaitFrame]:
    """Return frames from the outermost inward; `user` and `kernel` have the innermost first, as recordings do."""
    for text in reversed(user):
        if found := python_frame(text):
            yield WaitFrame(text, *found, "python")
        else:
            kind = host_call_kind(text) if text.startswith(HOST_CALLS) else "native"
            yield WaitFrame(text, text, "", 0, kind)
    if syscall:
        text = f"[{syscall}{' ' + path if path else ''}]"
        yield WaitFrame(text, text, path, 0, "kernel")
    for text in reversed(kernel):
        yield WaitFrame(text, text, "", 0, "kernel")


def python_frame(text: str) -> tuple[str, str, int] | None:
    """Return name, file and line of a Python frame as recordings write it; None for another frame."""
    found = _PYTHON.fullmatch(text)
    if found is None or int(found["line"]) >= 1 << 31:
        return None
    return found["name"], found["file"], int(found["line"])


class Places:
    """Paths and stacks of a recording's ``switches``, by their numbers."""

    def __init__(self, recording: Recording) -> None:
        self.paths: dict[int, str] = dict(recording.table("switches.files").select("file", "path").iter_rows())
        self.stacks: dict[int, list[str]] = dict(
            recording.table("switches.stacks").select("stack", "frames").iter_rows()
        )

    def path(self, file: int) -> str:
        """Return the path of a file; empty for -1."""
        return self.paths.get(file, "")

    def stack(self, number: int) -> list[str]:
        """Return the frames of a stack, innermost first; empty for -1."""
        return self.stacks.get(number, [])

    def fields(self, row: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the columns that the tools' rows about waits have in common."""
        same = {name: row[name] for name in ("tid", "comm", "state", "syscall")}
        return {**same, "path": path, "kernel_stack": self.stack(row["kstack"])}
