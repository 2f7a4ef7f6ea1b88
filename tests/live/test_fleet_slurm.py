"""Jobs of a real Slurm resolve to hosts and ranks. All nodes are this machine, which is asked once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_servers import TOKEN, application, serving
from slurm_cluster import SlurmCluster, missing

from whystall.agent_server.app import App
from whystall.agent_server.fleet.slurm import hosts_of
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.command_tree import build
from whystall.agent_server.job_lookup.find import find
from whystall.agent_server.job_lookup.models import Wanted
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons run as root here"),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]
TRAIN = "import time\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), count=4) as cluster:
        (cluster.directory / "train.py").write_text(TRAIN)
        yield cluster


@pytest.fixture(autouse=True)
def _clients(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What whystall needs to call Slurm's commands; afterwards no job is left."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    yield
    slurm.cancel()


def command(slurm: SlurmCluster) -> str:
    return f"srun {sys.executable} {slurm.directory}/train.py"


def hosts(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What ``whystall fleet hosts`` prints."""
    build(("fleet", "hosts", *words))(["fleet", "hosts", *words], prog_name="whystall", standalone_mode=False)
    console.deliver()
    return capsys.readouterr().out


def test_a_job_by_number_and_name_with_its_ranks(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = slurm.submit(command(slurm), "--nodes=3", "--ntasks=6", "--job-name=llama 7b")
    slurm.until_started(slurm.directory / "train.py", 6)
    words = [(f"node{number}", f"slurm job {job}") for number in (1, 2, 3)]
    assert hosts_of(job) == words
    assert hosts_of("llama 7b") == words
    with serving({"node2": application(App())}) as urls:
        token = tmp_path / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        settings = tmp_path / "whystall.toml"
        settings.write_text(
            f'[fleet]\ntoken = {{ file = "{token}" }}\n[fleet.overrides.node2]\nurl = "{urls["node2"]}"\n'
        )
        settings.chmod(0o600)
        monkeypatch.setenv("WHYSTALL_CONFIG", str(settings))
        asked, *others = json.loads(hosts(capsys, "--slurm", job, "--json"))
        text = hosts(capsys, "--slurm", "llama 7b")
    assert (asked["host"], asked["status"], asked["job"]) == ("node2", "answered", f"slurm:{job}")
    environments = {
        rank: Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for rank, pid in asked["ranks"].items()
    }
    assert sorted(environments) == [str(rank) for rank in range(6)]
    assert all(f"SLURM_PROCID={rank}".encode() in variables for rank, variables in environments.items())
    assert all(b"SLURM_STEP_ID=0" in variables for variables in environments.values())  # not the batch script
    assert [(other["host"], other["status"]) for other in others] == [("node1", "not_asked"), ("node3", "not_asked")]
    assert "node2: ranks 0-5, pid " in text


def test_a_task_of_an_array(slurm: SlurmCluster) -> None:
    array = slurm.submit(command(slurm), "--ntasks=1", "--array=3,5")
    ((host, words),) = hosts_of(f"{array}_5")
    assert re.fullmatch("node[1-4]", host)
    assert re.fullmatch("slurm job [0-9]+", words)
    assert words != hosts_of(f"{array}_3")[0][1]
    with pytest.raises(ToolError) as several:
        hosts_of(array)
    assert several.value.code is ErrorCode.NOT_FOUND


def test_a_heterogeneous_job_is_found_on_the_hosts_of_each_part(slurm: SlurmCluster) -> None:
    started = command(slurm).replace("srun", "srun --het-group=0,1")
    job = slurm.submit(started, "--nodes=1", "--ntasks=2", ":", "--nodes=1", "--ntasks=1")
    slurm.until_started(slurm.directory / "train.py", 3)
    parts = hosts_of(job)
    assert len({host for host, _ in parts}) == 2
    assert hosts_of(f"{job}+1") == parts[1:]
    for _, words in parts:
        found = asyncio.run(find(Wanted(text=words)))
        assert found.job is not None
        assert [one.rank for one in found.job.ranks] == [0, 1, 2]


def test_a_job_that_waits_and_one_that_is_unknown(slurm: SlurmCluster) -> None:
    slurm.submit(command(slurm), "--nodes=4")
    waiting = slurm.run("sbatch", "--parsable", "--output=/dev/null", str(slurm.directory / "job.sh")).strip()
    for job, holding in ((waiting, f"job {waiting} is PENDING"), ("99999", "has no job"), ("nothing", "has no job")):
        with pytest.raises(ToolError) as caught:
            hosts_of(job)
        assert caught.value.code is ErrorCode.NOT_FOUND
        assert holding in caught.value.message
