"""Compile the kernel side: ``python -m whystall.bpf.build`` or ``python bpf/build.py [--force]``.

Needs clang (BPF target) and libbpf's headers, and nothing but the standard library. Builds only
what is older than its sources. The target machine needs neither.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "src"
OBJECTS = Path(__file__).resolve().parent / "objects"
MACHINES = {"x86_64": "x86", "aarch64": "arm64"}
# Kernels 5.13 to 5.15 refuse an object that so much as mentions a kernel function they do not have
# (mended in 5.16, a5d827275241), so what uses one is left out for all that lack it.
KINDS: dict[str, tuple[str, ...]] = {
    "host": ("host.bpf.c",),
    "host_old": ("host.bpf.c", "-DNO_KERNEL_FUNCTIONS"),
    "trace": ("trace.bpf.c",),
}
"""What each object is made of: a source, and options."""
_FLAGS = ("-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror")
_TIMEOUT = 300  # seconds; a slow machine needs about 5


class BuildError(Exception):
    """Compilation failed; the message is the compiler's, or names what is missing."""


def object_path(machine: str, kind: str = "host") -> Path:
    """Where an object for a machine lies; `kind` is one of `KINDS`."""
    return OBJECTS / f"{kind}.{machine}.bpf.o"


def is_current(machine: str, kind: str = "host") -> bool:
    """Whether the object is there and newer than every source."""
    made = object_path(machine, kind)
    if not made.exists():
        return False
    newest = max(source.stat().st_mtime_ns for source in SOURCES.iterdir())
    return made.stat().st_mtime_ns >= newest


def build(machine: str, kind: str = "host", force: bool = False) -> bool:
    """Compile one object; False when it was current. Raises ``BuildError``."""
    if not force and is_current(machine, kind):
        return False
    clang = shutil.which("clang")
    if clang is None:
        raise BuildError("clang is missing: apt install clang libbpf-dev, or dnf install clang libbpf-devel")
    OBJECTS.mkdir(exist_ok=True)
    fresh = object_path(machine, kind).with_suffix(".tmp")
    try:
        target = f"-D__TARGET_ARCH_{MACHINES[machine]}"
        source, *options = KINDS[kind]
        _run([clang, *_FLAGS, *options, target, "-c", str(SOURCES / source), "-o", str(fresh)])
        strip = shutil.which("llvm-strip")
        if strip is not None:  # drops DWARF, keeps BTF
            _run([strip, "-g", str(fresh)])
        fresh.replace(object_path(machine, kind))
    finally:
        fresh.unlink(missing_ok=True)
    return True


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed:\n{done.stderr.strip()}")


def main(arguments: list[str]) -> int:
    """Build all machines; exit status."""
    try:
        for machine in MACHINES:
            for kind in KINDS:
                made = build(machine, kind, force="--force" in arguments)
                print(f"{object_path(machine, kind).name}: {'built' if made else 'current'}")
    except BuildError as error:
        print(f"bpf build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
