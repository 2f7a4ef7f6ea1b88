"""The Python interpreters of this machine, of every version whose frames are walked, and where more are fetched to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

FETCHED = Path(__file__).parents[3] / ".setup" / "pythons"
"""Where ``.ci/install-test-pythons`` unpacks Debian's: a root directory per version, with its own C library."""


@lru_cache(maxsize=1)
def interpreters() -> dict[str, list[str]]:
    """Name (``3.12``; ``3.11 system``) to the command that starts it."""
    found: dict[str, list[str]] = {f"3.{sys.version_info[1]}": [sys.executable]}
    system = _minor("/usr/bin/python3")
    if system:
        found[f"3.{system} system"] = ["/usr/bin/python3"]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    places = [*sorted(pyenv.glob("3.*/bin/python3"), reverse=True)]
    places += [Path(folder, f"python3.{minor}") for folder in ("/usr/bin", "/usr/local/bin") for minor in range(9, 15)]
    for place in places:
        minor = _minor(str(place)) if place.exists() else 0
        if minor:
            found.setdefault(f"3.{minor}", [str(place)])
    for root in sorted(FETCHED.glob("3.*")):
        command = _with_own_library(root)
        if command:
            found.setdefault(root.name, command)
    return found


def _minor(path: str) -> int:
    if not os.access(path, os.X_OK):
        return 0
    done = subprocess.run([path, "-VV"], capture_output=True, text=True, check=False)
    version = re.match(r"Python 3\.(\d+)", done.stdout)
    return int(version[1]) if version else 0


def _with_own_library(root: Path) -> list[str]:
    loader = next(root.glob("usr/lib*/ld-linux-*.so.*"), None)
    python = root / "usr/bin" / f"python{root.name}"
    libraries = next((root / "usr/lib").glob("*-linux-gnu"), None)
    if loader is None or libraries is None or not python.exists():
        return []
    command = [str(loader), "--library-path", str(libraries), str(python)]
    works = subprocess.run([*command, "-c", "import threading, json"], capture_output=True, check=False)
    return command if works.returncode == 0 else []
