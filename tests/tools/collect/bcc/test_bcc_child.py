"""Child processes that die, flood, hang or print garbage; none is left behind."""

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
    """Return the lines of a child that ends by itself."""
    while child.ended is None:
        time.sleep(0.01)
    return child.finish(20)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])  # SIG_IGN: started by `&` of a shell script
def test_lines_are_whole_and_the_rest_comes_after_the_interrupt(
    before: signal.Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "_AGAIN_S", 3.0)  # the first may be lost; a second must not end the last print
    ours = signal.signal(signal.SIGINT, before)
    try:
        child = start(
            "import signal, time\ntry:\n  print('one\\ntw', end='', flush=True)\n  while True: time.sleep(0.1)\n"
            "except KeyboardInterrupt:\n  signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "  print('o\\nlast', end='', flush=True)"
        )
    finally:
        signal.signal(signal.SIGINT, ours)
    assert lines_of(child, 1) == ["one"]
    assert child.finish(20) == ["two", "last"]
    assert child.cut is None


def test_a_lost_interrupt_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception within a callback from C is lost."""
    monkeypatch.setattr(child_module, "_AGAIN_S", 0.2)
    child = start(
        "import signal, time\nleft = [3]\ndef lose(*a):\n  left[0] -= 1\n  if not left[0]: raise SystemExit\n"
        "signal.signal(signal.SIGINT, lose)\nprint('ready', flush=True)\nwhile True: time.sleep(60)"
    )
    lines_of(child, 1)
    child.finish(20)
    assert (child.cut, child.ended) == (None, 0)


def test_a_child_that_hangs_is_killed_and_cut_is_set() -> None:
    child = start(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('x', flush=True)\ntime.sleep(60)"
    )
    assert lines_of(child, 1) == ["x"]
    assert child.finish(0.3) == []
    assert child.cut is not None
    assert "did not end" in child.cut
    assert child.ended == -signal.SIGKILL


def test_a_child_that_floods_is_killed_and_its_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "MOST_BYTES", 1 << 20)
    child = start("while True: print('y' * 1000)")
    size = 0
    while child.cut is None:
        size += sum(len(line) + 1 for line in child.lines())
    assert "wrote more than" in child.cut
    assert size < 3 << 20
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


def test_the_error_is_no_warning() -> None:
    child = start("import sys\nprint('a.c:1:1: error: no such field\\n5 warnings generated.', file=sys.stderr)")
    to_the_end(child)
    assert child.error() == "a.c:1:1: error: no such field"


def test_a_missing_program_ends_at_once(tmp_path: Path) -> None:
    child = Child([str(tmp_path / "none")])
    to_the_end(child)
    assert child.ended == 1
    assert "No such file" in child.error()


def test_our_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/x")
    monkeypatch.setenv("SECRET_TOKEN", "t")
    child = start("import os\nprint(sorted(k for k in os.environ if k in ('PYTHONPATH', 'SECRET_TOKEN')))")
    assert to_the_end(child) == ["[]"]


def test_it_dies_with_its_parent() -> None:
    """Also if the parent is killed, and cannot clean up."""
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


def test_close_is_idempotent() -> None:
    child = start("import time; time.sleep(60)")
    child.close()
    child.close()
    assert child.ended == -signal.SIGKILL
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(child._out.fileno() if not child._out.closed else -1, 1)


def test_a_child_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(ToolError, match="No such file"):
        Child(["/bin/true"])
