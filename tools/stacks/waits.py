"""Build the stack of a wait: the user's frames, the system call with its subject, the kernel's frames."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
        if (found := _PYTHON.fullmatch(text)) and int(found["line"]) < 1 << 31:
            yield WaitFrame(text, found["name"], found["file"], int(found["line"]), "python")
        else:
            yield WaitFrame(text, text, "", 0, "native")
    if syscall:
        text = f"[{syscall}{' ' + path if path else ''}]"
        yield WaitFrame(text, text, path, 0, "kernel")
    for text in reversed(kernel):
        yield WaitFrame(text, text, "", 0, "kernel")
