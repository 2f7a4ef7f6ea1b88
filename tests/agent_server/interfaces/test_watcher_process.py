"""The watcher beside the server: it is started again when it ends, and ends with the server."""

from __future__ import annotations

import time
from pathlib import Path

from whystall.agent_server.interfaces.cli.watcher_process import WatcherProcess


def test_a_watcher_that_is_killed_is_started_again_and_ends_with_the_server(tmp_path: Path) -> None:
    notes: list[str] = []
    script = f"echo $$ >> {tmp_path}/pids; [ $(wc -l < {tmp_path}/pids) -gt 2 ] || kill -9 $$; exec sleep 600"
    with WatcherProcess(notes.append, ("/bin/sh", "-c", script), first_s=0.01):
        while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 3:
            time.sleep(0.02)
        last = int((tmp_path / "pids").read_text().split()[-1])
        assert Path(f"/proc/{last}").exists()
    assert len(notes) == 2
    assert all("the watcher was ended by signal 9; it is started again in" in note for note in notes)
    assert not Path(f"/proc/{last}").exists()


def test_a_watcher_that_cannot_be_started_ends_no_server(tmp_path: Path) -> None:
    notes: list[str] = []
    with WatcherProcess(notes.append, (str(tmp_path / "none"),), first_s=600):
        while not notes:
            time.sleep(0.02)
    assert "cannot be started (No such file or directory)" in notes[0]
