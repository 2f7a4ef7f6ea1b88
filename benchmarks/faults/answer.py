"""Run a diagnoser and parse its answer: a command that takes ``--pid`` and ``--symptom`` and prints JSON."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.faults.scenario import Dimension, Verdict
from benchmarks.faults.undo import Journal, kill_tree, start_time


class Row(BaseModel):
    """A row of the account: percent of the window for which a line of code ran or waited."""

    model_config = ConfigDict(extra="ignore")

    code: str = ""
    wait: str = ""
    pct: float = 0.0
    text: str = ""


class Evidence(BaseModel):
    """A measurement that the answer rests on. `measure`: a word of judgement.yaml; others do not count."""

    model_config = ConfigDict(extra="ignore")

    measure: str
    value: float | None = None
    unit: str = ""
    text: str = ""


class Advice(BaseModel):
    """What to do. `action`: a word of judgement.yaml; others do not count."""

    model_config = ConfigDict(extra="ignore")

    action: str = ""
    text: str = ""


class Answer(BaseModel):
    """The answer of a diagnoser. `causes`: ids of docs/benchmark.md, best first; `scope`: facts of the answer by
    dimension, `code` as ``function (file.py:41)``. `evidence`, `advice`: best first. `rows`: the account of the window,
    if any.
    """

    model_config = ConfigDict(extra="ignore")

    verdict: Verdict
    causes: list[str] = Field(default_factory=list)
    scope: dict[Dimension, list[str]] = Field(default_factory=dict)
    evidence: list[Evidence] = Field(default_factory=list)
    advice: list[Advice] = Field(default_factory=list)
    rows: list[Row] = Field(default_factory=list)
    text: str = ""
    detail: dict[str, Any] = Field(default_factory=dict)


class AnswerError(RuntimeError):
    """The diagnoser failed or printed something else."""


def run_diagnoser(
    command: Sequence[str],
    pid: int,
    symptom: str,
    limit_s: float,
    cwd: Path | None = None,
    journal: Journal | None = None,
) -> tuple[Answer, float]:
    """Run a diagnoser; return its answer and its duration in seconds. Raises AnswerError.

    Afterwards, and also by `journal` if this process is killed, all processes that it started are killed: what it left
    running would disturb the next one.
    """
    start = time.monotonic()
    with subprocess.Popen(
        [*command, "--pid", str(pid), "--symptom", symptom],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        start_new_session=True,
    ) as process:
        started = start_time(process.pid)
        if journal is not None:
            journal.add("kill_tree", process.pid, started)
        try:
            output, errors = process.communicate(timeout=limit_s)
            seconds = time.monotonic() - start
        except subprocess.TimeoutExpired as error:
            raise AnswerError(f"no answer within {limit_s:.0f} s") from error
        finally:
            kill_tree(process.pid, started if process.returncode is None else None)
    if process.returncode:
        raise AnswerError(f"exit status {process.returncode}: {errors.strip()[-500:]}")
    try:
        return Answer.model_validate(json.loads(output)), seconds
    except (ValueError, ValidationError) as error:
        raise AnswerError(f"not an answer: {str(error)[:500]}") from error
