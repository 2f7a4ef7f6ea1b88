"""Run ``whystall diagnose --llm`` and print its answer in the format of docs/benchmark.md.

The model is the one of WHYSTALL_LLM_BASE_URL and WHYSTALL_LLM_MODEL; without these, the fixed rules of
``examples/model_server.py`` behind the same protocol. `detail` states whether the model or the rules concluded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.adapters import homes, whystall_rules

_SERVER = Path(__file__).resolve().parents[3] / "examples/model_server.py"
_EXPORT = re.compile(r"(WHYSTALL_LLM_\w+)=(\S+)")
_CONCLUDE = "conclude"
_WINDOW_S = 4.5  # of each look, of which a model asks for several; the longer one of the rules has 5.3 s


@contextlib.contextmanager
def model_environment(policy: str) -> Iterator[dict[str, str]]:
    """Yield the variables that name the model: those of the user, else of a server that runs until the block ends.

    Raises OSError if the server does not start.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith("WHYSTALL_LLM_")}
    if {"WHYSTALL_LLM_BASE_URL", "WHYSTALL_LLM_MODEL"} <= own.keys():
        yield own
        return
    command = [sys.executable, str(_SERVER), "--policy", policy, "--port", "0"]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as server:
        assert server.stdout is not None
        try:
            named: dict[str, str] = {}
            while not named:
                if not (line := server.stdout.readline()):
                    raise OSError(f"{_SERVER.name} does not start")
                named = dict(_EXPORT.findall(line.decode()))
            yield named  # its few lines afterwards fit into the pipe
        finally:
            server.kill()


def concluded(records: list[dict[str, Any]]) -> str | None:
    """Return the cause of the last conclusion that a model gave in the transcript of a diagnosis; None without one."""
    causes = []
    for record in records:
        for call in record.get("reply", {}).get("calls", []) if record.get("type") == "reply" else ():
            if call["name"] == _CONCLUDE:
                with contextlib.suppress(ValueError, AttributeError):  # no JSON object
                    causes.append(json.loads(call["arguments"]).get("cause"))
    return causes[-1] if causes else None


def decided_by(diagnosis: dict[str, Any], model_cause: str | None) -> str:
    """Return who concluded: ``model`` (the answer is its cause), ``evidence`` (it concluded without a cause, or with
    one that the checks did not allow, and the cause of the evidence stands), or ``rules`` (the model was stopped).
    """
    reasoning = diagnosis["reasoning"]
    if reasoning is None or reasoning["stopped"] is not None:
        return "rules"
    if diagnosis["cause"] is None:
        return "evidence" if reasoning["struck"] else "model"
    return "model" if diagnosis["cause"] == (model_cause or "").strip().lower() else "evidence"


def answer(diagnosis: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer in the common form, from the diagnosis and the records of its transcript."""
    found = whystall_rules.answer(diagnosis)
    reasoning = diagnosis["reasoning"] or {}
    cause = concluded(records)
    found["detail"]["model"] = {
        "decided_by": decided_by(diagnosis, cause),
        "cause": cause,
        **{key: reasoning.get(key) for key in ("model", "stopped", "struck", "usage")},
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pid", required=True)
    parser.add_argument("--symptom", required=True)
    parser.add_argument("--duration", type=float, default=_WINDOW_S)
    parser.add_argument("--policy", default="engineer", help="of examples/model_server.py, if no model is set up")
    parser.add_argument("--raw", type=Path, help="also write the whole diagnosis to this file")
    options = parser.parse_args()
    command = [sys.executable, "-c", whystall_rules.MAIN, "diagnose", "--llm", "--json", "--pid", options.pid]
    command += ["--symptom", options.symptom, "--duration", str(options.duration)]
    with model_environment(options.policy) as named, homes.fresh() as own:
        environment = {**own, **named}
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
        stored = sorted(Path(own["WHYSTALL_HOME"]).glob("transcripts/*.jsonl"))
        records = [json.loads(line) for path in stored for line in path.read_text().splitlines()]
    if options.raw:
        options.raw.write_text(done.stdout)
    diagnosis = json.loads(done.stdout or "{}")
    if "verdict" not in diagnosis:
        sys.exit(f"{done.stdout[-500:]} {done.stderr.strip()[-500:]}")
    print(json.dumps(answer(diagnosis, records)))


if __name__ == "__main__":
    main()
