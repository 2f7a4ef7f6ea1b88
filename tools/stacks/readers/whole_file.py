"""Read a file as a whole, up to a limit, if its format cannot be read in parts."""

from __future__ import annotations

from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.input import DAMAGED, bad, opened, unreadable

MOST = 1 << 30
"""Limit in bytes, unpacked."""
DEEPEST = 10_000
"""Limit of the frames of a stack; a record with more is odd."""


def content(path: Path, remedy: str) -> bytes:
    """Return the content of `path`, unpacked. Raises `ToolError`: bad_trace (empty, damaged, over `MOST`), io_error."""
    try:
        with opened(path) as file:
            data = file.read(MOST + 1)
    except DAMAGED:
        raise bad(path, "damaged or cut short") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if not data.strip():
        raise bad(path, "it is empty", "profile for longer, or while the program runs")
    if len(data) > MOST:
        message = f"{path.name} holds more than {MOST >> 20} MiB, and its format must be read as a whole"
        raise ToolError(ErrorCode.BAD_TRACE, message, remedy)
    return data
