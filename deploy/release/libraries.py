"""Build the compiled parts of a wheel for one machine, so that glibc 2.28 suffices.

`zig cc` links against the symbols of the glibc that it is given, on any machine and for any machine. libbpf is one
file that contains libelf and zlib: distributions have it in versions that are too old, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.release.failure import ReleaseError

GLIBC = "2.28"  # RHEL 8 and 9, openEuler 22.03, Debian 11, Ubuntu 20.04 have this or a newer one
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_HERE = Path(__file__).parent
_FLAGS = ("-O2", "-fPIC", "-fvisibility=hidden", "-g0", "-w")


@dataclass(frozen=True)
class Library:
    """A library of ``sources.yaml``, and the folder that holds its sources."""

    name: str
    facts: dict[str, Any]
    folder: Path

    def include(self, others: dict[str, Library]) -> list[str]:
        """Return the options for its folders of headers; ``NAME:FOLDER`` is one of another library."""
        found = []
        for entry in self.facts["include"]:
            owner, _, path = entry.rpartition(":")
            found.append(f"-I{(others[owner] if owner else self).folder / path}")
        return found


def descriptions() -> dict[str, dict[str, Any]]:
    """Return the libraries of ``sources.yaml`` in the order in which they are built."""
    found: dict[str, dict[str, Any]] = _data()["libraries"]
    return found


def fetch(work: Path) -> dict[str, Library]:
    """Return the libraries with their sources, downloaded by apt and unpacked below `work`.

    Raises ``ReleaseError`` if an archive cannot be had, or is not the one that `sources.yaml` names.
    """
    work = work.resolve()
    archives = work / "archives"
    _download(archives, [name for name, facts in descriptions().items() if not _intact(archives, facts)])
    found = {}
    for name, facts in descriptions().items():
        if not _intact(archives, facts):
            raise ReleaseError(f"{facts['archive']} is missing, or its SHA-256 differs from that in sources.yaml")
        folder = work / "sources" / name
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(archives / facts["archive"]) as archive:
            archive.extractall(folder, filter="data")
        (inner,) = folder.iterdir()
        if "config" in facts:
            (inner / "config.h").write_text(facts["config"])
        found[name] = Library(name, facts, inner)
    return found


def compiler(machine: str, folder: Path) -> Path:
    """Write a compiler for `machine` into `folder`, as a script that `$CC` may name, and return its path.

    It has a cache of its own there, so that two builds have nothing in common.
    """
    path = folder / f"cc-{machine}"
    zig = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC} -fno-sanitize=undefined"
    path.write_text(
        f"#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR={folder}/cache ZIG_LOCAL_CACHE_DIR={folder}/cache\n"
        f'exec {zig} "$@" -g0 -Wl,-s\n'
    )
    path.chmod(0o755)
    return path


def build_libbpf(libraries: dict[str, Library], cc: Path, work: Path, to: Path) -> None:
    """Build ``libbpf.so.1`` from `libraries` with the compiler `cc` as the file `to`. Raises ``ReleaseError``."""
    objects: list[str] = []
    for library in libraries.values():
        folder = work / library.name
        folder.mkdir(parents=True)
        files = [str(path) for pattern in library.facts["compiled"] for path in sorted(library.folder.glob(pattern))]
        run([str(cc), "-c", *_FLAGS, *library.facts["flags"], *library.include(libraries), *files], cwd=folder)
        objects += [str(path) for path in sorted(folder.glob("*.o"))]
    exported = f"-Wl,--version-script={libraries['libbpf'].folder}/src/libbpf.map"
    to.parent.mkdir(exist_ok=True)
    run([str(cc), "-shared", "-o", str(to), "-Wl,-soname,libbpf.so.1", "-Wl,-z,defs", exported, *objects], cwd=work)
    to.chmod(0o644)


def add_licenses(libraries: dict[str, Library], to: Path) -> None:
    """Copy the licenses of `libraries` into the folder `to`."""
    to.mkdir()
    for library in libraries.values():
        for text in library.facts["texts"]:
            shutil.copyfile(library.folder / text, to / f"{library.name}-{text}.txt")


def run(argv: list[str], cwd: Path, **variables: str) -> str:
    """Run a program and return its output; raise ``ReleaseError`` with the end of its errors if it fails."""
    done = subprocess.run(argv, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{Path(argv[0]).name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def _data() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((_HERE / "sources.yaml").read_text())
    return found


def _intact(archives: Path, facts: dict[str, Any]) -> bool:
    path = archives / str(facts["archive"])
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == str(facts["sha256"])


def _download(archives: Path, names: list[str]) -> None:
    """Download source archives by apt with lists and state of its own; the system's stay as they are."""
    if not names:
        return
    if not KEYRING.exists() or shutil.which("apt-get") is None:
        raise ReleaseError("the sources of libbpf come from Debian's archive, and there is no apt of Debian here")
    for part in ("state/lists/partial", "cache/archives/partial"):
        (archives / part).mkdir(parents=True, exist_ok=True)
    sources = archives / "sources.list"
    sources.write_text(f"deb-src [signed-by={KEYRING}] {mirror()} {_data()['suite']} main\n")
    options = {
        "Dir::State": archives / "state",
        "Dir::Cache": archives / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "root",
    }
    chosen = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    run(["apt-get", "-qq", *chosen, "update"], cwd=archives)
    for name in names:
        run(["apt-get", "-qq", *chosen, "source", "--tar-only", "--download-only", name], cwd=archives)


def mirror() -> str:
    """Return the address of the archive of Debian that this machine uses."""
    listed = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], cwd=Path("/"))
    found = sorted(line for line in set(listed.split()) if line.startswith("http") and line.endswith("/debian/"))
    if not found:
        raise ReleaseError("apt names no archive of Debian")
    return found[0]
