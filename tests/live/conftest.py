"""Places that live tests make and take away again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system of a size as mount(8) writes it: ``64k``, ``2m``."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with ExitStack() as undo:

        def mounted(size: str) -> Path:
            place = tmp_path / "disk"
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "whystall-test", str(place)], check=True)
            undo.callback(subprocess.run, ["umount", str(place)], check=True)
            return place

        yield mounted


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[str]:
    """A block device of 16 MiB in a file."""
    backing = tmp_path / "whystall-loop.img"
    backing.write_bytes(bytes(16 << 20))
    made = subprocess.run(["losetup", "-f", "--show", str(backing)], capture_output=True, text=True, check=True)
    name = made.stdout.strip()
    try:
        yield name
    finally:
        subprocess.run(["losetup", "-d", name], check=True)
