"""Attach empty programs and wait: ``python -m benchmarks.empty_tracer OBJECT``.

In a separate process, because tracepoints by name need tracefs, which may not be mounted on the machine."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path

from benchmarks.ours import attached


def main(arguments: list[str]) -> int:
    """Run until interrupted."""
    with attached(Path(arguments[0]).read_bytes()), contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
