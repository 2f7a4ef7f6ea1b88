"""Run ``whystall run critical_path`` alone: the account of the window without a verdict."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.faults.adapters import homes
from benchmarks.faults.adapters.whystall_rules import MAIN, scope

_DURATION_S = 6
_LEAST_PCT = 5.0  # facts of smaller rows are not part of the answer


def answer(result: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the tool in the common form."""
    large = [f for f in result["findings"] if f["metrics"].get("window_pct", 0.0) >= _LEAST_PCT]
    case = {"culprit": None, "cause": None, "assessments": [], "findings": large, "chain": [f["id"] for f in large]}
    rows = [
        {
            "code": " ".join(dict.fromkeys(filter(None, (row["line"], row["inner"])))),
            "wait": f"{row['what']} {row['mode'] or row['detail']}".strip(),
            "pct": row["window_pct"],
            "text": "; ".join(
                f"{key}: {row[key]}" for key in ("object", "by", "chain", "root", "root_line") if row[key]
            ),
        }
        for row in result["data"]["rows"]
    ]
    pauses = result["data"].get("pauses", [])
    facts = {key: result["data"].get(key) for key in ("thread", "chosen_by", "runner_up", "loop")}
    return {"verdict": "inconclusive", "scope": scope(case), "rows": rows, "detail": {"pauses": pauses, **facts}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", required=True)
    parser.add_argument("--symptom", required=True)
    parser.add_argument("--raw", type=Path, help="also write the whole result to this file")
    options = parser.parse_args()
    command = [sys.executable, "-c", MAIN, "run", "critical_path", "--json", "--pid", options.pid]
    command += ["--duration", str(_DURATION_S)]
    with homes.fresh() as environment:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
    if options.raw:
        options.raw.write_text(done.stdout)
    result = json.loads(done.stdout or "{}")
    if not result.get("data"):
        sys.exit(f"{done.stdout[-300:]} {done.stderr[-500:]}")
    print(json.dumps(answer(result)))


if __name__ == "__main__":
    main()
