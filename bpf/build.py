"""Compile the kernel side: ``python -m whystall.bpf.build [--force]``.

Needs clang (BPF target) and libbpf's headers, and nothing but the standard library. Builds only
what is older than its sources. The target machine needs neither.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from whystall.bpf.c_build import BuildError, is_newer, run

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


def object_path(machine: str, kind: str = "host") -> Path:
    """Return the path of an object for a machine; `kind` is one of `KINDS`."""
    return OBJECTS / f"{kind}.{machine}.bpf.o"


def is_current(machine: str, kind: str = "host") -> bool:
    """Return whether the object exists and is not older than any source."""
    return is_newer(object_path(machine, kind), SOURCES)


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
        run([clang, *_FLAGS, *options, target, "-c", str(SOURCES / source), "-o", str(fresh)])
        strip = shutil.which("llvm-strip")
        if strip is not None:  # drops DWARF, keeps BTF
            run([strip, "-g", str(fresh)])
        fresh.replace(object_path(machine, kind))
    finally:
        fresh.unlink(missing_ok=True)
    return True


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
