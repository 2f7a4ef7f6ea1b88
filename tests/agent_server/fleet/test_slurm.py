"""Slurm's jobs, by a squeue that prints what the real one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.agent_server.fleet.slurm import choose, hosts_of, parse
from whystall.agent_server.job_lookup.models import Wanted
from whystall.agent_server.job_lookup.search_terms import search_terms
from whystall.tools.contract.errors import ErrorCode, ToolError

RUNNING = "4242|4242|RUNNING|a,b|llama 7b | try 2\n"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that records its arguments, and prints the file ``out``."""
    program = tmp_path / "squeue"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\ncat {tmp_path}/out\ncat {tmp_path}/err >&2\n'
        f"exit $(cat {tmp_path}/rc)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, text in (("out", RUNNING), ("err", ""), ("rc", "0")):
        (tmp_path / name).write_text(text)
    return tmp_path


def refused(job: str) -> ToolError:
    with pytest.raises(ToolError) as caught:
        hosts_of(job)
    assert "\n" not in caught.value.message
    return caught.value


def test_the_hosts_of_a_job_by_its_id(squeue: Path) -> None:
    assert hosts_of("4242") == [("a", "slurm job 4242"), ("b", "slurm job 4242")]
    assert (squeue / "words").read_text().splitlines()[-2:] == ["--jobs", "4242"]


def test_the_hosts_of_a_job_by_its_name(squeue: Path) -> None:
    assert [host for host, _ in hosts_of("llama 7b")] == ["a", "b"]
    assert (squeue / "words").read_text().splitlines()[-2:] == ["--name", "llama 7b"]


def test_the_words_are_those_by_which_a_host_finds_the_job(squeue: Path) -> None:
    (_, words), *_ = hosts_of("4242")
    assert search_terms(Wanted(text=words), ("a",)).exact == (("slurm_job", "4242"),)


def test_a_task_of_an_array_is_found_by_its_own_number() -> None:
    rows = list(parse("4242_3|4245|RUNNING|a|x\n4242_[4-10]|4242|PENDING||x\n"))
    assert choose(rows, "4242") == [("a", "slurm job 4245")]


def test_parts_of_a_heterogeneous_job_are_one() -> None:
    rows = list(parse("50+0|50|RUNNING|a|x\n50+1|51|RUNNING|b|x\n"))
    assert choose(rows, "50") == [("a", "slurm job 50"), ("b", "slurm job 51 slurm job 50")]


def test_a_part_of_a_heterogeneous_job_is_chosen_by_its_number(squeue: Path) -> None:
    (squeue / "out").write_text("50+0|50|RUNNING|a|x\n50+1|51|RUNNING|b|x\n")
    ((host, words),) = hosts_of("50+1")
    assert host == "b"
    assert search_terms(Wanted(text=words), ("b",)).exact == (("slurm_job", "51"), ("slurm_job", "50"))


def test_of_several_jobs_none_is_chosen() -> None:
    rows = list(parse("".join(f"{n}|{n}|RUNNING|a|x\n" for n in range(1, 9))))
    with pytest.raises(ToolError) as caught:
        choose(rows, "x")
    assert caught.value.message == "8 jobs of Slurm match 'x': 1, 2, 3, 4, 5 and 3 more"


@pytest.mark.parametrize(
    ("out", "err", "rc", "code", "holding"),
    [
        ("", "slurm_load_jobs error: Invalid job id specified", "1", ErrorCode.NOT_FOUND, "has no job"),
        ("", "", "0", ErrorCode.NOT_FOUND, "has no job"),
        ("4242|4242|PENDING||x\n", "", "0", ErrorCode.NOT_FOUND, "4242 is PENDING"),
        ("", "squeue: error: Unable to contact slurm\x1b[0m\nmore", "1", ErrorCode.IO_ERROR, "Unable to contact"),
        ("garbage\n|||\n\x00\n", "", "0", ErrorCode.NOT_FOUND, "has no job"),
        ("4242|4242|RUNNING|a;rm|x\n", "", "0", ErrorCode.BAD_ARGUMENT, "not a host"),
    ],
)
def test_what_squeue_may_answer(squeue: Path, out: str, err: str, rc: str, code: ErrorCode, holding: str) -> None:
    for name, text in (("out", out), ("err", err), ("rc", rc)):
        (squeue / name).write_text(text)
    error = refused("4242")
    assert error.code is code
    assert holding in error.message


@pytest.mark.parametrize("job", ["-x", "", "a,b", "a\nb", "x" * 300, "a\x00"])
def test_what_is_no_job(job: str) -> None:
    assert refused(job).code is ErrorCode.BAD_ARGUMENT


def test_slurm_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed" in refused("4242").message


def test_nodes_as_slurm_writes_them(squeue: Path) -> None:
    pytest.importorskip("ClusterShell")
    (squeue / "out").write_text("7|7|RUNNING|node[001-003,010]|x\n")
    assert [host for host, _ in hosts_of("7")] == ["node001", "node002", "node003", "node010"]
