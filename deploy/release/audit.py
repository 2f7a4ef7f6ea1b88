"""Look up the packages of an environment in the advisories of PyPI, by pip-audit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from deploy.release.failure import ReleaseError

OWN = "whystall"
_TIMEOUT_S = 600


def audit(packages: Path) -> str:
    """Return in one line what is known of the packages in the folder `packages` (``site-packages``).

    Raises ``ReleaseError`` if one of them has a known vulnerability.
    """
    argv = [str(Path(sys.executable).with_name("pip-audit")), "--path", str(packages), "--format", "json"]
    done = subprocess.run(
        [*argv, "--progress-spinner", "off"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"known vulnerabilities: not checked, pip-audit failed: {reason[:300]}"
    return judge(report)


def judge(report: dict[str, Any]) -> str:
    """Return in one line what pip-audit's `report` states. Raises ``ReleaseError`` for a known vulnerability.

    A package without an answer counts as not checked: pip-audit calls it skipped, and ends with success.
    """
    # {"dependencies": [{"name": "idna", "version": "3.6", "vulns": [{"id": "PYSEC-2024-60", "fix_versions": ["3.7"], ..
    # {"name": "idna", "skip_reason": "Dependency not found on PyPI and could not be audited: idna (3.6)"}
    packages = [package for package in report["dependencies"] if package["name"] != OWN]
    known = [
        f"{package['name']} {package['version']}: {fault['id']}, fixed in {', '.join(fault['fix_versions']) or 'none'}"
        for package in packages
        for fault in package.get("vulns", ())
    ]
    if known:
        raise ReleaseError(f"{len(known)} known vulnerabilities: {'; '.join(known)}")
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        return f"known vulnerabilities: not checked, there are no advisories here for any of {len(packages)} packages"
    not_checked = f"; not checked: {', '.join(skipped)}" if skipped else ""
    return f"known vulnerabilities: none in {len(packages) - len(skipped)} packages{not_checked}"
