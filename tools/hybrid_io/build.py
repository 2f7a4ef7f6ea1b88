"""Compile the hybrid I/O libraries: ``python -m whystall.tools.hybrid_io.build [--force]``.

Needs a C compiler (``$CC``, ``cc``, ``gcc`` or ``clang``) and libc's headers. Builds what is older than its sources,
for the machine it runs on.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

from whystall.bpf.c_build import BuildError, is_newer, main, replacing, run

__all__ = ["BuildError", "build", "compiler", "library_path"]

SOURCES = Path(__file__).resolve().parent / "src"
OBJECTS = Path(__file__).resolve().parent / "objects"
ENGINE = (
    *("policy.c", "counters.c", "pressure.c", "residency.c", "history.c"),
    *("passing.c", "bounce.c", "direct.c", "file.c", "engine.c"),
)
LIBRARIES: dict[str, tuple[str, ...]] = {
    "libwhystall_hybrid.so": ENGINE,
    "libwhystall_hybrid_preload.so": (*ENGINE, "shim*.c"),
}
"""The sources of each library; it is not built where a pattern matches nothing."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "libwhystall_hybrid.so": ("-Wl,-Bsymbolic",),
    # else a program that loads the other library would get this one's functions
    "libwhystall_hybrid_preload.so": ("-DHY_API=",),
}
_FLAGS = (
    *("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror", "-shared", "-pthread", "-Wl,-z,defs", "-Wl,--as-needed"),
)


def library_path(name: str = "libwhystall_hybrid.so") -> Path:
    """Return the path of a library of `LIBRARIES`."""
    return OBJECTS / name


def is_current(name: str) -> bool:
    """Return whether the library exists and is not older than any source."""
    return is_newer(library_path(name), SOURCES)


def sources(name: str) -> list[Path]:
    """Return the C files of a library; empty where a part of it is missing."""
    found: list[Path] = []
    for pattern in LIBRARIES[name]:
        matching = sorted(SOURCES.glob(pattern))
        if not matching:
            return []
        found += matching
    return found


def compiler() -> str:
    """Return the path of the C compiler; raise ``BuildError`` where there is none."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise BuildError("a C compiler is missing: apt install gcc libc6-dev, or dnf install gcc")


def build(name: str, force: bool = False, flags: tuple[str, ...] = (), to: Path | None = None) -> bool | None:
    """Compile one library with additional `flags`, to `to` if given. Raises ``BuildError``.

    Returns whether it was built (False: it was current), or None where a part of its source is missing.
    """
    files = sources(name)
    if not files:
        return None
    if to is None and not force and is_current(name):
        return False
    with replacing(to or library_path(name)) as made:
        run([compiler(), *_FLAGS, *OPTIONS[name], *flags, "-o", made, *map(str, files), "-ldl"])
    return True


if __name__ == "__main__":
    sys.exit(main({name: partial(build, name) for name in LIBRARIES}))
