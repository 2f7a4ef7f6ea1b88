"""The image of what a guest reads most: this tree, its environment and interpreter, uncompressed in one squashfs.

It lies over the host's root in the guest, so it only makes reading faster: what it leaves out is read by 9p.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kernels.stock import Unavailable, found

TREE = Path(__file__).parents[2]
COLD = (
    *("torch", "torch-*", "torchgen", "functorch", "sympy", "mpmath", "networkx", "mypy", "mypyc", "*__mypyc*.so"),
    *("pip", "pip-*", "setuptools", "setuptools-*", "ruff", "ruff-*", "dask", "distributed", "tornado", "resvg_py*"),
    *("numpy/*/tests", "tzdata", "types", "icalendar"),
)
"""In site-packages: large, and of no use to the tests of the matrix."""
ROOMS = ("agent_server", "bpf", "examples", "knowledge_base", "prompts", "tests", "tools")


def make(image: Path) -> None:
    """Write the image.

    Raises:
        Unavailable: no mksquashfs, or no space for it.
    """
    program = found("mksquashfs")
    if program is None:
        raise Unavailable("guests cannot be booted: no mksquashfs (package squashfs-tools)")
    library = Path(sys.base_prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    packages = Path(sys.prefix, "lib", library.name, "site-packages")
    sources = [*(TREE / room for room in ROOMS), packages, library, *library.parent.glob("libpython*.so*")]
    cold = [str(packages / name).lstrip("/") for name in COLD]
    cold += [str(library / name).lstrip("/") for name in ("test", "idlelib", "site-packages", "ensurepip", "config-*")]
    options = ["-no-strip", "-quiet", "-no-progress", "-wildcards", "-e", *cold]
    raw = ("-noI", "-noD", "-noF", "-noX", "-no-fragments", "-no-duplicates", "-no-xattrs", "-b", "1M")
    image.unlink(missing_ok=True)
    done = subprocess.run(
        (program, *map(str, sources), str(image), *raw, *options),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Unavailable(f"guests cannot be booted: mksquashfs failed: {(done.stderr or done.stdout).strip()[-300:]}")
