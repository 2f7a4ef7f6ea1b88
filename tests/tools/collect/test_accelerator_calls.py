"""Calls of accelerators' libraries: which functions are probed, at what cost, and what becomes of what was counted."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from slice_records import MS, PID, TID, code, sample, stack, total, wait

from whystall.bpf import layout as lay
from whystall.bpf.continuous import Cut
from whystall.bpf.functions import Probe
from whystall.bpf.python_code import call_record, decode, frames
from whystall.tools.collect import accelerator_calls
from whystall.tools.collect.accelerator_calls import Libraries, entry_points, frame_records
from whystall.tools.collect.accelerator_watch import AcceleratorWatch
from whystall.tools.collect.continuous_cut import recording_of
from whystall.tools.collect.slice_log import Entry
from whystall.tools.collect.slice_parts import CALLS, RECORDS, SLICE, calls_entry, slice_end
from whystall.tools.collect.slice_scan import Scan, Waits, framed
from whystall.tools.host.common.places import place_of_texts
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.names import named
from whystall.tools.stacks.recorded import NUMBER, TIME, stacks_of

S = 1_000_000_000
LIBRARY = """
int cuLaunchKernel(void) { return 0; }
int cuMemcpyHtoD_v2(void) { return 1; }
int cuMemcpyHtoD_v2_ptds(void) { return 2; }
int cuStreamSynchronize_ptsz(void) { return 3; }
int cuMemcpy3DAsync(void) { return 4; }
"""
BY_NAME = {one.name: one for one in entry_points()}
WAIT, LAUNCH = BY_NAME["cuStreamSynchronize"], BY_NAME["cuLaunchKernel"]


def word(number: int) -> int:
    return number << lay.FRAME_CODE_SHIFT | lay.FRAME_INSTRUCTION


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("stub") / "stub.c"
    source.write_text(LIBRARY)
    made = source.with_name("libcuda.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
    ctypes.CDLL(str(made))  # this process uses it
    return made


def test_each_function_has_a_source_and_a_frame_of_its_own() -> None:
    path = Path(accelerator_calls.__file__).with_suffix(".yaml")
    assert all(group["source"] and group["files"] for group in yaml.safe_load(path.read_bytes()))
    assert len(BY_NAME) == len({one.frame for one in entry_points()}) == len(entry_points())
    assert {one.frame[:5] for one in entry_points()} == {"GPU: ", "NPU: "}
    assert (WAIT.frame, WAIT.waits) == ("GPU: wait for stream (cuStreamSynchronize)", True)
    assert (LAUNCH.frame, LAUNCH.waits) == ("GPU: launch kernel (cuLaunchKernel)", False)
    names = {decode(record)[0]: decode(record)[1].name for record in frame_records()}
    assert names == {(0, one.number): one.frame for one in entry_points()}


def test_functions_are_found_with_their_suffixes_and_once_per_library(library: Path) -> None:
    libraries = Libraries()
    uses, probes = libraries.search(os.getpid())
    assert uses
    numbers = sorted(probe.number for probe in probes if os.path.samefile(probe.path, library))
    copy = BY_NAME["cuMemcpyHtoD"].number
    assert numbers == sorted([LAUNCH.number, copy, copy, WAIT.number])
    assert libraries.search(os.getpid()) == (True, [])


class Calls:
    """The kernel side, at the interface that is used: an entry or a return costs 1 us."""

    def __init__(self, refused: frozenset[int] = frozenset()) -> None:
        self.probes: list[Probe] = []
        self.refused = refused

    def attach_to(self, probes: Iterable[Probe]) -> list[Probe]:
        given = list(probes)
        self.probes += [probe for probe in given if probe.number not in self.refused]
        return [probe for probe in given if probe.number in self.refused]

    def keep(self, wanted: Iterable[Probe]) -> None:
        left = list(wanted)
        self.probes = [probe for probe in self.probes if probe in left]

    def attached(self) -> list[Probe]:
        return list(self.probes)

    def hit_ns(self) -> float:
        return 1000.0


class Run:
    """A job of this process that uses one core, with launches and waits by second of a clock of its own."""

    def __init__(self, calls: Calls) -> None:
        self.now, self.hits = S, 0
        self.calls = calls
        self.watch = AcceleratorWatch(calls, 0.05, clock=lambda: self.now)

    def go(self, seconds: int, launches: int, waits: int = 10) -> str:
        for _ in range(seconds):
            self.now += S
            numbers = {probe.number for probe in self.calls.probes}
            self.hits += 2 * (launches * (LAUNCH.number in numbers) + waits * (WAIT.number in numbers))
            self.watch.check([os.getpid()], self.hits, 1.0)
        return self.watch.state().detail


@pytest.mark.usefixtures("library")
def test_launches_that_cost_too_much_are_no_longer_probed_and_tried_again_later() -> None:
    run = Run(Calls())
    assert run.go(60, 10_000) == "all"
    state = run.watch.state()
    assert state.cpu_share == pytest.approx(0.02, rel=0.01)
    assert state.calls_per_s == pytest.approx(10_010)
    assert (state.processes, state.functions, state.reasons) == (1, 4, ())
    assert run.go(25, 40_000) == "waits"
    assert WAIT.number in {probe.number for probe in run.calls.probes}
    assert LAUNCH.number not in {probe.number for probe in run.calls.probes}
    assert "less at" in run.watch.state().reasons[0]
    assert run.go(250, 40_000) == "waits"
    seen = [run.go(1, 40_000) for _ in range(100)]
    assert set(seen) == {"all", "waits"}, "tried again"
    assert {run.go(1, 40_000) for _ in range(400)} == {"waits"}, "less often when it was too much again"
    assert run.go(700, 100) == "all"


@pytest.mark.usefixtures("library")
def test_a_storm_of_calls_ends_within_seconds_also_one_of_waits() -> None:
    run = Run(Calls())
    assert run.go(3, 500_000) == "waits"
    assert run.go(3, 0, waits=500_000) == "none"
    assert run.calls.probes == []


@pytest.mark.usefixtures("library")
def test_functions_that_cannot_be_probed_are_counted() -> None:
    run = Run(Calls(frozenset({LAUNCH.number})))
    run.go(12, 0)
    assert (run.watch.state().refused, run.watch.state().functions) == (1, 3)


def test_a_word_of_a_stack_that_is_a_call_has_its_name_and_no_line() -> None:
    codes = dict([decode(call_record(WAIT.number, WAIT.frame)), decode(code(9, b"load"))])
    line, call = frames([9 << lay.FRAME_CODE_SHIFT, word(WAIT.number)], PID, codes)
    assert (call.name, call.file, call.call) == (WAIT.frame, "", True)
    assert (line.name, line.call) == ("load", False)


def test_a_wait_in_a_call_keeps_its_line_and_place_and_has_the_call() -> None:
    scan, waits = Scan(), Waits()
    for record in frame_records():
        scan.codes.add(record)
    line = 9 << lay.FRAME_CODE_SHIFT
    stacks = [stack(5, line, word(WAIT.number)), stack(6, line)]
    scan.read(framed([code(9, b"load"), *stacks, wait(1, 2, pystack=5), wait(3, 4, pystack=6)]), waits)
    assert scan.line(PID, 5) == "load (train.py:7)"
    assert scan.accelerator_call(5) == WAIT.frame
    assert scan.accelerator_call(6) == ""
    assert waits.place[0] == waits.place[1], "what was learnt without probes holds with them"


def calls_of(start: int, end: int, pystack: int, function: int, number: int, took: int) -> list[Entry]:
    """A slice of the log with calls, times in ms."""
    key = bytes(lay.AcceleratorKey(pystack=pystack, tgid=PID, tid=TID, function=function))
    value = bytes(lay.AcceleratorTotal(count=number, total_ns=took * MS, max_ns=MS))
    name = bytes(lay.ThreadInfoValue(tgid=PID, comm=b"train"))
    totals = total(1, 20, 20, pystack=5)
    cut = Cut(start * MS, end * MS, totals, (TID.to_bytes(4, "little"), name), {}, (key, value))
    head = {"pids": {PID: lay.TRACED_TARGET}, "min_ns": MS, "sample_ns": 50 * MS}
    records = [code(9, b"load"), stack(5, 9 << lay.FRAME_CODE_SHIFT, word(WAIT.number)), sample(start)]
    return [
        Entry(RECORDS, start * MS, end * MS, framed([*frame_records(), *records, wait(start, start + 20, pystack=5)])),
        Entry(SLICE, start * MS, end * MS, slice_end(cut, head)),
        Entry(CALLS, start * MS, end * MS, calls_entry(cut)),
    ]


def paths(recording: Recording, event: str) -> dict[str, float]:
    """The weights of an event by stack, outermost frame first."""
    profile = stacks_of(recording, "accelerator")
    frames_of = dict(profile.frames.select("frame", "name").iter_rows())
    parents = {number: (parent, frame) for number, parent, frame in profile.stacks.iter_rows()}
    (row,) = profile.events.filter(profile.events["name"] == event)["event"]
    found: dict[str, float] = {}
    for at, which, weight in profile.samples.select("stack", "event", "weight").iter_rows():
        names: list[str] = []
        while at >= 0:
            at, frame = parents[at]
            names.append(frames_of[frame])
        if which == row:
            found[";".join(reversed(names))] = weight
    return found


def test_calls_of_a_window_are_a_profile_beneath_their_lines_in_proportion() -> None:
    entries = [*calls_of(0, 1000, 5, WAIT.number, 100, 400), *calls_of(1000, 2000, 0, LAUNCH.number, 3000, 30)]
    recording = recording_of(entries, 500 * MS, 2000 * MS, frozenset({PID}))
    assert paths(recording, NUMBER) == {f"load;{WAIT.frame}": 50, LAUNCH.frame: 3000}
    assert paths(recording, TIME) == {f"load;{WAIT.frame}": 200 * MS, LAUNCH.frame: 30 * MS}
    waits = recording.table("switches.stacks")["frames"].to_list()
    assert [WAIT.frame, "load (train.py:7)"] in waits


def test_the_call_is_a_wait_for_the_device_in_diagnoses_and_a_launch_is_not() -> None:
    assert place_of_texts([WAIT.frame, "load (train.py:7)"]).in_device_call
    launch = place_of_texts([LAUNCH.frame, "load (train.py:7)"])
    assert (launch.in_device_call, launch.in_driver, launch.line) == (False, True, "load (train.py:7)")
    assert (named(WAIT.frame).name, named(WAIT.frame).kind) == (WAIT.frame, "native")
    assert (named(LAUNCH.frame).name, named(LAUNCH.frame).kind) == (LAUNCH.frame, "launch")
