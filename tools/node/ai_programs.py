"""Whether a process looks like training or serving of a model: the libraries that it has mapped, or its program."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_LIMIT = 4 << 20


@cache
def _known() -> tuple[re.Pattern[bytes], frozenset[str]]:
    import yaml

    listed = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    names = b"|".join(re.escape(name.encode()) for name in listed["libraries"])
    return re.compile(rb"/(?:" + names + rb")(?![A-Za-z0-9_])[^/\n]*\n"), frozenset(listed["programs"])


def is_ai_program(program: str) -> bool:
    """Return whether `program`, without directory, is a known server or launcher of models."""
    return program in _known()[1]


def has_ai_library(pid: int, root: Path = Path("/proc")) -> bool:
    """Return whether `pid` has mapped a library of a framework; false if its maps cannot be read.

    A line of /proc/PID/maps: ``7f00-7f01 r-xp 00000000 08:01 9 /usr/lib/torch/lib/libtorch_cpu.so``
    """
    try:
        with open(root / str(pid) / "maps", "rb") as file:
            return _known()[0].search(file.read(_LIMIT)) is not None
    except OSError:
        return False
