"""Write the bill of materials of an installed wheel, as CycloneDX."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from deploy.release.libraries import descriptions, run
from deploy.release.wheels import ROOT, commit_time


def write_bill(wheel: Path, work: Path, to: Path) -> int:
    """Install `wheel` without extras below the empty folder `work`, and write what is then there to the file `to`.

    The libraries that the wheel carries are added. Returns the number of components. Raises ``ReleaseError``.
    """
    environment = work / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)], cwd=work)
    python = str(environment / "bin/python")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", str(wheel)], cwd=work)
    argv = ["environment", "--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), python]
    text = run([sys.executable, "-m", "cyclonedx_py", *argv], cwd=work, SOURCE_DATE_EPOCH=commit_time())
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
