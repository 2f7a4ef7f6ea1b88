"""Debian's stock kernels: which is the newest of a series, fetched and unpacked under `.setup/kernels`.

apt is asked with lists and a state of its own, so the system's packages are neither read nor changed. The archive is
the one this machine's apt uses; packages are verified against the Debian keyring.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".setup" / "kernels"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEEDED = ("apt-get", "apt-cache", "dpkg", "dpkg-deb", "depmod")


class Unavailable(Exception):
    """A kernel cannot be had here; the message is one line and says what to do."""


@dataclass(frozen=True)
class Series:
    name: str
    """As people say it: ``5.10``."""
    suite: str
    """The Debian release that has it."""
    image: str
    """Matches the names of its image packages; the group is what `uname -r` says without the flavour."""


SERIES = {
    series.name: series
    for series in (
        Series("5.10", "bullseye", r"linux-image-(5\.10\.0-\d+)-amd64"),
        Series("6.1", "bookworm", r"linux-image-(6\.1\.0-\d+)-amd64"),
        Series("6.12", "bookworm-backports", r"linux-image-(6\.12\.\d+\+(?:deb12|bpo))-amd64"),
    )
}
"""5.10 is the series of openEuler 22.03 and Debian 11, 6.1 of Debian 12, 6.12 of Debian 13."""


@dataclass(frozen=True)
class Kernel:
    series: str
    root: Path
    """Holds boot/, lib/modules/ and usr/src/ of one kernel."""

    @property
    def image(self) -> Path:
        (image,) = (self.root / "boot").glob("vmlinuz-*")
        return image

    @property
    def release(self) -> str:
        """What `uname -r` says in it."""
        return self.image.name.removeprefix("vmlinuz-")


def fetch(name: str) -> Kernel:
    """The newest kernel of a series, from the cache if it is there.

    Raises:
        Unavailable: no apt of Debian, or the archive cannot be reached.
    """
    place = CACHE / name
    if (place / "complete").exists():
        return Kernel(name, place)
    if platform.machine() != "x86_64":
        raise Unavailable(f"kernel {name} cannot be booted: only amd64 is, and this is {platform.machine()}")
    missing = [program for program in NEEDED if found(program) is None]
    if missing:
        raise Unavailable(f"kernel {name} cannot be fetched: no {', '.join(missing)} (Debian's apt, dpkg and kmod)")
    if not KEYRING.exists():
        raise Unavailable(f"kernel {name} cannot be fetched: no {KEYRING} (package debian-archive-keyring)")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:  # whoever comes second finds it there
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            _fetch(SERIES[name], place)
    return Kernel(name, place)


def _fetch(series: Series, place: Path) -> None:
    name = series.name
    state = CACHE / f"apt-{name}"
    shutil.rmtree(state, ignore_errors=True)
    for part in ("lists/partial", "archives/partial", "debs"):
        (state / part).mkdir(parents=True)
    (state / "status").touch()
    (state / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_archive()} {series.suite} main\n")
    _apt(state, "apt-get", "update")
    release = _newest(state, series)
    packages = (f"linux-image-{release}-amd64", f"linux-headers-{release}-amd64", f"linux-headers-{release}-common")
    _apt(state, "apt-get", "download", *packages, cwd=state / "debs")
    unpacking = CACHE / f"unpacking-{name}"
    shutil.rmtree(unpacking, ignore_errors=True)
    for package in sorted((state / "debs").glob("*.deb")):
        _run(("dpkg-deb", "-x", str(package), str(unpacking)))
    _run((found("depmod") or "depmod", "-b", str(unpacking), f"{release}-amd64"))
    (unpacking / "complete").touch()
    shutil.rmtree(place, ignore_errors=True)
    unpacking.rename(place)
    shutil.rmtree(state)


def _newest(state: Path, series: Series) -> str:
    """The newest release of a series in the index, by Debian's order of versions."""
    found = _apt(state, "apt-cache", "pkgnames", "linux-image-").split()
    matches = [match for name in found if (match := re.fullmatch(series.image, name))]
    if not matches:
        raise Unavailable(f"kernel {series.name}: {series.suite} has no package like {series.image}")

    def order(one: str, other: str) -> int:
        return 1 if subprocess.run(("dpkg", "--compare-versions", one, "gt", other)).returncode == 0 else -1

    return max((match[1] for match in matches), key=functools.cmp_to_key(order))


def _archive() -> str:
    """The address of the archive this machine uses."""
    said = _run(("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"))
    for address in sorted(set(said.split())):
        if address.startswith("http") and address.endswith("/debian/"):
            return address
    raise Unavailable("kernels cannot be fetched: this machine's apt names no archive of Debian")


def _apt(state: Path, program: str, *arguments: str, cwd: Path | None = None) -> str:
    options = {
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "30",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
    }
    return _run((program, "-q", *(f"-o{key}={value}" for key, value in options.items()), *arguments), cwd=cwd)


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{command[0]} failed ({done.returncode}): {said[-1] if said else 'no message'}")
    return done.stdout


def found(program: str) -> str | None:
    """Where a program is, in the folders of administrators too."""
    return shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


if __name__ == "__main__":
    for asked in sys.argv[1:] or SERIES:
        try:
            kernel = fetch(asked)
        except Unavailable as error:
            sys.exit(f"whystall: {error}")
        print(kernel.release, kernel.root)
