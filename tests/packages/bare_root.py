"""Root file systems of Debian with Python and nothing to compile with, in which a wheel is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ("ca-certificates", "python3", "python3-venv")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
COMPILERS = ("cc", "gcc", "clang", "make", "ld")
# Kernel file systems and devices are those of this machine; they end with the mount namespace of the command.
_ENTER = 'for part in proc sys dev; do mount --rbind /$part "$0/$part"; done; exec chroot "$0" "$@"'


class BareRoot:
    """A root file system below `folder`; commands in it see the processes and the kernel of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, suite: str, store: Path, folder: Path) -> BareRoot:
        """Unpack Debian `suite` into `folder`, from an archive in `store` that is made where it is missing."""
        packed = store / f"{suite}.tar"
        if not packed.exists():
            store.mkdir(parents=True, exist_ok=True)
            made = packed.with_suffix(".part.tar")
            argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(made)]
            subprocess.run(argv, check=True)
            made.rename(packed)
        folder.mkdir()
        subprocess.run(["tar", "--extract", "--file", str(packed), "--directory", str(folder)], check=True)
        shutil.copyfile("/etc/resolv.conf", folder / "etc/resolv.conf")
        shutil.copyfile(CERTIFICATES, folder / CERTIFICATES.relative_to("/"))
        return cls(folder)

    def argv(self, *command: str) -> list[str]:
        """Return the command line that runs `command` in the root."""
        return ["unshare", "--mount", "sh", "-ec", _ENTER, str(self.folder), *command]

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of commands: of this machine's, only how to reach the package index."""
        network = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
        index = {key: os.environ[key] for key in ("PIP_INDEX_URL", "UV_INDEX_URL") if key in os.environ}
        trusted = {"PIP_CERT": str(CERTIFICATES), "SSL_CERT_FILE": str(CERTIFICATES)}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", **trusted, **network, **index, **variables}

    def run(self, *command: str, timeout: float = 900, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `command` in the root and return what it printed."""
        argv, environment = self.argv(*command), self.environment(**variables)
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=timeout, check=False)

    def check(self, *command: str, timeout: float = 900, **variables: str) -> str:
        """Run `command` in the root and return its standard output; fail if it fails."""
        done = self.run(*command, timeout=timeout, **variables)
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def compilers(self) -> list[str]:
        """Return the compilers that are in the root."""
        places = [self.folder / part for part in ("usr/bin", "bin", "usr/local/bin")]
        return [name for name in COMPILERS if any((place / name).exists() for place in places)]
