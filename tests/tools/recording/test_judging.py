"""The envelope: what was looked at, what could not be seen, and when "nothing" may be said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recordings import Scene, checkpoints

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.result import BLIND_SPOTS, BlindSpot, Status
from whystall.tools.host import biolatency, offcputime, syscall_time
from whystall.tools.host.fileslower import tool as fileslower
from whystall.tools.recording.judging import ARTIFACT_SCHEME, artifact_path, judge
from whystall.tools.recording.store import Recording

TOOLS = [fileslower, syscall_time, offcputime, biolatency]
COLLECTOR = {fileslower: "syscalls", syscall_time: "syscalls", offcputime: "switches", biolatency: "block"}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def silent() -> Scene:
    return Scene().thread(user=99)


def stalling() -> Scene:
    return checkpoints(Scene().thread(user=60, blocked=30)).requests("sda", "write", 40, 90)


@pytest.mark.parametrize("module", TOOLS)
def test_silence_of_a_proven_collector_is_no_data(module: Any) -> None:
    result = judge(module.TOOL, silent().build(), module.Params())
    assert result.status is Status.NO_DATA
    assert {f.polarity for f in result.findings} <= {Polarity.NORMAL}


@pytest.mark.parametrize("module", TOOLS)
@pytest.mark.parametrize("scene", [silent, stalling])
@pytest.mark.parametrize(
    ("build", "code"),
    [(lambda name: {"unproven": [name]}, "not_proven"), (lambda name: {"lost": {name: 3}}, "events_lost")],
)
def test_what_may_be_missing_is_partial_and_clears_nobody(
    module: Any, scene: Callable[[], Scene], build: Callable[[str], dict[str, Any]], code: str
) -> None:
    result = judge(module.TOOL, scene().build(**build(COLLECTOR[module])), module.Params())
    assert result.status is Status.PARTIAL
    assert code in {spot.code for spot in result.coverage.not_seen}
    normal = [f for f in result.findings if f.polarity is Polarity.NORMAL and f.subject.tid is None]
    assert normal == []


@pytest.mark.parametrize(
    ("manifest", "status", "code"),
    [
        ({}, Status.OK, None),
        ({"target_exited": True, "window_ns": 12_000_000_000}, Status.PARTIAL, "target_exited"),
        ({"redacted": True}, Status.OK, "redacted"),
    ],
)
def test_status(manifest: dict[str, Any], status: Status, code: str | None) -> None:
    result = judge(fileslower.TOOL, stalling().build(**manifest), fileslower.Params())
    assert result.status is status
    codes = {spot.code for spot in result.coverage.not_seen}
    assert code is None or code in codes
    assert codes <= BLIND_SPOTS


@pytest.mark.parametrize(("min_ms", "told"), [(0.5, True), (1.0, False), (50.0, False)])
def test_a_threshold_below_the_recorded_one_is_told(min_ms: float, told: bool) -> None:
    result = judge(fileslower.TOOL, stalling().build(), fileslower.Params(min_ms=min_ms))
    spots = [spot for spot in result.coverage.not_seen if spot.code == "below_threshold"]
    assert [s.detail for s in spots] == (["syscalls 1 ms"] if told else [])
    assert (result.status is Status.PARTIAL) is told


def test_a_missing_collector_is_an_error_and_not_an_empty_answer() -> None:
    with pytest.raises(ToolError) as caught:
        judge(biolatency.TOOL, stalling().build(without=["block"]), biolatency.Params())
    assert caught.value.code is ErrorCode.MISSING_COLLECTOR


def test_coverage_counts_and_is_said_once() -> None:
    recording = stalling().build(lost={"syscalls": 7})
    recording.manifest.collectors["syscalls"].not_seen = [BlindSpot(code="kernel_symbols")] * 2
    coverage = judge(fileslower.TOOL, recording, fileslower.Params()).coverage
    (collector,) = coverage.collectors
    assert (collector.name, collector.engine, collector.seen, collector.lost) == ("syscalls", "ebpf", 1000, 7)
    assert (coverage.window_s, coverage.requested_s, coverage.target) == (12.0, 12.0, "pid 4000 (train)")
    assert [(s.code, s.detail) for s in coverage.not_seen if s.code in ("kernel_symbols", "events_lost")] == [
        ("kernel_symbols", ""),
        ("events_lost", "7"),
    ]


def test_findings_are_numbered_and_judging_again_says_the_same(tmp_path: Path) -> None:
    from whystall.tools.collect.tables import COLLECTORS

    recording = stalling().build()
    recording.save(tmp_path / "rec")
    first = judge(fileslower.TOOL, recording, fileslower.Params())
    again = judge(fileslower.TOOL, Recording.open(tmp_path / "rec", COLLECTORS), fileslower.Params())
    assert [f.id for f in first.findings] == [f"fileslower.{i + 1}" for i in range(len(first.findings))]
    assert again == first


def test_an_artifact_is_found_by_its_uri_and_by_nothing_else(own_home: Path) -> None:
    (artifact,) = judge(offcputime.TOOL, stalling().build(), offcputime.Params()).artifacts
    path = artifact_path(artifact.uri)
    assert str(path) == artifact.path
    assert path.stat().st_size == artifact.bytes
    assert "train;[fsync /data/run7/chk_000100.bin];do_syscall_64;" in path.read_text()
    (own_home / "secret").write_text("x")
    for uri in (
        "",
        "x",
        ARTIFACT_SCHEME,
        ARTIFACT_SCHEME + "../secret",
        ARTIFACT_SCHEME + "nope",
        str(path),
        "/secret",
    ):
        with pytest.raises(ToolError) as caught:
            artifact_path(uri)
        assert caught.value.code is ErrorCode.NOT_FOUND


def test_an_artifact_that_cannot_be_written_is_an_error(own_home: Path) -> None:
    own_home.mkdir()
    (own_home / "artifacts").write_text("in the way")
    with pytest.raises(ToolError) as caught:
        judge(offcputime.TOOL, stalling().build(), offcputime.Params())
    assert caught.value.code is ErrorCode.IO_ERROR
    assert os.listdir(own_home) == ["artifacts"]
