"""What is shipped grants what observing takes, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from whystall.bpf.privileges import NEEDED

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "whystall.service"
SHORT = [name.removeprefix("CAP_") for name in NEEDED]


def settings(name: str) -> list[str]:
    """All words that the unit sets `name` to."""
    return " ".join(re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)).split()


def documents() -> dict[str, dict[str, Any]]:
    return {found["kind"]: found for found in yaml.safe_load_all((DEPLOY / "daemonset.yaml").read_text())}


def pod() -> dict[str, Any]:
    found: dict[str, Any] = documents()["DaemonSet"]["spec"]["template"]["spec"]
    return found


def test_the_unit_has_the_capabilities_and_no_more() -> None:
    assert sorted(settings("AmbientCapabilities")) == sorted(settings("CapabilityBoundingSet")) == sorted(NEEDED)
    assert settings("NoNewPrivileges") == ["yes"]
    (user,) = settings("User")
    users = (DEPLOY / "whystall.sysusers.conf").read_text().splitlines()
    assert [line.split()[1] for line in users if not line.startswith("#")] == [user]
    assert user != "root"


def test_the_units_filter_lets_through_what_tracing_calls() -> None:
    last = re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE)[-1]
    assert not last.startswith("~")
    assert {"bpf", "perf_event_open"} <= set(last.split())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """All but the program, which is not installed where tests run."""
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_unit_is_not_more_exposed_than_before() -> None:
    """3.0 with systemd 252; what is left is wanted (docs/deploy.md)."""
    argv = ["systemd-analyze", "security", "--offline=true", "--threshold=33", str(UNIT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.parametrize("version", ["1.30", "1.33", kubernetes_validate.latest_version()])
def test_kubernetes_knows_every_field_of_the_manifest(version: str) -> None:
    for document in documents().values():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_pod_has_the_capabilities_and_no_more() -> None:
    assert documents().keys() == {"Namespace", "DaemonSet"}, "it needs no role and no account"
    (container,) = pod()["containers"]
    granted = container["securityContext"]["capabilities"]
    assert granted["drop"] == ["ALL"]
    assert sorted(granted["add"]) == sorted(SHORT)
    assert not container["securityContext"]["privileged"]
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["runAsUser"] > 0
    assert not pod()["automountServiceAccountToken"]


def test_of_the_node_the_pod_has_its_processes_only() -> None:
    assert pod()["hostPID"]
    assert not pod().get("hostNetwork", False)
    assert not [volume for volume in pod()["volumes"] if "hostPath" in volume]
    (container,) = pod()["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_image_hands_on_the_same_capabilities() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    (on_the_file,) = re.findall(r'setcap", "(\S+)=p"', text)
    assert on_the_file.upper().split(",") == list(NEEDED)
    for option in ("inh", "ambient"):
        (handed_on,) = re.findall(rf'"--{option}-caps=(\S+)"', text)
        assert [name.removeprefix("+").upper() for name in handed_on.split(",")] == SHORT


def test_the_guide_names_each_capability() -> None:
    rows = re.findall(r"^\| (CAP_\w+) \|", (DEPLOY.parent / "docs/deploy.md").read_text(), re.MULTILINE)
    assert rows == list(NEEDED)
