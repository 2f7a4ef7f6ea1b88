"""The parts shared by the builds of the BPF objects and of the hybrid I/O library. Needs the standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    """Run a compiler or a similar program; raise ``BuildError`` with its standard error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed:\n{done.stderr.strip()}")


@contextmanager
def replacing(product: Path) -> Iterator[str]:
    """Yield the path of a temporary file that becomes `product` on success: a product in use is never overwritten."""
    product.parent.mkdir(exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{product.name}.", dir=product.parent)
    os.close(handle)
    try:
        yield temporary
        os.chmod(temporary, 0o644)
        os.replace(temporary, product)
    finally:
        Path(temporary).unlink(missing_ok=True)


def main(products: Mapping[str, Callable[[bool], bool | None]]) -> int:
    """Build the products and print the outcome of each; return the exit status.

    A product's function takes whether ``--force`` was given, and returns whether it built it (None: left out).
    """
    try:
        for name, build in products.items():
            outcome = {True: "built", False: "current", None: "left out"}[build("--force" in sys.argv[1:])]
            print(f"{name}: {outcome}")
    except (BuildError, OSError, subprocess.TimeoutExpired) as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    return 0
