"""The scripts for Slurm, run with the variables that slurmd and srun set, and a real process of the job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "deploy/slurm"
JOB = str(70_000_000 + os.getpid())
# Stands for the program: notes its words and its state, and runs until a signal.
WATCH = """#!/bin/bash
trap 'echo ended >>{place}/words; exit 0' TERM
echo "$WHYSTALL_HOME $*" >>{place}/words
while :; do sleep 0.05; done
"""
Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory with the configuration of the scripts."""
    program = tmp_path / "whystall"
    program.write_text(WATCH.format(place=tmp_path))
    program.chmod(0o755)
    (tmp_path / "slurm.conf").write_text(f"whystall={program}\njobs={tmp_path}/jobs\nkeep_days=3\n")
    yield tmp_path
    pid = tmp_path / f"jobs/{JOB}/watch.pid"
    if pid.exists():
        os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.fixture
def script(place: Path) -> Script:
    """Runs a script for the job."""

    def run(name: str, *words: str, job: str = JOB) -> subprocess.CompletedProcess[str]:
        env = {"SLURM_JOB_ID": job, "WHYSTALL_SLURM_CONF": str(place / "slurm.conf")}  # slurmd sets no PATH
        if name == "diagnose.sh":
            env |= {"SLURM_PROCID": "0", "WHYSTALL_HOME": str(place)}
        return subprocess.run([SCRIPTS / name, *words], env=env, capture_output=True, text=True, timeout=120)

    return run


def words(place: Path, lines: int) -> list[str]:
    """The lines that the program has noted, at least so many."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if (place / "words").exists() and len(noted := (place / "words").read_text().splitlines()) >= lines:
            return noted
        time.sleep(0.02)
    raise AssertionError("the watch has noted nothing")


@pytest.mark.parametrize("name", sorted(path.name for path in SCRIPTS.iterdir()))
def test_the_scripts_are_sound(name: str) -> None:
    subprocess.run(["bash", "-n", name], cwd=SCRIPTS, check=True)
    if shutil.which("shellcheck") is not None:
        done = subprocess.run(["shellcheck", "-x", name], cwd=SCRIPTS, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="would start a unit of this machine")
def test_prolog_and_epilog_start_and_end_the_watch_of_the_job(place: Path, script: Script) -> None:
    old, other = place / "jobs/17", place / "jobs/notes"
    for each in (old, other):
        each.mkdir(parents=True)
        os.utime(each, (0, 0))
    assert script("prolog.sh").returncode == 0
    home = place / f"jobs/{JOB}"
    assert words(place, 1) == [f"{home} watch --slurm-job {JOB}"]
    assert home.stat().st_mode & 0o077 == 0
    assert script("epilog.sh").returncode == 0
    assert words(place, 2)[1:] == ["ended"]
    assert home.is_dir()
    assert not (home / "watch.pid").exists()
    assert not old.exists()
    assert other.exists()


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="would start a unit of this machine")
def test_the_epilog_ends_no_other_process(place: Path, script: Script) -> None:
    home = place / f"jobs/{JOB}"
    home.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as other:
        (home / "watch.pid").write_text(f"{other.pid}\n")
        assert script("epilog.sh").returncode == 0
        assert other.poll() is None
        other.kill()


def test_a_node_without_the_program_is_not_drained(place: Path, script: Script) -> None:
    (place / "whystall").unlink()
    done = script("prolog.sh")
    assert done.returncode == 0
    assert "is not watched" in done.stderr
    for name in ("prolog.sh", "epilog.sh"):
        done = script(name, job="../../etc")
        assert (done.returncode, "SLURM_JOB_ID" in done.stderr) == (0, True)
    assert not (place / "jobs").exists()


@pytest.mark.thorough
def test_a_job_is_diagnosed_from_within_by_srun(place: Path, script: Script) -> None:
    program = Path(sys.executable).with_name("whystall")
    (place / "slurm.conf").write_text(f"whystall={program}\n")
    env = {**os.environ, "SLURM_JOB_ID": JOB, "SLURM_PROCID": "0"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], env=env) as job:
        done = script("diagnose.sh", "--duration", "1", "--engine", "procfs", "--json")
        job.kill()
    assert done.returncode == 0, done.stderr
    assert f'"target": "pid {job.pid} ' in done.stdout
    gone = script("diagnose.sh", job=JOB + "1")
    assert gone.returncode == 1
    assert f"no process of job {JOB}1 was found" in gone.stderr
