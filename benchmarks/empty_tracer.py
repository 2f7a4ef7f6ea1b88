"""Attach empty programs and wait: ``python -m benchmarks.empty_tracer OBJECT``. A tracer like any other peer, run
in a process of its own because tracepoints by name need a tracefs that the machine may not have mounted."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path

from benchmarks.ours import attached


def main(arguments: list[str]) -> int:
    """Until interrupted."""
    with attached(Path(arguments[0]).read_bytes()), contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
