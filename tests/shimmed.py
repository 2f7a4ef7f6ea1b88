"""Programs with and without the shim below them, in a folder of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whystall.tools.hybrid_io.report import REST, REST_BYTES, Programs, read_folder
from whystall.tools.hybrid_io.run import Options, environment, library

EAGER = Options(read_direct=4096, write_direct=4096, pressure_direct=4096, keep_file=1)
"""Nearly everything goes direct."""
DIRECT = Options(mode="direct")


@dataclass
class Done:
    """What a program said, and what the shim counted below it."""

    status: int
    out: bytes
    err: str
    programs: list[Programs]
    others: Programs

    @property
    def total(self) -> Programs:
        """All of them together."""
        total = Programs(programs=0)
        for part in (*self.programs, self.others):
            total.add(part)
        return total


def plain(command: Sequence[str], folder: Path, **variables: str) -> Done:
    """`command` without the shim, in `folder`."""
    env = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, cwd=folder, env=env, timeout=120)
    return Done(done.returncode, done.stdout, done.stderr.decode(), [], Programs(programs=0))


def shimmed(command: Sequence[str], folder: Path, options: Options = EAGER, **variables: str) -> Done:
    """The same with the shim; its counters are read at the end."""
    counters = folder / "counters"
    counters.mkdir(mode=0o700)
    (counters / REST).write_bytes(bytes(REST_BYTES))
    env = environment(library(), options, counters, {**os.environ, **variables})
    done = subprocess.run(command, capture_output=True, cwd=folder, env=env, timeout=120)
    programs, others = read_folder(counters)
    return Done(done.returncode, done.stdout, done.stderr.decode(), programs, others)


def takes_direct(folder: Path) -> bool:
    """Whether the file system of `folder` does direct I/O."""
    try:
        fd = os.open(folder / "direct.probe", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError:
        return False
    os.close(fd)
    return True
