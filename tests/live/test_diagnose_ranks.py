"""A slow rank from its traces to its host: its process is found, and what holds it up is named."""

from __future__ import annotations

import gzip
import json
import socket
import time
from pathlib import Path
from typing import Any

import anyio
import model_server
import pytest
from cgroups import Cgroup
from model_policies import engineer
from running import SIMULATOR, Running

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.replay import replay
from whystall.agent_server.diagnosis.transcript_files import path_of
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict

TRACES = Path(__file__).parents[1] / "recorded" / "ranks" / "compute"
WINDOW_S = 8.0


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def traced_now(place: Path, slow: int, host: str) -> Path:
    """The recorded traces as if they had been made on `host` this moment, the slow rank by process `slow`."""
    place.mkdir()
    (rank,) = json.loads((TRACES / "truth.json").read_text())["slow_ranks"]
    for file in TRACES.glob("rank*.json.gz"):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        first = min(event["ts"] for event in trace["traceEvents"] if event["ph"] == "X")
        trace["baseTimeNanoseconds"] = time.time_ns() - int(first * 1000)
        trace["host_name"] = host
        for event in trace["traceEvents"] if trace["distributedInfo"]["rank"] == rank else ():
            event["pid"] = slow
        (place / file.name).write_bytes(gzip.compress(json.dumps(trace).encode()))
    return place


def diagnose(traces: Path, **more: Any) -> Diagnosis:
    """A diagnosis; its transcript must replay, without the host."""
    params = DiagnoseParams(**{"traces": str(traces), "duration": WINDOW_S, "ticket": True, **more})
    with App().closing() as app:
        found = anyio.run(lambda: app.diagnose(params))
        tools = {tool.name: tool for tool in app.tools()}
    done = anyio.run(lambda: replay(path_of(found.id), tools))
    assert done.same, done.difference
    return found


def training(place: Path, **options: Any) -> Running:
    """A process that computes and hardly writes."""
    return Running(SIMULATOR, "--directory", place, "--every", 1000, **options)


def blind(found: Diagnosis) -> set[str]:
    return {spot.code for seen in found.coverage for spot in seen.not_seen}


def test_a_model_chooses_what_to_look_at_on_the_slow_ranks_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        model_server.serve(engineer) as server,
        Cgroup("cpu") as group,
        training(tmp_path, wrap=group.command) as program,
    ):
        monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", server.base_url)
        monkeypatch.setenv("WHYSTALL_LLM_MODEL", model_server.MODEL)
        program.until("step")
        group.limit_cpus(0.05)
        found = diagnose(traced_now(tmp_path / "traces", program.pid, socket.gethostname()), llm=True, duration=4)
    assert found.cause == "cgroup_cpu_throttling", found.model_dump_json(indent=1)
    assert found.reasoning is not None
    assert (found.reasoning.stopped, found.reasoning.struck) == (None, [])
    assert found.reasoning.claims
    assert "model_asked" in [step.why for step in found.steps]


def test_a_real_job_with_a_throttled_rank_while_it_trains_on(tmp_path: Path) -> None:
    """The traces call it slow in computing; its cgroup says why."""
    pytest.importorskip("torch")
    with Running("ranks_job.py", "--out", tmp_path, "--linger", "quota") as program:
        made = program.until("job", timeout_s=240)
        truth = json.loads((tmp_path / "quota" / "truth.json").read_text())
        found = diagnose(tmp_path / "quota" / "traces")
    assert found.cause == "cgroup_cpu_throttling", found.model_dump_json(indent=1)
    assert found.victim is not None
    assert [found.victim.rank] == truth["slow_ranks"]
    assert found.victim.pid == made["pids"][found.victim.rank]
    assert [step.why for step in found.steps][:2] == ["traces_of_ranks", "first_look"]
    kinds = {f.id: f.kind for f in found.findings}
    assert len(kinds) == len(found.findings), "numbers of findings are unique"
    assert kinds[found.chain[0]] == "rank.compute_slow"
    assert "sched.runqueue_delay" in {kinds[i] for i in found.chain}
    assert found.ticket
    supported = {a.cause for a in found.assessments if a.state is CauseState.SUPPORTED}
    assert {"slow_rank_compute", "cgroup_cpu_throttling"} <= supported


def test_a_rank_whose_host_explains_nothing_stays_slow_in_computing(tmp_path: Path) -> None:
    with Running("sleeper.py", "--count", 1000) as program:  # wants no CPU: no busy machine keeps it from one
        traces = traced_now(tmp_path / "traces", program.pid, socket.gethostname())
        found = diagnose(traces, duration=4)
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "slow_rank_compute"), found.model_dump_json(indent=1)
    assert len(found.steps) >= 2
    assert "looked_later" in blind(found)


def test_a_rank_of_another_host_is_not_looked_for_here(tmp_path: Path) -> None:
    with training(tmp_path) as program:
        found = diagnose(traced_now(tmp_path / "traces", program.pid, "another-host"))
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "slow_rank_compute")
    assert [step.why for step in found.steps] == ["traces_of_ranks"]
    assert "rank_elsewhere" in blind(found)


def test_a_process_that_came_later_is_not_the_rank(tmp_path: Path) -> None:
    traces = traced_now(tmp_path / "traces", 1 << 22, socket.gethostname())
    time.sleep(3)
    with training(tmp_path) as program:
        for file in traces.glob("rank2*"):
            trace = json.loads(gzip.decompress(file.read_bytes()))
            for event in trace["traceEvents"]:
                event["pid"] = program.pid
            file.write_bytes(gzip.compress(json.dumps(trace).encode()))
        found = diagnose(traces)
    assert "rank_gone" in blind(found)
    assert [step.why for step in found.steps] == ["traces_of_ranks"]
