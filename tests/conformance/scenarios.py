"""Runs the official conformance runner against the server with its fixtures, and collects what each check gave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".setup/conformance/node_modules"
RUNNER = INSTALLED / "@modelcontextprotocol/conformance"
VERSIONS = ("2026-07-28", "2025-11-25")
_TIMEOUT_MS = 60_000  # for one scenario
_STAMP = len("-2026-11-28T22-38-35-565Z")


@dataclass(frozen=True)
class Outcome:
    """What one scenario gave: the number of checks that passed, and the ids of those that did not."""

    passed: int
    failed: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Requirements:
    """The scenarios for servers of one protocol version. `unscored`: run and not counted, with the runner's reason."""

    scored: tuple[str, ...]
    unscored: Mapping[str, str]

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Return all of them, in the order of the runner."""
        return (*self.scored, *self.unscored)


def pinned() -> dict[str, str]:
    """The versions of the runner and of Node."""
    found: dict[str, str] = json.loads(Path(__file__).with_name("package.json").read_text())["dependencies"]
    return found


def check_installed() -> None:
    """Raise `RuntimeError` unless the pinned versions are installed."""
    for name, version in pinned().items():
        manifest = INSTALLED / name / "package.json"
        if not manifest.is_file() or json.loads(manifest.read_text())["version"] != version:
            raise RuntimeError(f"{name} {version} is not installed: run `make .setup/conformance/installed`")


def requirements(version: str) -> Requirements:
    """What the runner requires of servers of a protocol version."""
    listed: dict[str, Any] = yaml.safe_load((RUNNER / f"requirements/{version}.yaml").read_text())
    unscored = {one["scenario"]: one["reason"] for one in listed["not_scored"] if one["leg"] == "server"}
    return Requirements(tuple(listed["server"]), unscored)


def run_all() -> dict[str, dict[str, Outcome]]:
    """Run the scenarios of every protocol version, side by side, and return outcomes by version and scenario."""
    check_installed()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with tempfile.TemporaryDirectory() as directory, Path(directory, "log").open("wb") as log:
        command = [sys.executable, "-m", "conformance.fixture_server"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as server:
            address = server.stdout.readline().strip() if server.stdout is not None else ""
            if not address:
                raise RuntimeError(Path(log.name).read_text())
            with ThreadPoolExecutor() as pool:
                outcomes = list(pool.map(lambda version: _run(address, version, Path(directory)), VERSIONS))
    return dict(zip(VERSIONS, outcomes, strict=True))


def _run(address: str, version: str, directory: Path) -> dict[str, Outcome]:
    out = directory / version
    command = [str(INSTALLED / ".bin/node"), str(RUNNER / "dist/index.js"), "server", "--url", address]
    command += ["--requirements", version, "--timeout", str(_TIMEOUT_MS), "--output-dir", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = {}
    for file in out.glob("server-*/checks.json"):
        found[file.parent.name.removeprefix("server-")[:-_STAMP]] = outcome(json.loads(file.read_text()))
    if set(found) != set(requirements(version).scenarios):
        raise RuntimeError(f"the runner did not finish:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return found


def outcome(checks: list[dict[str, Any]]) -> Outcome:
    """Sum up the checks of a scenario. Those of status INFO say nothing about the server."""
    ids = {
        status: tuple(sorted({one["id"] for one in checks if one["status"] == status}))
        for status in ("FAILURE", "WARNING", "SKIPPED")
    }
    passed = sum(one["status"] == "SUCCESS" for one in checks)
    return Outcome(passed, ids["FAILURE"], ids["WARNING"], ids["SKIPPED"])
