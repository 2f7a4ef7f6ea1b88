"""The metrics of the watcher: what Prometheus reads, with bounded series; and its files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from whystall.agent_server.watch.metrics import StallSeconds, exposition
from whystall.agent_server.watch.status import LOG, StatusFiles, read_status

_LABEL = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"whystall_watch_[a-z_]+(?:\{{{_LABEL}(?:,{_LABEL})*\}})? [0-9.e+-]+")


def status(name: str = "llama", jobs: int = 1) -> dict[str, Any]:
    process = {"pid": 7, "rank": None, "places": 2, "step_ms": 120.5, "stalled": True}
    return {
        "jobs": [{"id": f"run:{n}", "name": f"{name}{n}", "processes": [process]} for n in range(jobs)],
        "cost": {"cpu_share": 0.004, "lost": 0},
        "counts": {"tickets": 2},
        "memory_mib": 60.0,
    }


def test_every_line_is_a_sample_or_a_comment_whatever_the_job_is_called() -> None:
    stalls = StallSeconds()
    stalls.add('a"b\\c\nd', "file_lock_held", 2.25)
    text = exposition(status('x"\n\\'), stalls)
    for line in text.splitlines():
        assert line.startswith("# ") or _SAMPLE.fullmatch(line), line
    assert "whystall_watch_tickets_total 2" in text
    assert text.endswith("\n")
    assert 'cause="file_lock_held"} 2.25' in text
    assert 'whystall_watch_step_seconds{job="x' in text


def test_the_number_of_series_is_bounded() -> None:
    stalls = StallSeconds()
    for number in range(5000):
        stalls.add(f"job{number}", f"cause{number}", 1.0)
    assert len({job for job, _ in stalls.seconds}) <= 101
    assert len({cause for _, cause in stalls.seconds}) <= 51
    assert sum(stalls.seconds.values()) == 5000
    assert len(exposition(status(jobs=900), stalls).splitlines()) < 6000


def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path / "missing")
    files.write({"a": 1})
    files.log({"b": 2})
    files.write_metrics("x 1\n")
    assert files.failed
    assert read_status(tmp_path / "missing") is None


def test_the_log_of_stalls_is_bounded(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path)
    for number in range(700):
        files.log({"n": number, "text": "x" * 20_000})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 9 << 20
    assert json.loads((tmp_path / LOG).read_text().splitlines()[-1])["n"] == 699
