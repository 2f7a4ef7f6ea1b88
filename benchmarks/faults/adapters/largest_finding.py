"""Take whystall's first look, and from it the one finding with the largest share of the window: no reasoning."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.adapters.whystall_rules import MAIN, scope
from benchmarks.faults.adapters.whystall_words import advice, evidence

_TOOLS = {"critical_path": 5, "host_snapshot": 3}  # seconds to observe
_LIKELY_PCT = 20.0
_LEAST_PCT = 5.0  # less is normal on a host that others use
_TABLE = Path(__file__).with_suffix(".yaml")


def largest(findings: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the abnormal finding with the largest share of the window, that of the smallest id if several have it."""
    shares = [one for one in findings if one["polarity"] == "abnormal" and "window_pct" in one["metrics"]]
    return max(shares, key=lambda one: one["metrics"]["window_pct"], default=None)


def cause_of(finding: dict[str, Any], table: Iterable[dict[str, Any]]) -> str | None:
    """Return the cause that the table gives for a finding."""
    words = finding["attributes"]
    for entry in table:
        if fnmatchcase(finding["kind"], entry["kind"]) and all(
            fnmatchcase(words.get(name, ""), pattern) for name, pattern in entry.get("attributes", {}).items()
        ):
            return str(entry["cause"])
    return None


def answer(findings: list[dict[str, Any]], table: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer that the largest finding gives."""
    found = largest(findings)
    if found is None or found["metrics"]["window_pct"] < _LEAST_PCT:
        return {"verdict": "healthy"}
    cause = cause_of(found, table)
    case = {"culprit": None, "cause": None, "assessments": [], "findings": [found], "chain": [found["id"]]}
    strong = cause is not None and found["metrics"]["window_pct"] >= _LIKELY_PCT
    return {
        "verdict": "likely" if strong else "inconclusive",
        "causes": [cause] if cause else [],
        "scope": scope(case),
        "evidence": evidence([found], {found["id"]}),
        "advice": advice(cause),
        "detail": {"finding": found},
    }


def look(pid: str, home: str) -> list[dict[str, Any]]:
    """Run the tools of the first look, one by one since only one may observe; return their findings.

    Raises OSError if one has none.
    """
    findings = []
    for tool, duration in _TOOLS.items():
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "run", tool, "--json", "--pid", pid, "--duration", str(duration)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "WHYSTALL_HOME": home},
        )
        result = json.loads(done.stdout or "{}")
        if "findings" not in result:
            raise OSError(f"{tool}: {done.stdout[-300:]} {done.stderr[-300:]}")
        findings += [one | {"id": f"{tool}:{one['id']}"} for one in result["findings"]]
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", required=True)
    parser.add_argument("--symptom", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        findings = look(options.pid, home)
    print(json.dumps(answer(findings, yaml.safe_load(_TABLE.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
