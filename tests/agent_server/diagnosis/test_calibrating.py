"""diagnose --calibrate: what was tried is told, is no evidence of anything, and only where it was asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest
from page_cache_scenes import DATA, OTHER, Cache, rereading, streaming
from recordings import PID

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis import observer, transcript_files
from whystall.agent_server.diagnosis import replay as replaying
from whystall.agent_server.diagnosis.case import DIRECT_IO_TOOL
from whystall.agent_server.diagnosis.functions import Functions
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.inputs import calibration as calibrating
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.collect import calibration
from whystall.tools.collect.calibration import Place, Request
from whystall.tools.collect.tables import CALIBRATION
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.store import Recording
from whystall.tools.toolbox import registry

pytestmark = pytest.mark.thorough

MIB = 1 << 20
RECORDED = Path(__file__).parents[2] / "recorded"
TOOLS = {tool.name: tool for tool in registry().all()}


def scene() -> Cache:
    """The target streams in requests of 4 MiB, and a neighbour suffers."""
    cache = rereading(streaming().short(3200), pid=OTHER, back=100)
    cache.scene.thread(PID, user=30, system=60, blocked=5)
    size = {"low_bytes": 4 * MIB, "high_bytes": 8 * MIB, "count": 1000, "bytes": 4000 * MIB}
    row = {"file": cache.file(DATA), "pid": PID, "operation": "read", "direct": False}
    cache.scene._add("page_cache.sizes", **row, **size)
    return cache


def trials(ratio: float = 2.0) -> Capture:
    place = {"directory": "/data", "dev": "7:0", "fstype": "ext4", "operation": "read", "request_bytes": MIB}
    rows = [
        {**place, "way": way, "bytes": MIB, "wall_ns": wall, "cpu_ns": 500, "trial": number}
        for number in range(8)
        for way, wall in (("buffered", 1_000_000), ("direct", int(1_000_000 / ratio)))
    ]
    tables = {
        "trials": pl.DataFrame(rows, schema=CALIBRATION["trials"], orient="row"),
        "refusals": pl.DataFrame(schema=CALIBRATION["refusals"]),
    }
    return Capture(tables, hooks=["O_TMPFILE"], seen=len(rows), kept=len(rows), lost=0, proven=True)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Recording]:
    """Makes every window record the same, and the trials come out the same. What was tried is in `asked`."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))

    def recorded(without: tuple[str, ...] = (), capture: Capture | None = None) -> Recording:
        found = scene().build(without=("calibration", "ftrace", "profile", *without))

        monkeypatch.setattr(observer, "can_serve", lambda collector, *_: found.has(collector))

        async def observe(*_: object, **__: object) -> Recording:
            return found

        async def calibrate(asked: Request, *_: object) -> Capture:
            tried.append(asked)
            return capture or trials()

        monkeypatch.setattr(observer, "observe", observe)
        monkeypatch.setattr(calibration, "place_of", lambda directory: Place(directory, "7:0", "ext4"))
        monkeypatch.setattr(calibrating.calibration, "calibrate", calibrate)
        return found

    tried: list[Request] = []
    recorded.tried = tried  # type: ignore[attr-defined]
    return recorded


def diagnosed(**params: Any) -> Diagnosis:
    with App().closing() as app:
        return anyio.run(lambda: app.diagnose(DiagnoseParams(pid=os.getpid(), **params)))


def test_what_was_tried_is_a_step_of_its_own_on_the_same_window(live: Any) -> None:
    live()
    found = diagnosed(calibrate=True, duration=4)
    step = found.steps[-1]
    assert (step.tools, step.why) == ([DIRECT_IO_TOOL], "tried_here")
    (advice,) = [f for f in found.findings if f.kind == "io.advice" and f.subject.path == DATA]
    assert advice.attributes["reason"] == "faster_here"
    assert advice.metrics["ratio"] == 2
    assert advice.id in step.findings
    assert len({f.id for f in found.findings}) == len(found.findings)
    (asked,) = live.tried
    assert [(place.directory, list(operations)) for place, operations in asked.places] == [("/data", ["read"])]


def test_it_is_no_evidence_of_anything(live: Any) -> None:
    """Whatever can be gained: what holds the job up is told by what was observed."""
    live()
    plain, tried = diagnosed(duration=4), diagnosed(calibrate=True, duration=4)
    assert (plain.verdict, plain.cause, plain.chain) == (tried.verdict, tried.cause, tried.chain)
    advice = {f.id for f in tried.findings if f.kind == "io.advice"}
    assert advice
    assert not advice & {i for a in tried.assessments for i in (*a.for_, *a.against)}


def test_a_replay_comes_to_the_same(live: Any) -> None:
    live()
    for params in ({"calibrate": True}, {}):
        found = diagnosed(duration=4, **params)
        done = anyio.run(lambda id=found.id: replaying.replay(transcript_files.path_of(id), TOOLS))
        assert done.same, done.difference


def test_nothing_is_tried_unless_it_is_asked_for(live: Any) -> None:
    live()
    found = diagnosed(duration=4)
    assert live.tried == []
    assert all(DIRECT_IO_TOOL not in step.tools for step in found.steps)


def test_where_no_look_saw_the_page_cache_nothing_is_written_and_that_is_said(live: Any) -> None:
    live(without=("page_cache",))
    found = diagnosed(calibrate=True, duration=4)
    assert live.tried == []
    spots = [spot for coverage in found.coverage for spot in coverage.not_seen]
    assert [spot.code for spot in spots if spot.code == "not_calibrated"] == ["not_calibrated"]


def test_a_disk_that_refuses_leaves_the_diagnosis_as_it_is(live: Any) -> None:
    refusals = {"directory": "/data", "dev": "7:0", "fstype": "ext4", "code": "no_room", "detail": "3 MiB free"}
    none = {
        "trials": pl.DataFrame(schema=CALIBRATION["trials"]),
        "refusals": pl.DataFrame([refusals], schema=CALIBRATION["refusals"], orient="row"),
    }
    spots = [("not_calibrated", "no_room /data")]
    live(capture=Capture(none, hooks=[], seen=0, kept=0, lost=0, proven=True, not_seen=spots))
    found = diagnosed(calibrate=True, duration=4)
    advice = [f for f in found.findings if f.kind == "io.advice"]
    assert advice
    assert all("ratio" not in f.metrics for f in advice)
    assert "no_room /data" in [spot.detail for coverage in found.coverage for spot in coverage.not_seen]


def test_another_hosts_disk_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    made, given = RECORDED / "checkpoint", DiagnoseParams(calibrate=True)
    with App().closing() as app:
        for ask in (
            lambda: app.diagnose(given, source=made),
            lambda: app.run_tool(DIRECT_IO_TOOL, {"calibrate": True}, source=made),
        ):
            with pytest.raises(ToolError) as refused:
                anyio.run(ask)
            assert refused.value.code is ErrorCode.BAD_ARGUMENT
            assert "recording" in refused.value.message


def test_no_model_may_have_files_written() -> None:
    offered = Functions([TOOLS[DIRECT_IO_TOOL]], [], duration=10.0, searchable=False).offered()
    (function,) = [f for f in offered if f.name == DIRECT_IO_TOOL]
    assert {"calibrate", "directory", "request_bytes"}.isdisjoint(function.parameters["properties"])


def test_no_client_of_the_server_may_either() -> None:
    from whystall.agent_server.interfaces.mcp.tools import entries

    with App().closing() as app:
        offered = entries(app, "en")
        for name in (DIRECT_IO_TOOL, "diagnose"):
            assert {"calibrate", "directory"}.isdisjoint(offered[name].arguments["properties"])
            with pytest.raises(ToolError, match="reserved for the operator of the server"):
                anyio.run(offered[name].answer, {"calibrate": True}, lambda *_: None)
