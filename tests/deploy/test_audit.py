"""What a release concludes from pip-audit's reports (of version 2.10)."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.release.audit import judge
from deploy.release.failure import ReleaseError

OWN = {"name": "whystall", "skip_reason": "Dependency not found on PyPI and could not be audited: whystall (0.1.0)"}
CLEAN = {"name": "anyio", "version": "4.12.0", "vulns": []}
SKIPPED = {"name": "idna", "skip_reason": "Dependency not found on PyPI and could not be audited: idna (3.6)"}
FAULTY = {
    "name": "idna",
    "version": "3.6",
    "vulns": [{"id": "PYSEC-2024-60", "fix_versions": ["3.7"], "aliases": ["CVE-2024-3651"], "description": "..."}],
}


def report(*packages: dict[str, Any]) -> dict[str, Any]:
    return {"dependencies": [OWN, *packages], "fixes": []}


def test_a_known_vulnerability_ends_the_release() -> None:
    with pytest.raises(ReleaseError, match=r"idna 3\.6: PYSEC-2024-60, fixed in 3\.7"):
        judge(report(CLEAN, FAULTY))


def test_a_package_without_an_answer_is_not_called_safe() -> None:
    assert judge(report(SKIPPED)).startswith("known vulnerabilities: not checked, ")
    assert judge(report(CLEAN, SKIPPED)) == "known vulnerabilities: none in 1 packages; not checked: idna"


def test_packages_without_known_vulnerabilities_pass() -> None:
    assert judge(report(CLEAN)) == "known vulnerabilities: none in 1 packages"
