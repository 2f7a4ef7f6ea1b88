"""Build the wheel of one machine from the committed files, twice, and compare the bytes."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from pathlib import Path

from deploy.release import libraries
from deploy.release.failure import ReleaseError
from deploy.release.libraries import GLIBC, Library, run

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bpf", "tools")  # what the builds of the compiled parts import


@cache
def commit() -> str:
    """Return the last commit, found once: all wheels are of the same one, also if another one follows meanwhile."""
    return run(["git", "rev-parse", "HEAD"], cwd=ROOT).strip()


def commit_time() -> str:
    """Return the time of the commit, in seconds since the epoch: the time of all files in a wheel."""
    return run(["git", "log", "-1", "--format=%ct", commit()], cwd=ROOT).strip()


def build(machine: str, sources: dict[str, Library], to: Path, times: int = 2) -> Path:
    """Build the wheel for `machine` into the folder `to` and return its path.

    Raises ``ReleaseError`` if it fails, or if a further build, in another folder and without the cache, differs.
    """
    contents: dict[bytes, str] = {}
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="whystall-release-") as folder:
            made = build_wheel(machine, sources, Path(folder))
            contents[made.read_bytes()] = made.name
    if len(contents) > 1:
        raise ReleaseError(f"builds of {made.name} differ: it is not reproducible")
    ((content, name),) = contents.items()
    to.mkdir(parents=True, exist_ok=True)
    (to / name).write_bytes(content)
    return to / name


def build_wheel(machine: str, sources: dict[str, Library], work: Path) -> Path:
    """Build the wheel for `machine` from the commit in the empty folder `work`, and return its path."""
    os.umask(0o022)
    tree, built = work / "tree", work / "dist"
    tree.mkdir()
    archive = work / "tree.tar"
    run(["git", "archive", "--output", str(archive), commit()], cwd=ROOT)
    run(["tar", "--extract", "--file", str(archive)], cwd=tree)
    (work / "root/whystall").mkdir(parents=True)
    for package in PACKAGES:
        (work / "root/whystall" / package).symlink_to(tree / package)
    cc = libraries.compiler(machine, work)
    libraries.build_libbpf(sources, cc, work / "objects", tree / "bpf/objects/libbpf.so.1")
    libraries.add_licenses(sources, tree / "licenses")
    for module in ("whystall.bpf.build", "whystall.tools.hybrid_io.build"):
        run([sys.executable, "-m", module], cwd=work, PYTHONPATH=str(work / "root"), CC=str(cc))
    name = f"--plat-name=manylinux_{GLIBC.replace('.', '_')}_{machine}"
    argv = ["--wheel", "--no-isolation", "--outdir", str(built), f"--config-setting=--build-option={name}", str(tree)]
    run([sys.executable, "-m", "build", *argv], cwd=work, SOURCE_DATE_EPOCH=commit_time())
    (wheel,) = built.glob("*.whl")
    return wheel
