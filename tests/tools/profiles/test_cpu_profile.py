"""cpu_profile's judgement of samples whose truth is made here."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from whystall.bpf.capture import Thread
from whystall.bpf.samples import Place, Samples
from whystall.tools.collect.frames import Call
from whystall.tools.collect.options import SampleOptions
from whystall.tools.collect.samples_decode import sample_tables
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.proportion import wilson
from whystall.tools.contract.registry import Judgement
from whystall.tools.contract.result import Status
from whystall.tools.profiles.cpu_profile import tool as cpu_profile
from whystall.tools.profiles.cpu_profile.tool import Data, Params
from whystall.tools.recording.collector import Need
from whystall.tools.recording.judging import judge as envelope
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

PERIOD, WINDOW = 10_000_000, 1_000_000_000
MAIN = Call("main (/bin/python)", "/bin/python", 0, "native")
SAVE, READ = Call("save", "/job/train.py", 212, "python"), Call("ksys_read", "", 0, "kernel")
HASH, BARE = Call("sha256", "/lib/libcrypto.so.3", 0, "native"), Call("[libx.so+0x10]", "/lib/libx.so", 0, "native")


def recorded(stacks: dict[tuple[int, tuple[Call, ...]], int]) -> Recording:
    """A window of a second in which thread `tid` of process 7 was seen so many times at each stack."""
    places = [Place(7, tid, 0, number + 1, 0) for number, (tid, _) in enumerate(stacks)]
    calls = dict(zip(places, (stack for _, stack in stacks), strict=True))
    rows = [number for number, count in enumerate(stacks.values()) for _ in range(count)]
    samples = Samples(array("q", range(len(rows))), array("i", rows), places, 1)
    threads = {tid: Thread(tid, 7, b"worker", False) for tid, _ in stacks}
    tables = sample_tables(samples, threads, lambda place: list(calls[place]), PERIOD)
    entry = CollectorManifest(engine="ebpf", seen=len(rows), kept=len(rows), proven=True)
    manifest = Manifest(
        id="made",
        host="here",
        kernel="6.1",
        machine="x86_64",
        cpus=2,
        target=Target(everything=False, pids=[7], comm="worker"),
        started="2026-01-01T00:00:00.000Z",
        start_ns=0,
        window_ns=WINDOW,
        requested_ns=WINDOW,
        collectors={"samples": entry},
    )
    return Recording.in_memory(manifest, {f"samples.{name}": table for name, table in tables.items()})


def judged(stacks: dict[tuple[int, tuple[Call, ...]], int], **arguments: object) -> Judgement[Data]:
    return cpu_profile.judge(recorded(stacks), parse_params(Params, arguments))


TWO = {(7, (MAIN, SAVE, HASH)): 60, (8, (MAIN, SAVE, READ)): 30, (8, (MAIN, HASH)): 10}


def test_shares_of_frames_with_their_bounds() -> None:
    data = judged(TWO).data
    rows = {row.name: row for row in data.frames}
    assert [row.name for row in data.frames[:2]] == ["sha256", "ksys_read"]
    assert rows["sha256"].self_pct == pytest.approx(70)
    low, high = wilson(70, 100)
    assert (rows["sha256"].self_low_pct, rows["sha256"].self_high_pct) == pytest.approx((100 * low, 100 * high))
    assert (rows["sha256"].total_pct, rows["sha256"].samples) == (pytest.approx(70), 70)
    assert rows["sha256"].path == ["main (/bin/python)", "save (train.py:212)"]
    assert rows["sha256"].code == "libcrypto.so.3"
    assert (data.verdict, data.event, data.unit, data.samples) == ("profiled", "cpu-clock", "ns", 100)
    assert data.hz == pytest.approx(100)
    assert data.cpus == pytest.approx(1.0)


def test_threads_by_their_share_of_a_cpu() -> None:
    data = judged(TWO).data
    assert [(row.tid, row.samples, row.frame) for row in data.threads] == [(7, 60, "sha256"), (8, 40, "ksys_read")]
    assert [row.cpu_pct for row in data.threads] == pytest.approx([60, 40])


def test_kinds_of_code_themselves_and_with_what_they_call() -> None:
    kinds = {row.kind: (row.self_pct, row.under_pct) for row in judged(TWO).data.kinds}
    assert kinds["native"] == pytest.approx((70, 100))
    assert kinds["kernel"] == pytest.approx((30, 30))
    assert kinds["python"] == pytest.approx((0, 90))


def test_to_be_busy_is_no_fault_and_the_line_is_told() -> None:
    findings = judged(TWO).findings
    assert {finding.polarity.value for finding in findings} == {"normal"}
    assert [f.attributes["name"] for f in findings] == ["sha256", "ksys_read", "save"]
    assert findings[0].metrics["window_pct"] == pytest.approx(60)  # of thread 7, which is in it most
    assert findings[2].attributes["code"] == "train.py:212"
    assert findings[2].metrics["total_pct"] == pytest.approx(90)
    assert findings[2].metrics["self_pct"] == 0


def test_a_frame_that_chance_may_have_brought_makes_no_finding() -> None:
    findings = judged({(7, (MAIN, HASH)): 99, (7, (MAIN, READ)): 1}).findings
    assert [f.attributes["name"] for f in findings] == ["sha256"]


def test_recursion_counts_once() -> None:
    data = judged({(7, (MAIN, SAVE, SAVE, SAVE)): 50}).data
    assert data.frames[0].total_pct == pytest.approx(100)


@pytest.mark.parametrize(("window_ns", "verdict"), [(30 * PERIOD, "not_on_cpu"), (30 * PERIOD - 1, "few_ticks")])
def test_who_is_seen_at_no_tick_of_a_few_may_be_busy(window_ns: int, verdict: str) -> None:
    recording = recorded({})
    manifest = recording.manifest.model_copy(update={"window_ns": window_ns})
    short = Recording.in_memory(manifest, recording.tables())
    assert cpu_profile.judge(short, Params()).data.verdict == verdict


def test_few_samples_are_said_to_be_few() -> None:
    assert judged({(7, (MAIN, HASH)): 5}).data.verdict == "few_samples"


def test_code_without_names_is_told() -> None:
    assert judged({(7, (MAIN, BARE)): 20, (7, (MAIN, HASH)): 80}).not_seen == [("user_symbols", "20 %")]
    assert not judged({(7, (MAIN, BARE)): 2, (7, (MAIN, HASH)): 98}).not_seen


def test_who_never_ran_is_no_data_and_not_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    result = envelope(cpu_profile.TOOL, recorded({}), Params())
    assert result.status is Status.NO_DATA
    assert result.data.verdict == "not_on_cpu"
    assert not result.findings
    assert not result.artifacts


@pytest.mark.parametrize(("hz", "period"), [(1, 1_000_000_000), (99, 10_101_010), (999, 1_001_001)])
def test_how_often_is_asked_for(hz: int, period: int) -> None:
    need = cpu_profile.TOOL.needs(Params(hz=hz))[0]
    assert need == Need("samples", SampleOptions(period, python=True))


@pytest.mark.parametrize("hz", [0, 1000, -1])
def test_other_rates_are_refused(hz: int) -> None:
    with pytest.raises(ToolError, match="hz"):
        parse_params(Params, {"hz": hz})


def test_bounds_of_a_share() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 100)[0] == 0.0
    assert wilson(100, 100)[1] == 1.0
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)  # R: prop.test(50, 100, correct=FALSE)
