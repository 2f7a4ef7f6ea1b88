"""Always name the most frequent cause, whatever the job does.

The frequencies are counted among the incidents of knowledge_base/catalog/incidents, which were collected from public
reports of AI jobs that stalled (each names its source). It observes nothing, so it has no evidence and no scope.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.judgement import judgement
from benchmarks.faults.scenario import HERE

_INCIDENTS = HERE.parents[1] / "knowledge_base/catalog/incidents"


def most_common(incidents: Iterable[dict[str, Any]], number: int = 3) -> list[str]:
    """Return the most frequent causes, those of equal frequency by name."""
    counts = Counter(one["cause"] for one in incidents if one.get("cause"))
    return sorted(counts, key=lambda cause: (-counts[cause], cause))[:number]


def incidents(directory: Path = _INCIDENTS) -> list[dict[str, Any]]:
    """Return the incidents of the catalog."""
    return [one for path in sorted(directory.glob("*.yaml")) for one in yaml.safe_load(path.read_text("utf-8"))]


def answer(causes: list[str]) -> dict[str, Any]:
    """Return the answer."""
    accepted = judgement().of(causes[:1])
    return {"verdict": "likely", "causes": causes, "advice": [{"action": action} for action in accepted.actions]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", required=True)
    parser.add_argument("--symptom", required=True)
    parser.parse_args()
    print(json.dumps(answer(most_common(incidents()))))


if __name__ == "__main__":
    main()
