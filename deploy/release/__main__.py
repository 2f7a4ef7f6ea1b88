"""Make the files of a release below ``dist/``: ``python -m deploy.release [--draft] [--once]``.

Wheels, a bill of materials (CycloneDX) and SHA256SUMS. Looks up known vulnerabilities of packages. Uploads nothing.
``--draft`` leaves out the checks of the tree and of the version, ``--once`` the second build.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.release import audit, bill, checks, libraries, wheels
from deploy.release.failure import ReleaseError

DIST = wheels.ROOT / "dist"
MACHINES = {"x86_64": DIST, "aarch64": DIST / "not-published"}
"""Where the wheel of a machine goes. Those whose tools have not run on a kernel of that machine are not published."""


def main() -> int:
    """Make the release; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("--draft", action="store_true", help="build what is committed, whatever its version")
    parser.add_argument("--once", action="store_true", help="do not build a second time to compare the bytes")
    parser.add_argument("--machine", choices=MACHINES, action="append", help="build for this machine only")
    options = parser.parse_args()
    try:
        if not options.draft:
            checks.check_tree()
            checks.check_version()
        _make(options.machine or list(MACHINES), once=options.once)
    except (ReleaseError, OSError, subprocess.SubprocessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _make(machines: list[str], *, once: bool) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    sources = libraries.fetch(wheels.ROOT / ".setup/sources")
    published = []
    for machine in machines:
        wheel = wheels.build(machine, sources, MACHINES[machine], times=1 if once else 2)
        checks.check_wheel(wheel)
        print(f"{wheel.relative_to(wheels.ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB")
        if MACHINES[machine] == DIST:
            published.append(wheel)
    for wheel in published:
        listed = DIST / f"{wheel.stem}.cdx.json"
        with tempfile.TemporaryDirectory(prefix="whystall-bill-") as folder:
            environment = Path(folder) / "venv"
            bill.install(wheel, environment)
            print(f"{listed.relative_to(wheels.ROOT)}: {bill.write_bill(environment, listed)} components")
            (packages,) = environment.glob("lib/python*/site-packages")
            print(audit.audit(packages))
    files = sorted(path for path in DIST.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
