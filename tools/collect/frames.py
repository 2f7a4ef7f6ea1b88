"""A frame of a stack, before it is in a table."""

from __future__ import annotations

from typing import NamedTuple


class Call(NamedTuple):
    """A frame. `file`: source file or module; `line` 0: unknown; `kind`: of `whystall.tools.stacks.model.KINDS`."""

    name: str
    file: str
    line: int
    kind: str
