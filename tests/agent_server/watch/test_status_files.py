"""The files of the watcher: a full disk stops nothing, and none of them grows without bound."""

from __future__ import annotations

import json
from pathlib import Path

from whystall.agent_server.watch.status import LOG, StatusFiles, read_status


def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path / "missing")
    assert files.write({"a": 1})
    assert files.log({"b": 2})
    assert files.write_metrics("x 1\n")
    assert read_status(tmp_path / "missing") is None


def test_the_log_of_stalls_is_bounded(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path)
    for number in range(700):
        files.log({"n": number, "text": "x" * 20_000})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 9 << 20
    assert json.loads((tmp_path / LOG).read_text().splitlines()[-1])["n"] == 699
