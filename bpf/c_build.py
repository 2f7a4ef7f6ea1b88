"""What both C builds share: is a product current, run a compiler. Imports the standard library only."""

from __future__ import annotations

import subprocess
from pathlib import Path

_TIMEOUT = 300  # seconds; a slow machine needs about 5


class BuildError(Exception):
    """Compilation failed; the message is the compiler's, or names what is missing."""


def is_newer(product: Path, sources: Path) -> bool:
    """Return whether `product` exists and is not older than any file of the folder `sources`."""
    if not product.exists():
        return False
    return product.stat().st_mtime_ns >= max(source.stat().st_mtime_ns for source in sources.iterdir())


def run(command: list[str]) -> None:
    """Run a compiler or a tool of its kind; raise ``BuildError`` with its standard error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed:\n{done.stderr.strip()}")
