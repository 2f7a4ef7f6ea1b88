"""Real jobs of several ranks on this machine, each with its fault: the command line names the rank and the kind.

PyTorch on gloo, four ranks, one seed; the matrix of seeds and sizes is a benchmark (benchmarks/slow_node_matrix.py).
What must be said of each variant, and why, is in workloads/ranks_table.py.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import warm_command
from ranks_table import AT_TIMES, VARIANTS, score
from running import Running

RANKS = 4
SEED = 1


@dataclass(frozen=True)
class Jobs:
    """The jobs that ran, a directory for each variant, and where whystall keeps its state."""

    directory: Path
    home: Path

    def truth(self, variant: str) -> list[int]:
        """The ranks with the fault."""
        told = json.loads((self.directory / variant / "truth.json").read_text())
        slow: list[int] = told["slow_ranks"]
        return slow

    def account(self, variant: str, rank: int, part: str) -> float:
        """What a rank itself says that a part of its steps took, ms, on average over the traced steps."""
        lines = (self.directory / variant / "logs" / f"rank{rank}.jsonl").read_text().splitlines()
        values = [line[part] for line in map(json.loads, lines) if line["step"] >= 0]
        return float(sum(values) / len(values))

    def run(self, tool: str, *arguments: str) -> dict[str, Any]:
        """``whystall run TOOL ... --json``."""
        environment = {**os.environ, "WHYSTALL_HOME": str(self.home)}
        done = warm_command.run("run", tool, *arguments, "--json", env=environment)
        # 0 nothing found, 1 abnormal findings; an error prints no result
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def check(self, variant: str) -> dict[str, Any]:
        """What slow_node_check says of a variant."""
        return self.run("slow_node_check", "--traces", str(self.directory / variant / "traces"))


# Where the answer may be open: gloo's events name no group; batches of two workers may come in pairs, and then every
# other step is a fast one.
ABSTAINS = {"link_mesh": "unmatched", "loader_workers": "noise"}
# Nothing was done to these, but four ranks on two CPUs hinder each other, some more than others: it may stay open, and
# nobody may be accused.
OPEN = ("nothing_mesh", "nothing_stages")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """All variants, one after the other."""
    directory = tmp_path_factory.mktemp("jobs")
    with Running("ranks_job.py", "--out", directory, "--ranks", RANKS, "--seed", SEED, *VARIANTS) as program:
        program.wait(600)
    return Jobs(directory, tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_fault_is_named_by_verdict_ranks_and_class(jobs: Jobs, variant: str) -> None:
    result = jobs.check(variant)
    found = score(variant, jobs.truth(variant), result)
    if ABSTAINS.get(variant) in result["data"]["reasons"]:  # the recorded jobs must be told
        assert (result["data"]["verdict"], result["data"]["accused"]) == ("cannot_tell", [])
        return
    if variant in OPEN and result["data"]["verdict"] == "cannot_tell":
        assert result["data"]["accused"] == []
        return
    assert found.right, f"{found}\n{json.dumps(result['data'], indent=1)}"


@pytest.mark.parametrize("variant", ["every_fifth", "drift"])
def test_a_fault_in_some_steps_is_named_with_its_rank_and_steps(tmp_path: Path, variant: str) -> None:
    """Two of the four shapes: the benchmark asks for all, with ten seeds each."""
    with Running("ranks_job.py", "--out", tmp_path, "--ranks", RANKS, "--seed", SEED, variant) as program:
        program.wait(300)
    jobs = Jobs(tmp_path, tmp_path / "home")
    result = jobs.check(variant)
    assert score(variant, jobs.truth(variant), result).right, json.dumps(result["data"], indent=1)
    slow = result["data"]["accused"][0]["slow_steps"]
    strengths = [AT_TIMES[variant].strength(step) for step in range(AT_TIMES[variant].steps)]
    # the profiler counts its warm-up steps too; a step beside them may be slow by chance
    due = {4 + step for step, strength in enumerate(strengths) if strength}
    assert len(set(slow["steps"]) - due) <= len(due) // 10


def test_the_loader_is_as_slow_as_the_rank_itself_says(jobs: Jobs) -> None:
    (accused,) = jobs.check("loader")["data"]["accused"]
    (loader,) = [row for row in accused["evidence"] if row["what"] == "loader"]
    assert loader["mine"] == pytest.approx(jobs.account("loader", accused["rank"], "load_ms"), rel=0.1)


def test_the_rank_waited_for_costs_no_more_than_what_it_did_more(jobs: Jobs) -> None:
    (accused,) = jobs.check("compute")["data"]["accused"]
    extra_ms = jobs.account("compute", accused["rank"], "extra_ms")
    # the others' waits end when it arrives; on a busy machine they themselves are late now and then
    assert 0.5 * extra_ms <= accused["lost_ms_per_step"] <= 1.5 * extra_ms


def test_a_slow_link_that_one_run_cannot_show_shows_beside_a_healthy_one(jobs: Jobs) -> None:
    """One group of all ranks, equally slow for all: two runs tell what a single one does not."""
    places = [str(jobs.directory / variant / "traces") for variant in ("nothing", "link")]
    result = jobs.run("compare_runs", "--before", places[0], "--after", places[1])
    changes = [finding for finding in result["findings"] if finding["kind"] == "run.difference"]
    most = max(changes, key=lambda finding: finding["metrics"]["change_ms"])
    assert most["attributes"]["what"] in ("communication", "transfer"), json.dumps(result["data"], indent=1)


@pytest.mark.parametrize(("variant", "frame"), [("compute", "aten::matmul"), ("loader", "enumerate(DataLoader)")])
def test_what_is_offered_next_names_the_operator_that_makes_the_rank_slow(jobs: Jobs, variant: str, frame: str) -> None:
    found = jobs.check(variant)["data"]
    (call,) = found["next"]
    assert [call["rank"]] == jobs.truth(variant)
    assert call["peer"] not in jobs.truth(variant)
    arguments = [part for name, value in call["arguments"].items() for part in (f"--{name}", str(value))]
    result = jobs.run(call["tool"], *arguments)
    first = result["data"]["rows"][0]
    assert (first["role"], first["name"].startswith(frame)) == ("proven", True), json.dumps(result["data"], indent=1)
    assert first["direction"] in ("grew", "appeared")
