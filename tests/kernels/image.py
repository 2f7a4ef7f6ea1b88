"""The image of what a guest reads most: this tree, its environment, interpreters and the compiler of BCC with its
headers, uncompressed in one squashfs.

It lies over the host's root in the guest, so it only makes reading faster: what it leaves out is read by 9p.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from kernels.stock import CACHE, Kernel, Unavailable, found

TREE = Path(__file__).parents[2]
COLD = (
    *("torch", "torch-*", "torchgen", "functorch", "sympy", "mpmath", "networkx", "mypy", "mypyc", "*__mypyc*.so"),
    *("pip", "pip-*", "setuptools", "setuptools-*", "ruff", "ruff-*", "dask", "distributed", "tornado", "resvg_py*"),
    *("numpy/*/tests", "_polars_runtime_32", "tzdata", "types", "icalendar", "kubernetes_validate*"),
)
"""In site-packages: large, and of no use to the tests of the matrix."""
ROOMS = ("agent_server", "benchmarks", "bpf", "examples", "knowledge_base", "prompts", "tests", "tools")


def plain_polars() -> Path:
    """A directory to import from, with that build of Polars which uses no AVX: QEMU 7.2 emulates some of it wrongly
    (running sums of lanes came out a hundred times too large). ``POLARS_FORCE_PKG=compat`` chooses it.

    Raises:
        Unavailable: it cannot be installed.
    """
    package = f"polars-runtime-compat=={version('polars')}"
    folder = CACHE / package
    if not folder.exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
        with tempfile.TemporaryDirectory(dir=CACHE) as place:
            done = subprocess.run((*pip, "--target", f"{place}/found", package), capture_output=True, text=True)
            if done.returncode != 0:
                raise Unavailable(f"no {package} for guests: {done.stderr.strip()[-300:]}")
            try:
                Path(place, "found").rename(folder)
            except OSError:
                if not folder.exists():  # else another was faster
                    raise
    return folder


def environment() -> list[str]:
    """The words before a command that runs this tree's Python in a guest.

    Raises:
        Unavailable: see `plain_polars`.
    """
    return ["env", "WHYSTALL_GUEST=1", "POLARS_FORCE_PKG=compat", f"PYTHONPATH={plain_polars()}"]


def make(image: Path, kernel: Kernel) -> None:
    """Write the image for a kernel.

    Raises:
        Unavailable: no mksquashfs, or no space for it.
    """
    program = found("mksquashfs")
    if program is None:
        raise Unavailable("guests cannot be booted: no mksquashfs (package squashfs-tools)")
    library = Path(sys.base_prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    packages = [Path(place) for place in sys.path if Path(place).name == "site-packages"]  # .pth files may add some
    sources = [*(TREE / room for room in ROOMS), plain_polars(), *packages]
    sources += [library, *library.parent.glob("libpython*.so*")]
    sources += [*_of_bcc(), *kernel.root.glob("usr/src/*/include"), *kernel.root.glob("usr/src/*/arch/x86/include")]
    cold = [str(place / name).lstrip("/") for place in packages for name in COLD]
    cold += [str(library / name).lstrip("/") for name in ("test", "idlelib", "site-packages", "ensurepip", "config-*")]
    options = ["-no-strip", "-quiet", "-no-progress", "-wildcards", "-e", *cold]
    raw = ("-noI", "-noD", "-noF", "-noX", "-no-fragments", "-no-duplicates", "-no-xattrs", "-b", "1M")
    image.unlink(missing_ok=True)
    done = subprocess.run(
        (program, *map(str, dict.fromkeys(sources)), str(image), *raw, *options),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Unavailable(f"guests cannot be booted: mksquashfs failed: {(done.stderr or done.stdout).strip()[-300:]}")


def _of_bcc() -> list[Path]:
    """The system's Python with BCC's module, and the compiler in libbcc, where they are installed."""
    root = Path("/usr")
    library = next(root.glob("lib*/*-linux-gnu/libbcc.so.0"), None)
    if library is None:
        return []
    said = subprocess.run(("ldd", str(library)), capture_output=True, text=True).stdout
    loaded = {Path(word) for line in said.splitlines() for word in line.split() if word.startswith("/")}
    return [
        *sorted({path for link in (library, *loaded) for path in (link.resolve(),) if path.is_relative_to("/usr")}),
        *root.glob("lib/python3.[0-9]*"),
        *root.glob("lib/python3/dist-packages/bcc"),
    ]
