"""One host of the fleet is asked to diagnose a job of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from fleet_servers import TOKEN, application, closed_port, serving, settings
from making import checkpoint

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.fleet.ask import diagnose_on
from whystall.knowledge_base.models import Diagnosis

pytestmark = pytest.mark.anyio
PARAMS = DiagnoseParams(duration=2.0, engine="procfs", symptom="steps are slow")


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Diagnosing(App):
    """A host whose diagnosis is known."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[DiagnoseParams] = []

    async def diagnose(self, params: DiagnoseParams, **_: Any) -> Diagnosis:
        self.asked.append(params)
        return checkpoint()


async def test_a_host_diagnoses_the_process_that_it_finds() -> None:
    host = Diagnosing()
    with subprocess.Popen(["sleep", "60"]) as job, serving({"node7": application(host)}) as urls:
        answer = await diagnose_on("node7", f"pid {job.pid}", PARAMS, settings(urls))
        named = await diagnose_on("node7.example", f"pid {job.pid}", PARAMS, settings(urls))
        job.kill()
    assert answer is not None
    assert answer.status == "answered", answer
    assert Diagnosis.model_validate(answer.reply).cause == checkpoint().cause
    (first, _) = host.asked
    assert (first.pid, first.duration, first.engine, first.symptom) == (job.pid, 2.0, "procfs", "steps are slow")
    assert named is not None
    assert named.status == "answered"


async def test_a_host_without_the_job_observes_nothing() -> None:
    host = Diagnosing()
    with serving({"node7": application(host)}) as urls:
        answer = await diagnose_on("node7", f"container {'9a' * 32}", PARAMS, settings(urls))
    assert answer is not None
    assert answer.status == "absent"
    assert host.asked == []


async def test_a_dead_host_has_no_diagnosis_and_a_stranger_is_not_asked() -> None:
    with closed_port() as dead:
        answer = await diagnose_on("node7", "slurm job 1", PARAMS, settings({"node7": dead}))
        assert answer is not None
        assert answer.status == "unreachable"
        assert await diagnose_on("node9", "slurm job 1", PARAMS, settings({"node7": dead})) is None
