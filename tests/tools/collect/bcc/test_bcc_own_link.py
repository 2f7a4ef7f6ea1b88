"""The pipes to the child of our own BCC programs: whatever it does, an answer or one error, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from whystall.tools.collect.bcc import own_link
from whystall.tools.collect.bcc.own_link import OwnLink
from whystall.tools.contract.errors import ErrorCode, ToolError

SOON = 20.0


def link(tmp_path: Path, program: str, plan: dict[str, Any] | None = None) -> OwnLink:
    """A child that runs `program`; it has `plan`, `send` and `receive`, and lives until its input ends."""
    text = (
        "import json, os, sys, time\n"
        "def send(**what): print(json.dumps(what), flush=True)\n"
        "def receive(): return json.loads(sys.stdin.readline())\n"
        f"plan = receive()\n{program}\nsys.stdin.read()\n"
    )
    path = tmp_path / "child.py"
    path.write_text(text)
    return OwnLink([sys.executable, "-I", str(path)], plan or {})


def wait(one: OwnLink, what: str, seconds: float = SOON) -> None:
    one.wait(what, time.monotonic() + seconds)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_whole_conversation(tmp_path: Path) -> None:
    child = link(
        tmp_path,
        'send(hooks=[plan["point"]])\nassert receive() == {"do": "start"}\nsend(started=5)\n'
        'send(records=["AQI="])\nassert receive() == {"do": "stop"}\nsend(threads=[[8, 3, "running", 9]])\n'
        'send(map="states", rows=[["AA==", "AQ=="]])\nsend(map="states", rows=[])\nsend(end=9, lost=4)',
        {"point": "sched_switch"},
    )
    try:
        wait(child, "hooks")
        assert child.hooks == ["sched_switch"]
        child.send({"do": "start"})
        wait(child, "started")
        child.send({"do": "stop"})
        wait(child, "end")
        assert (child.started, child.end, child.lost, child.dropped) == (5, 9, 4, 0)
        assert (child.records, child.threads) == ([b"\1\2"], {8: (3, "running", 9)})
        assert child.rows == {"states": [(b"\0", b"\1")]}
    finally:
        child.close()


def test_its_error_is_reported(tmp_path: Path) -> None:
    child = link(tmp_path, 'send(error="Failed to compile", log="main.c:3:1: error: unknown type\\nx")')
    with pytest.raises(ToolError, match=r"Failed to compile \(main\.c:3:1: error: unknown type x\)") as caught:
        wait(child, "hooks")
    assert caught.value.code is ErrorCode.PROBE_FAILED
    assert "\n" not in caught.value.message
    child.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        "print('Traceback')",
        "print('[]')",
        "print('{}')",
        "send(records=[5])",
        "send(records=['***'])",
        "send(map='x')",
        "send(threads=[[1]])",
        "send(started='soon')",
        "print('{\"started\": 1e999}')",
        "send(threads=[[1, 2, 'running', []]])",
        "print('[' * 100000)",
        "print('\\x1b[2J')",
    ],
)
def test_nonsense_is_one_error(tmp_path: Path, nonsense: str) -> None:
    child = link(tmp_path, f"{nonsense}\nsys.stdout.flush()")
    try:
        with pytest.raises(ToolError, match="invalid output") as caught:
            wait(child, "hooks")
        assert caught.value.message.isprintable()
    finally:
        child.close()


def test_an_early_end_is_reported_with_its_status(tmp_path: Path) -> None:
    child = link(tmp_path, "os._exit(7)")
    with pytest.raises(ToolError, match="ended with status 7"):
        wait(child, "hooks")
    child.close()


def test_endless_output_does_not_block(tmp_path: Path) -> None:
    child = link(tmp_path, "while True: sys.stdout.write('{\"records\": []}\\n' * 10000)")
    try:
        for _ in range(3):
            assert child.poll()
        with pytest.raises(ToolError, match="too long"):
            wait(child, "hooks", 0.3)
    finally:
        child.close()
    assert gone(child.pid)


def test_wait_ends_at_its_deadline(tmp_path: Path) -> None:
    child = link(tmp_path, "time.sleep(600)")
    with pytest.raises(ToolError, match="too long"):
        wait(child, "hooks", 0.2)
    child.close()


def test_a_child_that_does_not_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = link(tmp_path, "time.sleep(600)")
    monkeypatch.setattr(own_link, "_SEND_S", 0.2)
    with pytest.raises(ToolError, match="does not read"):
        child.send({"do": "x" * (1 << 20)})
    child.close()


def test_records_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_link, "MAX_RECORD_BYTES", 5)
    child = link(tmp_path, 'send(records=["AQI="] * 4)\nsend(end=1, lost=0)')
    wait(child, "end")
    assert (child.records, child.dropped) == ([b"\1\2"] * 2, 2)
    child.close()


def test_maps_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_link, "_MAX_ROWS", 100)
    child = link(tmp_path, 'for _ in range(60): send(map="m", rows=[["AA==", "AA=="]] * 2)')
    with pytest.raises(ToolError, match="too many"):
        wait(child, "end")
    child.close()


def test_nothing_runs_after_close(tmp_path: Path) -> None:
    child = link(tmp_path, "send(hooks=[str(os.getpid())])\ntime.sleep(600)")
    wait(child, "hooks")
    pid = int((child.hooks or ["0"])[0])
    child.close()
    child.close()
    assert gone(pid)
    with pytest.raises(ToolError):
        child.send({"do": "stop"})


def test_a_killed_parent_leaves_no_child(tmp_path: Path) -> None:
    """Its input ends, or the kernel kills it."""
    text = (
        "import sys, time; from pathlib import Path; sys.path[:0] = {path!r}\n"
        "from whystall.tools.collect.bcc.own_link import OwnLink\n"
        "one = OwnLink([sys.executable, '-I', '-c', {child!r}], {{}})\n"
        "one.wait('hooks', time.monotonic() + 20); print(one.hooks[0], flush=True); time.sleep(600)\n"
    )
    child = "import json, os, sys, time; print(json.dumps({'hooks': [str(os.getpid())]}), flush=True); time.sleep(600)"
    parent = subprocess.Popen(
        [sys.executable, "-c", text.format(path=sys.path, child=child)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        os.kill(parent.pid, signal.SIGKILL)
    until = time.monotonic() + SOON
    while not gone(pid):
        assert time.monotonic() < until
        time.sleep(0.02)
