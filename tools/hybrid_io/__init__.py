"""Hybrid I/O: per request buffered or direct, by size and memory pressure.

This package runs inside training processes and imports the standard library only. The policy and the engine are in
C (`src/`), used by Python through ctypes and by unmodified programs through LD_PRELOAD.

    from whystall.tools.hybrid_io import hybrid_open

    with hybrid_open("checkpoint.pt", "wb") as file:
        torch.save(state, file)
        file.fsync()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.tools.hybrid_io.hybrid_file import HybridFile, counters, hybrid_open
    from whystall.tools.hybrid_io.policy import Policy

__all__ = ["HybridFile", "Policy", "counters", "hybrid_open"]


def __getattr__(name: str) -> object:
    """Load `hybrid_file` at first use: the command and the build do not need it."""
    if name == "Policy":
        from whystall.tools.hybrid_io import policy as module
    elif name in __all__:
        from whystall.tools.hybrid_io import hybrid_file as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
