"""Record the fixtures of this directory anew, as root on a quiet machine:
``python tests/recorded/ranks/make.py [VARIANT ...]``.

Each is a real job of four ranks, see ``tests/live/workloads/ranks_job.py``; `test_recorded_jobs.py` says what must be
found in it. Kept of a trace: steps, ranges, communication and the outermost operators with their times, as they were;
gone are nested operators, arguments nobody reads, the last digits of times and what names the machine.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "live" / "workloads")]

from ranks_table import VARIANTS  # noqa: E402  (found through the path above)
from running import Running  # noqa: E402

RANKS, SEED = 4, 1
Event = dict[str, Any]

_HEAD = ("schemaVersion", "deviceProperties", "distributedInfo", "displayTimeUnit", "baseTimeNanoseconds")
_CATEGORIES = ("cpu_op", "user_annotation")
_COMMUNICATION = re.compile(r"^(?:c10d::|gloo:)")
_ARGUMENTS = ("Concrete Inputs", "Input type", "Input Dims")


def main() -> None:
    """Record the named variants, or all."""
    names = sys.argv[1:] or list(VARIANTS)
    with tempfile.TemporaryDirectory() as name:
        with Running("ranks_job.py", "--out", name, "--ranks", RANKS, "--seed", SEED, *names) as program:
            program.wait(600)
        for variant in names:
            out = HERE / variant
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            shutil.copy(Path(name, variant, "truth.json"), out)
            for trace in sorted(Path(name, variant, "traces").iterdir()):
                write(out / trace.name, trimmed(json.loads(gzip.decompress(trace.read_bytes()))))


def trimmed(trace: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a trace."""
    events = [event for event in trace["traceEvents"] if event["ph"] == "X" and event.get("cat") in _CATEGORIES]
    kept = {key: trace[key] for key in _HEAD}
    names = [event for event in trace["traceEvents"] if event["ph"] == "M" and event["name"] == "thread_name"]
    kept["host_name"] = "host"
    kept["traceEvents"] = names + [_slim(event) for event in _outermost(events)]
    return kept


def _outermost(events: list[Event]) -> Iterable[Event]:
    until: dict[int, float] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        operator = event["cat"] == "cpu_op"
        outer = not operator or end > until.get(event["tid"], 0.0)
        if operator and outer:
            until[event["tid"]] = end
        if outer or _COMMUNICATION.match(event["name"]):
            yield event


def _slim(event: Event) -> Event:
    slim = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid")}
    slim |= {key: round(event[key], 1) for key in ("ts", "dur")}  # microseconds
    if _COMMUNICATION.match(event["name"]):
        slim["args"] = {key: event["args"][key] for key in _ARGUMENTS if key in event["args"]}
    return slim


def write(path: Path, trace: dict[str, Any]) -> None:
    """Write it compressed, the same bytes for the same trace."""
    text = json.dumps(trace, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
