"""An alert, diagnosed live and told to a tracker and a chat, with the server killed while it looks: the demo, whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "alert_demo.py"
JUDGED = (
    "verdict",
    "file",
    "latency",
    "period",
    "ticket",
    "tickets",
    "issues",
    "question in Chinese",
    "issue",
)


def test_an_alert_leads_to_one_issue_with_the_diagnosis_although_the_server_is_killed() -> None:
    done = subprocess.run([sys.executable, str(DEMO), "--duration", "8"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.rpartition("== compared with the program's log")[2]
    for name in JUDGED:
        assert re.search(rf"^{name}  .*right$", table, re.MULTILINE), table
    assert "SIGKILL" in done.stdout
    # answered in the language of the question; on a busy machine the disk is less sure
    assert "已确认" in done.stdout or "很可能" in done.stdout
