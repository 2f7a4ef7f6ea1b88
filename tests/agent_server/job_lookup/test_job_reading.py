"""What processes say of their jobs: control groups as they were recorded, environments, command lines; real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from whystall.agent_server.job_lookup import cmdline, inventory
from whystall.tools.node import environment
from whystall.tools.node.environment import Identity

ID = "3f4a" * 16
OTHER = "0b1c" * 16
UID = "0f2d5f7c-8c56-4d0b-9a4b-1b2c3d4e5f60"


def environ(**variables: str) -> bytes:
    return b"".join(f"{name}={value}".encode() + b"\0" for name, value in variables.items())


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "n0",
             "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "llama-7b"},
            Identity(rank=3, local_rank=1, group_rank=1, world_size=8, master="n0:29500", run_id="llama-7b"),
        ),
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}, Identity(rank=0)),
        (
            {"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "sft", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5",
             "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "SLURM_TASKS_PER_NODE": "4(x4)"},
            Identity(slurm_job="42", job_name="sft", slurm_step="0", rank=5, local_rank=1, local_size=4, world_size=16),
        ),
        (
            {"SLURM_JOBID": "44", "SLURM_ARRAY_JOB_ID": "43", "SLURM_ARRAY_TASK_ID": "1"},
            Identity(slurm_job="44", slurm_array="43_1"),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-n0-1@1"},
            Identity(rank=2, world_size=4, mpi_job="prterun-n0-1@1"),
        ),
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_TASKS_PER_NODE": "1"}, Identity(local_size=8)),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, Identity()),  # nodes differ
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Identity(rank=1, world_size=2)),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "trainer-0", "POD_NAMESPACE": "ml"},
            Identity(pod_name="trainer-0", namespace="ml", hostname="trainer-0"),
        ),
        ({"HOSTNAME": "gpu-7"}, Identity(hostname="gpu-7")),
        # numbers that are none, names with control characters
        ({"RANK": "-1", "WORLD_SIZE": "many", "JOB_NAME": "a\nb\x1b[2J"}, Identity(job_name="a\\x0ab\\x1b[2J")),
    ],
)  # fmt: skip
def test_environments(variables: dict[str, str], expected: Identity) -> None:
    assert environment.identity(environ(**variables)) == expected


def test_nothing_but_the_listed_variables_leaves_the_reader() -> None:
    secret = "s3cr3t-value"
    raw = environ(AWS_SECRET_ACCESS_KEY=secret, RANK="1", WANDB_API_KEY=secret, PATH=f"/{secret}", rank=secret)
    assert environment.identity(raw) == Identity(rank=1)
    assert environment.identity(b"no equals\0=value\0RANK\0\xff\xfe=1\0" + raw).rank == 1
    assert environment.identity(b"A" * environment.LIMIT + b"\0" + raw) == Identity()  # beyond the bound


@pytest.mark.parametrize(
    ("arguments", "program", "words"),
    [
        (["/usr/bin/python3", "-u", "/home/ann/train.py", "--model", "llama-7b"], "train.py",
         ("/usr/bin/python3", "/home/ann/train.py", "llama-7b")),
        (["python", "-m", "torch.distributed.run", "--nproc", "8", "train.py"], "torch.distributed.run",
         ("python", "torch.distributed.run", "8", "train.py")),
        (["python", "-X", "dev", "-W", "error", "x.py"], "x.py", ("python", "dev", "error", "x.py")),
        (["python", "-c", "import secret; run('llama')"], "python", ("python",)),
        (["bash", "-lc", "train llama"], "bash", ("bash",)),
        (["bash", "/dev/fd/3"], "bash", ("bash", "/dev/fd/3")),
        (["/opt/bin/server", "--api-key", "hunter2", "--name=prod"], "server", ("/opt/bin/server", "prod")),
        (["app", "--password=hunter2", "TOKEN=hunter2", "MODE=fast"], "app", ("app", "fast")),
        (["app", "--tokenizer", "bpe", "--max-tokens", "512", "sk-abcdefgh12345678"], "app", ("app", "bpe", "512")),
        (["app", "https://user:hunter2@host/x"], "app", ("app",)),
        (["nginx: worker process"], "nginx", ("nginx: worker process",)),
        ([], "comm", ()),
    ],
)  # fmt: skip
def test_command_lines(arguments: list[str], program: str, words: tuple[str, ...]) -> None:
    assert cmdline.argv(b"".join(a.encode() + b"\0" for a in arguments)) == arguments
    assert cmdline.program(arguments, "comm") == program
    assert cmdline.words(arguments) == words


@contextmanager
def running(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A real process that waits, with exactly these variables."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.communicate("")


def test_a_real_process_tells_its_job_and_keeps_its_secrets() -> None:
    said = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "SECRET": "hunter2"}
    with running("--password", "hunter2", TORCHELASTIC_RUN_ID="run-1", **said) as process:
        seen = inventory.read(also=[process.pid])
        found = next(p for p in seen.processes if p.pid == process.pid)
        assert found.identity == Identity(rank=3, world_size=8, master="127.0.0.1:1", run_id="run-1")
        assert found.start_ticks == inventory.start_ticks(process.pid)
        assert "hunter2" not in repr(seen)
    assert inventory.start_ticks(process.pid) is None


def test_we_are_not_among_them_and_a_bound_is_told() -> None:
    seen = inventory.read()
    assert os.getpid() not in {process.pid for process in seen.processes}
    with running() as process:
        few = inventory.read(most=1, also=[process.pid])
        assert few.missed.beyond >= len(seen.processes) - 2
        assert process.pid in {p.pid for p in few.processes}


def test_processes_that_may_not_be_read_or_vanish_are_told(tmp_path: Path) -> None:
    stat = f"({'x'}) S 1 {' '.join(['1'] * 50)}"
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "stat").write_text(f"5 {stat}")
    (tmp_path / "5" / "cmdline").write_bytes(b"worker\0")
    (tmp_path / "6").mkdir()  # its files are gone
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("")  # it is exiting
    seen = inventory.read(tmp_path)
    assert [(p.pid, p.program) for p in seen.processes] == [(5, "worker")]
    assert seen.missed.vanished == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="root reads everything; another user does not need to be made")
def test_an_environment_of_another_user_is_counted() -> None:
    code = (
        "import os, sys; from whystall.agent_server.job_lookup import inventory;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); seen = inventory.read();"
        "print(seen.missed.denied, any(p.pid == int(sys.argv[1]) for p in seen.processes))"
    )
    with running(RANK="1") as process:
        done = subprocess.run(
            [sys.executable, "-c", code, str(process.pid)], capture_output=True, text=True, cwd="/", timeout=60
        )
    denied, listed = done.stdout.split()
    assert int(denied) > 0
    assert listed == "True"
