"""Compile the engine: ``python -m whystall.tools.hybrid_io.build`` or ``python tools/hybrid_io/build.py [--force]``.

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
_TIMEOUT = 300  # seconds; a slow machine needs about 5


class BuildError(Exception):
    """Compilation failed; the message is the compiler's, or names what is missing."""


def library_path(name: str = "libwhystall_hybrid.so") -> Path:
    """Where a library of `LIBRARIES` lies."""
    return OBJECTS / name


def is_current(name: str) -> bool:
    """Whether the library is there and newer than every source."""
    made = library_path(name)
    if not made.exists():
        return False
    return made.stat().st_mtime_ns >= max(source.stat().st_mtime_ns for source in SOURCES.iterdir())


def sources(name: str) -> list[Path]:
    """The C files of a library, empty where a part of it is not there."""
    found: list[Path] = []
    for pattern in LIBRARIES[name]:
        matching = sorted(SOURCES.glob(pattern))
        if not matching:
            return []
        found += matching
    return found


def compiler() -> str:
    """The C compiler to use; raises ``BuildError`` where there is none."""
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
        _run([command, *_FLAGS, *OPTIONS[name], *flags, "-o", fresh, *map(str, files), "-ldl"])
        os.chmod(fresh, 0o644)
        os.replace(fresh, made)
    finally:
        Path(fresh).unlink(missing_ok=True)
    return True


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed:\n{done.stderr.strip()}")


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
