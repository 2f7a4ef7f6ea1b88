"""Write the bill of materials of an installed wheel, as CycloneDX."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from deploy.release.libraries import descriptions, run
from deploy.release.wheels import ROOT, commit_time


def install(wheel: Path, environment: Path) -> None:
    """Install `wheel` without extras in the new virtual environment `environment`, which gets no pip of its own."""
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)], cwd=environment.parent)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python")]
    run([*pip, "install", "--quiet", str(wheel)], cwd=environment.parent)


def write_bill(environment: Path, to: Path) -> int:
    """Write what is installed in `environment` to the file `to`, and return the number of components.

    The libraries that the wheel carries are added. Raises ``ReleaseError``.
    """
    argv = ["environment", "--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml")]
    command = [sys.executable, "-m", "cyclonedx_py", *argv, str(environment / "bin/python")]
    text = run(command, cwd=environment, SOURCE_DATE_EPOCH=commit_time())
    bill: dict[str, Any] = json.loads(text)
    bill["components"] += [_component(name, facts) for name, facts in descriptions().items()]
    to.write_text(json.dumps(bill, indent=1, ensure_ascii=False) + "\n")
    return len(bill["components"])


def _component(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": f"carried-{name}",
        "name": name,
        "version": facts["version"],
        "description": "in whystall/bpf/objects/libbpf.so.1",
        "hashes": [{"alg": "SHA-256", "content": facts["sha256"]}],
        "licenses": [{"expression": facts["license"]}],
        "purl": f"pkg:generic/{name}@{facts['version']}",
    }
