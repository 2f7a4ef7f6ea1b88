"""Compile the kernel side: ``python -m whystall.bpf.build [--force]``, and generate ``bpf/layout_generated.py``.

Needs clang (BPF target) and libbpf's headers; the target machine needs neither. Builds what is older than its sources.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from whystall.bpf import layout_generator
from whystall.bpf.btf import Btf
from whystall.bpf.c_build import BuildError, is_newer, main, replacing, run

SOURCES = Path(__file__).resolve().parent / "src"
OBJECTS = Path(__file__).resolve().parent / "objects"
LAYOUT = Path(__file__).resolve().parent / "layout_generated.py"
MACHINES = {"x86_64": "x86", "aarch64": "arm64"}
# Kernels 5.13 to 5.15 reject an object that refers to a kernel function they do not have (fixed in 5.16, a5d827275241).
KINDS: dict[str, tuple[str, ...]] = {
    "host": ("host.bpf.c",),
    "host_old": ("host.bpf.c", "-DNO_KERNEL_FUNCTIONS"),
    "trace": ("trace.bpf.c",),
    "functions": ("functions.bpf.c",),
}
"""Each object's source and compiler options."""
# Names of sources in the type information are relative, so that the bytes do not depend on the folder.
_RELATIVE = (f"-ffile-prefix-map={SOURCES}/=", "-fdebug-compilation-dir=.")
_FLAGS = ("-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", *_RELATIVE)


def object_path(machine: str, kind: str = "host") -> Path:
    """Return the path of an object for a machine; `kind` is one of `KINDS`."""
    return OBJECTS / f"{kind}.{machine}.bpf.o"


def is_current(machine: str, kind: str = "host") -> bool:
    """Return whether the object exists and is not older than any source."""
    return is_newer(object_path(machine, kind), SOURCES)


def build(machine: str, kind: str = "host", force: bool = False) -> bool:
    """Compile one object; return False when it was current. Raises ``BuildError``."""
    if not force and is_current(machine, kind):
        return False
    source, *options = KINDS[kind]
    with replacing(object_path(machine, kind)) as made:
        target = f"-D__TARGET_ARCH_{MACHINES[machine]}"
        run([_clang(), *_FLAGS, *options, target, "-c", str(SOURCES / source), "-o", made])
        strip = shutil.which("llvm-strip")
        if strip is not None:  # drops DWARF, keeps BTF
            run([strip, "-g", made])
    return True


def layout() -> str:
    """Return the text of ``layout_generated.py`` for the headers in `SOURCES`. Raises ``BuildError``."""
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder, "layout.c"), Path(folder, "layout.o")
        text.write_text(layout_generator.source(SOURCES))
        run([_clang(), *_FLAGS, f"-I{SOURCES}", "-c", str(text), "-o", str(made)])
        return layout_generator.generate(SOURCES, Btf(made))


def _clang() -> str:
    found = shutil.which("clang")
    if found is None:
        raise BuildError("clang is missing: apt install clang libbpf-dev, or dnf install clang libbpf-devel")
    return found


def _build_layout(force: bool) -> bool:
    text = layout()
    if text == LAYOUT.read_text():
        return False
    LAYOUT.write_text(text)
    return True


if __name__ == "__main__":
    objects = {object_path(each, kind).name: partial(build, each, kind) for each in MACHINES for kind in KINDS}
    sys.exit(main({LAYOUT.name: _build_layout, **objects}))
