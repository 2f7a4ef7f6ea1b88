"""The status of a watcher as `WatchService` writes it, for tests of what reads it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

HOSTILE = 'x"\n\\{evil="1"} \udcff\u202e'
"""A name of a job that would end a label, a line or the encoding."""


def status(name: str = "llama", jobs: int = 1, **more: Any) -> dict[str, Any]:
    """Jobs `name`0, `name`1 ... with a stalled process each, seen now."""
    process = {"pid": 7, "rank": 3, "places": 2, "step_ms": 120.5, "stalled": True, "stalled_s": 400.0}
    return {
        "pid": 1,
        "running": True,
        "since": time.time() - 100,
        "written": time.time(),
        "jobs": [{"id": f"run:{n}", "name": f"{name}{n}", "processes": [process]} for n in range(jobs)],
        "beyond": 0,
        "cost": {"cpu_share": 0.004, "lost": 2, "disk_bytes": 1 << 20},
        "cpu_s": 1.5,
        "memory_mib": 60.0,
        "pending": 0,
        "counts": {"tickets": 2, "gap": 3, "why_explained": 2},
        "stalls": [[name, "3", "file_lock_held", 42.5], [name, "", "unknown", 1.0]],
        "profiles": {"spans_sent": 4, "spans_lost": 1, "profiles": 4, "cpu_s": 5.0, "error": ""},
        **more,
    }


def write_status(home: Path, found: dict[str, Any]) -> None:
    """Store `found` as the status of the watcher of the state directory `home`."""
    (home / "watch").mkdir(parents=True, exist_ok=True)
    (home / "watch/status.json").write_text(json.dumps(found))
