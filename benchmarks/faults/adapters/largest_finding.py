"""Take whystall's first look, and from it the one finding with the largest share of the window: no reasoning."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import anyio
import yaml

from benchmarks.faults.adapters.whystall_rules import scope
from benchmarks.faults.adapters.whystall_words import advice, evidence
from whystall.agent_server.diagnosis.observer import LiveObserver
from whystall.agent_server.interfaces.serialize import structured
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.params import TargetParams
from whystall.tools.recording.target import resolve
from whystall.tools.toolbox import registry

_TOOLS = ("critical_path", "host_snapshot")
_DURATION_S = 5.0
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


async def look(pid: int) -> list[dict[str, Any]]:
    """Run the tools of the first look in one window, as `whystall diagnose` does; return their findings.

    Raises ToolError.
    """
    known, observer = registry(), LiveObserver(resolve(TargetParams(pid=pid)), "auto", None)
    results = await observer.observe([known.get(name) for name in _TOOLS], _DURATION_S, {})
    return [one | {"id": f"{result.tool}:{one['id']}"} for result in results for one in structured(result)["findings"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--symptom", required=True)
    options = parser.parse_args()
    try:
        findings = anyio.run(look, options.pid)
    except ToolError as error:
        sys.exit(str(error))
    print(json.dumps(answer(findings, yaml.safe_load(_TABLE.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
