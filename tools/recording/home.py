"""The state directory of whystall on this host."""

from __future__ import annotations

import os
from pathlib import Path

from whystall.tools.contract.errors import ErrorCode, ToolError


def home() -> Path:
    """Return the state directory, created (mode 0700) if missing.

    ``WHYSTALL_HOME`` if set, else ``/var/lib/whystall`` for root, else ``$XDG_STATE_HOME/whystall``
    (``~/.local/state/whystall``). Raises `ToolError` (io_error) when it cannot be made.
    """
    chosen = os.environ.get("WHYSTALL_HOME")
    if chosen:
        path = Path(chosen)
    elif os.geteuid() == 0:
        path = Path("/var/lib/whystall")
    else:
        path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "whystall"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ToolError(
            ErrorCode.IO_ERROR,
            f"cannot make {path}: {error.strerror}",
            "set WHYSTALL_HOME to a directory you can write",
        ) from None
    return path
