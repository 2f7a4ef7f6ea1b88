"""``whystall hybrid-run``: streams, status and signals are the program's own; the summary says where its I/O went."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_command import COMMAND

from whystall.agent_server.presentation.results import hybrid_text
from whystall.prompts.render import LANGS, words
from whystall.tools.hybrid_io.layout import REASONS
from whystall.tools.hybrid_io.report import Programs
from whystall.tools.hybrid_io.run import Options, environment
from whystall.tools.hybrid_io.run import Run as Ran

pytestmark = pytest.mark.thorough

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MIB = 1 << 20
WRITES = "import sys; open(sys.argv[1], 'wb', 0).write(bytes(8 << 20)); print('said'); sys.stderr.write('told\\n')"


def test_streams_and_status_are_the_programs(whystall: Run, tmp_path: Path) -> None:
    program = [sys.executable, "-c", f"{WRITES}; sys.exit(7)", str(tmp_path / "file")]
    done = whystall("hybrid-run", "--quiet", "--", *program)
    assert (done.returncode, done.stdout, done.stderr) == (7, "said\n", "told\n")


def test_the_summary_is_on_standard_error(whystall: Run, tmp_path: Path) -> None:
    done = whystall("hybrid-run", sys.executable, "-c", WRITES, str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (0, "said\n")
    assert "written 8 MiB in" in done.stderr
    assert "exit status 0" in done.stderr


def test_the_summary_as_an_object(whystall: Run, tmp_path: Path) -> None:
    out = tmp_path / "summary.json"
    words = ("hybrid-run", "--json", "--output", str(out), "--write-direct", "1m", "--keep-file", "1")
    done = whystall(*words, "--", "sh", "-c", f"dd if=/dev/zero of={tmp_path}/file bs=2M count=4 2>&1; true | cat")
    assert done.returncode == 0
    assert done.stderr == ""
    told: dict[str, Any] = json.loads(out.read_text())
    assert (told["status"], told["signal"], told["kind"]) == (0, 0, "")
    assert [program["program"] for program in told["programs"]] == ["dd"]
    written = told["programs"][0]["counts"]["write"]
    assert sum(count["bytes"] for count in written.values()) >= 8 * MIB
    assert sum(count["requests"] for count in written.values()) >= 4
    assert told["total"]["programs"] >= 3
    assert told["total"]["started"] == 2  # dd and cat; `true` is the shell's own
    moved = told["total"]["direct_bytes"]["write"] + told["total"]["buffered_bytes"]["write"]
    assert moved >= 8 * MIB


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("no-such-program",), 127, "error: not_found: there is no program no-such-program"),
        (("/etc/passwd",), 126, "error: bad_argument: /etc/passwd cannot be run"),
        (("--read-direct", "2x", "true"), 2, "error: bad_argument: --read-direct: '2x' is no size"),
        (("--limit", "0", "true"), 2, "error: bad_argument: --limit: '0' is no size"),
        (("--limit-share", "1.5", "true"), 2, "error: bad_argument: --limit-share: 1.5 is no share"),
        (("--output", "/no/such/file", "true"), 2, "error: bad_argument: --output: there is no directory /no/such"),
        ((), 2, "error: bad_argument: Missing argument"),
    ],
    ids=["missing", "no-program", "size", "zero", "share", "output", "nothing"],
)
def test_what_cannot_be_run(whystall: Run, words: tuple[str, ...], status: int, message: str) -> None:
    done = whystall("hybrid-run", *words)
    assert done.returncode == status
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_a_program_that_a_signal_ended(whystall: Run) -> None:
    done = whystall("hybrid-run", "--", "sh", "-c", "kill -KILL $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert "ended by signal 9" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on(env: dict[str, str], signum: signal.Signals) -> None:
    program = (
        "import signal, sys\n"
        f"signal.signal({int(signum)}, lambda *_: sys.exit(33))\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    command = [COMMAND, "hybrid-run", "--quiet", "--", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signum)
        assert child.wait(60) == 33


def test_nothing_is_left_behind(whystall: Run) -> None:
    def left() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if name.startswith("whystall-hybrid-")}

    before = left()
    assert whystall("hybrid-run", "--quiet", "true").returncode == 0
    deadline = time.monotonic() + 30  # other tests run programs, too
    new = left() - before
    while new and time.monotonic() < deadline:
        time.sleep(0.05)
        new &= left()
    assert not new


def test_the_environment_of_a_program(tmp_path: Path) -> None:
    options = Options(mode="direct", read_direct=4096, limit_share=0.5, follow=True)
    made = environment(tmp_path / "shim.so", options, tmp_path / "counters", {"LD_PRELOAD": "a.so:b.so", "A": "b"})
    assert made == {
        "A": "b",
        "ASAN_OPTIONS": "verify_asan_link_order=0",
        "LD_PRELOAD": f"{tmp_path}/shim.so a.so b.so",
        "WHYSTALL_HYBRID_COUNTERS": f"{tmp_path}/counters",
        "WHYSTALL_HYBRID_POLICY": "mode=2,read_direct=4096,limit_ppm=500000,follow=1",
    }


@pytest.mark.parametrize("lang", LANGS)
def test_every_reason_has_words(lang: str) -> None:
    said = words(lang)
    assert said["hybrid_reasons"].keys() == set(REASONS)
    assert said["hybrid_kinds"].keys() == {"static", "setuid", "other_libc", "other_machine"}
    program = Programs(pid=17, program="train{}\n", running=True)
    for reason in REASONS:
        program.counts["write"][reason].bytes = program.counts["write"][reason].requests = 3
    program.dropped_bytes = program.fallbacks = program.started = program.uncovered = program.copied_bytes = 5
    program.passed_bytes = {"read": 1 << 20, "write": 2}
    done = Ran(["train{}"], 143, 15, 2.5, "static", [program], Programs(programs=0), program)
    text = hybrid_text(done, lang)  # type: ignore[arg-type]
    assert all(str(said["hybrid_reasons"][reason]) in text for reason in REASONS)
    assert "17" in text
    assert "2.5 s" in text
    assert str(said["hybrid_kinds"]["static"]) in text
    assert len(text.splitlines()) > len(REASONS) + 5
