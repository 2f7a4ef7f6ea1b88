"""Children of the engine: they die, flood, hang, print garbage, and are never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whystall.tools.collect.bcc import child as child_module
from whystall.tools.collect.bcc.child import Child
from whystall.tools.contract.errors import ToolError


def start(program: str) -> Child:
    return Child([sys.executable, "-I", "-S", "-c", program])


def lines_of(child: Child, count: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < count and child.ended is None:
        lines += child.lines()
        time.sleep(0.01)
    return lines + child.lines()


def to_the_end(child: Child) -> list[str]:
    """What one says that ends by itself."""
    while child.ended is None:
        time.sleep(0.01)
    return child.interrupt(20)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_lines_come_whole_and_the_end_of_it_after_it_was_asked() -> None:
    child = start(
        "import time\nprint('one', flush=True)\nprint('tw', end='', flush=True)\n"
        "try: time.sleep(60)\nexcept KeyboardInterrupt: print('o\\nlast', end='', flush=True)"
    )
    assert lines_of(child, 1) == ["one"]
    assert child.interrupt(20) == ["two", "last"]
    assert child.cut is None


def test_one_that_loses_the_wish_to_stop_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an exception within a callback from C is lost."""
    monkeypatch.setattr(child_module, "_AGAIN_S", 0.2)
    child = start(
        "import signal, time\nleft = [3]\ndef lose(*a):\n  left[0] -= 1\n  if not left[0]: raise SystemExit\n"
        "signal.signal(signal.SIGINT, lose)\nprint('ready', flush=True)\nwhile True: time.sleep(60)"
    )
    lines_of(child, 1)
    child.interrupt(20)
    assert (child.cut, child.ended) == (None, 0)


def test_one_that_hangs_is_killed_and_says_so() -> None:
    child = start(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('x', flush=True)\ntime.sleep(60)"
    )
    assert lines_of(child, 1) == ["x"]
    assert child.interrupt(0.3) == []
    assert child.cut is not None
    assert "did not end" in child.cut
    assert child.ended == -signal.SIGKILL


def test_one_that_floods_is_ended_and_what_it_said_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "MOST_BYTES", 1 << 20)
    child = start("while True: print('y' * 1000)")
    said = 0
    while child.cut is None:
        said += sum(len(line) + 1 for line in child.lines())
    assert "said more than" in child.cut
    assert said < 3 << 20
    child.close()
    assert child.ended == -signal.SIGKILL


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    child = start("import sys, time\nsys.stdout.write('z' * 500000); sys.stdout.flush(); time.sleep(60)")
    lines: list[str] = []
    while not lines:
        lines += child.lines()
    assert max(map(len, lines)) <= 16 << 10
    child.close()


def test_garbage_is_text() -> None:
    child = start("import os\nos.write(1, bytes(range(256)) + b'\\n')")
    assert len(to_the_end(child)) >= 1


def test_why_it_died_is_its_error_not_its_warnings() -> None:
    child = start("import sys\nprint('a.c:1:1: error: no such field\\n5 warnings generated.', file=sys.stderr)")
    to_the_end(child)
    assert child.why() == "a.c:1:1: error: no such field"


def test_a_program_that_is_not_there_dies_at_once(tmp_path: Path) -> None:
    child = Child([str(tmp_path / "none")])
    to_the_end(child)
    assert child.ended == 1
    assert "No such file" in child.why()


def test_nothing_of_our_python_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/x")
    monkeypatch.setenv("SECRET_TOKEN", "t")
    child = start("import os\nprint(sorted(k for k in os.environ if k in ('PYTHONPATH', 'SECRET_TOKEN')))")
    assert to_the_end(child) == ["[]"]


def test_it_dies_with_us_however_we_die() -> None:
    """Whoever started it is killed without a chance to clean up."""
    program = (
        "import sys, time\nfrom whystall.tools.collect.bcc.child import Child\n"
        f"c = Child([{sys.executable!r}, '-I', '-S', '-c', 'import time; print(1, flush=True); time.sleep(60)'])\n"
        "while not c.lines(): time.sleep(0.01)\nprint(c._process.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
        parent.wait()
    until = time.monotonic() + 20
    while not gone(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert gone(pid)


def test_closing_twice_is_once() -> None:
    child = start("import time; time.sleep(60)")
    child.close()
    child.close()
    assert child.ended == -signal.SIGKILL
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(child._out.fileno() if not child._out.closed else -1, 1)


def test_one_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(ToolError, match="No such file"):
        Child(["/bin/true"])
