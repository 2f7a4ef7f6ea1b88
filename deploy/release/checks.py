"""Check that a release may be made, and that its wheels run where their tags promise."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import yaml

from deploy.release.failure import ReleaseError
from deploy.release.libraries import GLIBC, run
from deploy.release.wheels import ROOT


def version() -> str:
    """Return the version of pyproject.toml."""
    found = re.search(r'^version = "(\S+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise ReleaseError("pyproject.toml names no version")
    return found.group(1)


def check_tree() -> None:
    """Raise ``ReleaseError`` if something is not committed: wheels are built from HEAD."""
    changed = run(["git", "status", "--porcelain"], cwd=ROOT).splitlines()
    if changed:
        raise ReleaseError(f"{len(changed)} files are not committed, such as {changed[0][3:]}")


def check_version() -> None:
    """Raise ``ReleaseError`` if the newest section of the changelog, server.json or the chart name another."""
    wanted = version()
    # ## [0.1.0] - 2026-11-29
    newest = re.search(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    server = json.loads((ROOT / "server.json").read_text())
    chart = yaml.safe_load((ROOT / "deploy/chart/Chart.yaml").read_text())
    found = {
        "CHANGELOG.md": newest.group(1) if newest else "no version",
        "server.json": server["version"],
        "Chart.yaml": chart["version"],
        "Chart.yaml, appVersion": chart["appVersion"],
        "server.json, packages": server["packages"][0]["version"],
    }
    for place, named in found.items():
        if named != wanted:
            raise ReleaseError(f"{place} names {named}, pyproject.toml {wanted}")


def check_wheel(wheel: Path) -> None:
    """Raise ``ReleaseError`` unless auditwheel finds that `wheel` needs no more than its tag promises."""
    report = run([str(Path(sys.executable).with_name("auditwheel")), "show", "--json", str(wheel)], cwd=ROOT)
    # {"wheel": ..., "overall_tag": "manylinux_2_17_x86_64", ...}
    tag = str(json.loads(report)["overall_tag"])
    needs = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    if needs is None or tuple(map(int, needs.groups())) > tuple(map(int, GLIBC.split("."))):
        raise ReleaseError(f"{wheel.name} needs {tag} by auditwheel")
