"""Waits for an accelerator, in a library of our own that spins or blocks behind the names of real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from whystall.tools.collect.engines import ENGINES
from whystall.tools.host.critical_path.tool import TOOL, Data
from whystall.tools.recording.target import Target
from whystall.tools.recording.window import observe

COMPILER = shutil.which("clang") or shutil.which("cc")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="watching the kernel needs root"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C compiler"),
]

LIBRARY = """\
#include <sched.h>
#include <time.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

__attribute__((noinline)) static int spin(double seconds, int yields)
{
    for (double end = now() + seconds; now() < end;)
        for (volatile int i = 0; i < 20000; i++)
            if (yields && !(i % 1000)) sched_yield();
    return 0;
}

__attribute__((noinline)) static int block(double seconds)
{
    struct timespec t = {0, seconds * 1e9};
    return nanosleep(&t, 0) + (int)now() * 0;
}

int cudaStreamSynchronize(double seconds) { return spin(seconds, 0) + 1; }
int aclrtSynchronizeStream(double seconds) { return spin(seconds, 1) + 1; }
int hipStreamSynchronize(double seconds) { return block(seconds) + 1; }
int cudaMemcpy(double seconds) { return block(seconds) + 1; }
"""
PROGRAM = """\
import ctypes, sys

library = ctypes.CDLL(sys.argv[1])
seconds = ctypes.c_double(0.08)

def step():
    library.cudaStreamSynchronize(seconds)  # cuda
    library.aclrtSynchronizeStream(seconds)  # acl
    library.hipStreamSynchronize(seconds)  # hip
    library.cudaMemcpy(seconds)  # copy

print("ready", flush=True)
while True:
    step()
"""


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))


def test_spinning_and_blocked_waits_for_a_device_are_waits_with_their_line(tmp_path: Path) -> None:
    assert COMPILER is not None
    source, library, script = tmp_path / "device.c", tmp_path / "libdevicestub.so", tmp_path / "train.py"
    source.write_text(LIBRARY)
    script.write_text(PROGRAM)
    flags = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *flags, str(source), "-o", str(library)], check=True)
    argv = [sys.executable, str(script), str(library)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        target = Target(everything=False, pid=process.pid, comm="python", pids=[process.pid])
        try:
            recording = anyio.run(lambda: observe(TOOL.needs(TOOL.params()), target, 2.0, ENGINES))
        finally:
            process.kill()
    data = TOOL.judge(recording, TOOL.params(top=50)).data
    assert isinstance(data, Data)
    share: dict[str, float] = {}
    for row in data.rows:
        if row.what == "device":
            share[row.line] = share.get(row.line, 0) + row.window_pct
    at = {
        name: 1 + PROGRAM.splitlines().index(text) for text in PROGRAM.splitlines() if (name := text.partition("# ")[2])
    }
    lines = {name: f"step (train.py:{number})" for name, number in at.items()}
    # a quarter of the time each, but spinning gets little of it where others want the CPU, above all where it yields
    assert {name for name, line in lines.items() if share.get(line, 0) > 1} == set(lines), data.rows
    # the wait in which the window began is known by its end alone, without a line
    other = [row for row in data.rows if row.what not in ("device", "cpu") and row.window_pct > 3]
    assert not [row for row in other if row.line or row.count > 1], other
