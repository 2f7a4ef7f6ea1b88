"""Compile the engine: ``python -m whystall.tools.hybrid_io.build [--force]``.

Needs a C compiler (``$CC``, ``cc``, ``gcc`` or ``clang``) and libc's headers, and nothing but the standard library.
Builds what is older than its sources, for the machine it runs on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from whystall.bpf.c_build import BuildError, is_newer, run

__all__ = ["BuildError", "build", "compiler", "library_path"]

SOURCES = Path(__file__).resolve().parent / "src"
OBJECTS = Path(__file__).resolve().parent / "objects"
ENGINE = (
    "policy.c",
    "counters.c",
    "pressure.c",
    "residency.c",
    "history.c",
    "passing.c",
    "bounce.c",
    "direct.c",
    "file.c",
    "engine.c",
)
LIBRARIES: dict[str, tuple[str, ...]] = {
    "libwhystall_hybrid.so": ENGINE,
    "libwhystall_hybrid_preload.so": (*ENGINE, "shim*.c"),
}
"""What each library is made of; a pattern that matches nothing leaves the library out."""
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


def build(name: str, force: bool = False, flags: tuple[str, ...] = (), to: Path | None = None) -> bool:
    """Compile one library; False when it was current. `flags` are added, `to` is where it goes instead.

    Raises ``BuildError``. A library in use is replaced by a new file, never written over.
    """
    made = to or library_path(name)
    files = sources(name)
    if not files or (to is None and not force and is_current(name)):
        return False
    command = compiler()
    made.parent.mkdir(exist_ok=True)
    handle, fresh = tempfile.mkstemp(prefix=f".{name}.", dir=made.parent)
    os.close(handle)
    try:
        run([command, *_FLAGS, *OPTIONS[name], *flags, "-o", fresh, *map(str, files), "-ldl"])
        os.chmod(fresh, 0o644)
        os.replace(fresh, made)
    finally:
        Path(fresh).unlink(missing_ok=True)
    return True


def main(arguments: list[str]) -> int:
    """Build all libraries; exit status."""
    try:
        for name in LIBRARIES:
            made = build(name, force="--force" in arguments)
            print(f"{name}: {'built' if made else 'current' if sources(name) else 'left out'}")
    except (BuildError, OSError, subprocess.TimeoutExpired) as error:
        print(f"hybrid I/O build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
