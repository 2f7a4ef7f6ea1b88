"""Store the results of cases in a file of JSON lines, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.faults.answer import Answer
from benchmarks.faults.key import Key
from benchmarks.faults.score import Score


class Result(BaseModel):
    """The result of one diagnoser on one case. `void`: why the case does not count; `failed`: why there is no answer.

    `slowdown`: relative increase of the duration of the job's unit during the diagnosis (0.05: 5 %); None with too few
    events. `others_cpu_pct`: CPU time of processes outside the case meanwhile, percent of one CPU. `kernel`: its
    release; `emulated`: it ran in an emulated machine, so that times do not compare with those of a host. `key`: what
    the answer is compared with.
    """

    model_config = ConfigDict(extra="ignore")

    scenario: str
    title: str
    group: str
    control: bool
    repeat: int
    diagnoser: str
    commit: str
    seed: int
    expected: list[str]
    void: str = ""
    failed: str = ""
    proofs: list[dict[str, Any]] = Field(default_factory=list)
    shares: dict[str, float] = Field(default_factory=dict)
    key: Key | None = None
    answer: Answer | None = None
    score: Score | None = None
    seconds: float | None = None
    slowdown: float | None = None
    others_cpu_pct: float = 0.0
    kernel: str = ""
    emulated: bool = False


def read(path: Path) -> list[Result]:
    """Return the results in a file of a run, or in the JSON of a report (``.json``)."""
    if path.suffix == ".json":
        return [Result.model_validate(one) for one in json.loads(path.read_text())["results"]]
    return [Result.model_validate_json(line) for line in _lines(path)]


def _lines(path: Path) -> list[str]:
    # a killed run may have left an incomplete line
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Results:
    """The file of results."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        self._all: list[Result] = []
        if path.exists():
            self._all = read(path)
            path.write_text("".join(_lines(path)))

    def has(self, scenario: str, repeat: int, diagnoser: str, commit: str) -> bool:
        """Return whether there is a result of this case at this commit."""
        key = (scenario, repeat, diagnoser, commit)
        return any((r.scenario, r.repeat, r.diagnoser, r.commit) == key for r in self._all)

    def add(self, *results: Result) -> None:
        """Append the results of a case."""
        self._all += results
        with self._path.open("a") as file:
            file.write("".join(result.model_dump_json() + "\n" for result in results))

    def of(self, scenarios: set[str], diagnosers: set[str], repeats: int, commit: str) -> list[Result]:
        """Return the results of these cases at a commit, by scenario."""
        found = [
            r
            for r in self._all
            if r.scenario in scenarios and r.diagnoser in diagnosers and r.repeat < repeats and r.commit == commit
        ]
        return sorted(found, key=lambda r: (r.scenario, r.diagnoser, r.repeat))
