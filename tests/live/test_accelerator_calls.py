"""Calls of accelerators' libraries in the profile of the watch: libraries of our own with the names of real ones, in a
program that logs when it calls them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from scripted import Child, child

from whystall.agent_server.inputs.stacks import open_samples
from whystall.agent_server.profile_push.push import series_of
from whystall.bpf import uprobe_multi
from whystall.tools.collect.continuous import ContinuousRecorder, Limits
from whystall.tools.collect.slice_history import history_rows
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.host.critical_path.tool import Params, judge
from whystall.tools.profiles.common.off_cpu import stacks_of_waits
from whystall.tools.profiles.common.open_stacks import open_stacks
from whystall.tools.profiles.flame_graph import tool as flame_graph
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.readers.pprof import FORMAT as PPROF
from whystall.tools.stacks.recorded import stacks_of

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="uprobes need root"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
MS = 1_000_000
DRIVER = """
#include <time.h>
int cuLaunchKernel(void) { return 0; }
int cuStreamSynchronize_ptsz(double seconds) { struct timespec t = {0, seconds * 1e9}; return nanosleep(&t, 0) + 1; }
int cuCtxSynchronize(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (double end = t.tv_sec + t.tv_nsec * 1e-9 + seconds; t.tv_sec + t.tv_nsec * 1e-9 < end;)
        clock_gettime(CLOCK_MONOTONIC, &t);
    return 1;
}
int storm(int calls) { int (*volatile launch)(void) = cuLaunchKernel; while (calls--) launch(); return 0; }
"""
RUNTIME = """
int cuLaunchKernel(void);
int cudaLaunchKernel(void) { return cuLaunchKernel() + 1; }
"""
# A step: 20 launches by the driver, 10 by the runtime (which calls the driver), a wait off the CPU, one that spins.
PROGRAM = """
import ctypes
cuda, cudart = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL), ctypes.CDLL(sys.argv[2])
def forward():
    for _ in range(20): cuda.cuLaunchKernel()
def backward():
    for _ in range(10): cudart.cudaLaunchKernel()
def wait(): return cuda.cuStreamSynchronize_ptsz(ctypes.c_double(0.03))
def spin(): return cuda.cuCtxSynchronize(ctypes.c_double(0.02))
go()
while sys.argv[3:]: cuda.storm(100000)
for _ in range(60):
    forward(); backward(); timed("wait", wait); timed("spin", spin)
log(what="end")
sys.stdin.readline()
"""
WAIT, SPIN = "GPU: wait for stream (cuStreamSynchronize)", "GPU: wait for device (cuCtxSynchronize)"
LAUNCH, BY_RUNTIME = "GPU: launch kernel (cuLaunchKernel)", "GPU: launch kernel (cudaLaunchKernel)"
STEPS = 60


@pytest.fixture
def libraries(tmp_path: Path) -> tuple[str, str]:
    driver, runtime = tmp_path / "libcuda.so.1", tmp_path / "libcudart.so.12"
    for text, made, more in ((DRIVER, driver, ()), (RUNTIME, runtime, (str(driver),))):
        source = tmp_path / f"{made.stem}.c"
        source.write_text(text)
        flags = ("-O1", "-shared", "-fPIC", "-fno-optimize-sibling-calls")
        subprocess.run(["cc", *flags, "-o", made, source, *more], check=True)
    return str(driver), str(runtime)


@contextmanager
def recorder_of(subject: Child, directory: Path, **limits: Any) -> Iterator[ContinuousRecorder]:
    target = Target(everything=False, pid=subject.pid, pids=[subject.pid])
    chosen = Limits(slice_ns=1_000 * MS, cpu_share=0.5, job_share=1.0, **limits)
    recorder = ContinuousRecorder(target, chosen, directory)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close()


def wait_for_probes(recorder: ContinuousRecorder) -> None:
    """Poll until the libraries have been found."""
    for _ in range(50):
        recorder.poll()
        calls = recorder.cost().calls
        assert calls is not None
        if calls.functions:
            return
        time.sleep(0.1)
    pytest.fail("the libraries were not found")


def by_path(profile: StackProfile) -> dict[tuple[str, ...], float]:
    """The weight of each stack by its innermost frames from the program's function on."""
    frames = dict(profile.frames.select("frame", "name").iter_rows())
    parents = {number: (parent, frame) for number, parent, frame in profile.stacks.iter_rows()}
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for at, weight in profile.samples.select("stack", "weight").iter_rows():
        names: list[str] = []
        while at >= 0:
            at, frame = parents[at]
            names.append(frames[frame])
        sums[tuple(reversed(names))] += weight
    return sums


def beneath(profile: StackProfile, function: str, call: str) -> float:
    """The weight of the stacks in which `call` is directly beneath the Python function."""
    return sum(weight for path, weight in by_path(profile).items() if (function, call) in pairwise(path))


def test_launches_and_waits_are_beneath_their_lines(libraries: tuple[str, str], tmp_path: Path) -> None:
    directory = tmp_path / "watch"
    directory.mkdir()
    with child(PROGRAM, *libraries) as subject, recorder_of(subject, directory, calls=True, calls_share=10) as recorder:
        wait_for_probes(recorder)
        begun = time.monotonic_ns()
        subject.go()
        for _ in range(60):
            time.sleep(0.1)
            recorder.poll()
        lines = subject.until("end")
        recording = recorder.recording(begun - 500 * MS, time.monotonic_ns(), frozenset({subject.pid}))
        state = recorder.cost().calls
    logged = {what: [line for line in lines if line["what"] == what] for what in ("wait", "spin")}
    took = {what: sum(line["end"] - line["start"] for line in rows) for what, rows in logged.items()}
    recording.save(tmp_path / "recording")
    stored = Recording.open(tmp_path / "recording", COLLECTORS)
    number = open_stacks(tmp_path / "recording", event="accelerator-calls")
    options = flame_graph.Params(event="accelerator-time")
    spent = stacks_of(open_samples(flame_graph.TOOL, options, tmp_path / "recording"))
    # rare calls are all attributed; of frequent ones the last few may not be counted yet
    assert beneath(number, "wait", WAIT) == beneath(number, "spin", SPIN) == STEPS
    assert beneath(spent, "wait", WAIT) == pytest.approx(took["wait"], rel=0.05)
    assert beneath(spent, "spin", SPIN) == pytest.approx(took["spin"], rel=0.05)
    assert beneath(number, "forward", LAUNCH) == pytest.approx(20 * STEPS, rel=0.1)
    assert beneath(number, "backward", BY_RUNTIME) == pytest.approx(10 * STEPS, rel=0.1)
    assert beneath(number, "backward", LAUNCH) == 0, "the runtime's own call of the driver is no second launch"
    # the same frames in what is sampled and waited for
    assert beneath(stacks_of_waits(stored), "wait", WAIT) == pytest.approx(took["wait"], rel=0.1)
    samples = open_stacks(tmp_path / "recording")
    spinning = sum(weight for path, weight in by_path(samples).items() if "spin" in path)
    assert spinning > 0
    assert beneath(samples, "spin", SPIN) > 0.8 * spinning
    rows = [row for row in history_rows(directory, 0, time.time_ns()) if row.place.line.startswith("wait (")]
    assert {row.place.call for row in rows} == {WAIT}
    assert sum(row.waited_ns for row in rows) == pytest.approx(took["wait"], rel=0.1)
    path = judge(stored, Params(pid=subject.pid)).data.rows
    assert {row.what for row in path if row.line.startswith(("wait (", "spin ("))} == {"device"}
    (sent,) = series_of(stored, {subject.pid: "job"}, {})
    pushed = {one.labels["__name__"]: one.pprof for one in sent}
    assert set(pushed) == {"process_cpu", "off_cpu", "accelerator_calls", "accelerator_time"}
    (tmp_path / "calls.pb.gz").write_bytes(pushed["accelerator_calls"])
    assert beneath(PPROF.read(tmp_path / "calls.pb.gz"), "wait", WAIT) == STEPS
    assert state is not None
    assert (state.detail, state.processes, state.functions) == ("all", 1, 4)


def test_without_the_option_nothing_is_probed(libraries: tuple[str, str], tmp_path: Path) -> None:
    with child(PROGRAM, *libraries) as subject, recorder_of(subject, tmp_path) as recorder:
        begun = time.monotonic_ns()
        subject.go()
        for _ in range(10):
            time.sleep(0.1)
            recorder.poll()
        recording = recorder.recording(begun, time.monotonic_ns())
        assert recorder.cost().calls is None
    assert not recording.has("accelerator")
    frames = recording.table("samples.frames").filter(pl.col("name").str.starts_with("GPU:"))
    assert frames.is_empty()


@pytest.mark.parametrize("multi", [True, False])
def test_a_storm_of_launches_is_no_longer_probed_and_waits_still_are(
    multi: bool, libraries: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not multi:  # as before Linux 6.6
        monkeypatch.setattr(uprobe_multi, "supported", lambda: False)
    with child(PROGRAM, *libraries, "storm") as subject, recorder_of(subject, tmp_path, calls=True) as recorder:
        wait_for_probes(recorder)
        subject.go()
        begun = time.monotonic_ns()
        state = None
        while time.monotonic_ns() < begun + 60_000 * MS and (state is None or state.detail == "all"):
            time.sleep(0.2)
            recorder.poll()
            state = recorder.cost().calls
        recording = recorder.recording(begun, time.monotonic_ns(), frozenset({subject.pid}))
    assert state is not None
    assert state.detail == "waits"
    assert state.functions == 2
    assert state.calls_per_s > 1_000
    assert "less at" in state.reasons[-1]
    recording.save(tmp_path / "recording")
    number = open_stacks(tmp_path / "recording", event="accelerator-calls")
    assert beneath(number, "<module>", LAUNCH) > 1_000
