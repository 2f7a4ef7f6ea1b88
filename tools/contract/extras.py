"""Libraries that belong to an extra of the package, such as ``whystall[llm]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from whystall.tools.contract.errors import ErrorCode, ToolError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import libraries of the extra `name` in this block; if one is missing, raise `ToolError` (bad_argument)."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library == "whystall":
            raise
        message = f"this needs the library {library}, which is not installed"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"run `pip install 'whystall[{name}]'`") from None
