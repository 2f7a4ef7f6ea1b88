"""Scenarios: faults as data. The files are in `scenarios/`; docs/benchmark.md explains the fields."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE / "scenarios"
Verdict = Literal["confirmed", "likely", "inconclusive", "healthy", "idle"]
Dimension = Literal["code", "pid", "file", "device", "cgroup", "peer", "wait"]


class Model(BaseModel):
    """Base class: an unknown field is an error of spelling."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Words(Model):
    en: str
    zh: str


class Process(Model):
    """A program of the case. The role `job` is diagnosed. `part`: installed as its `callbacks.py`."""

    role: str = "job"
    program: str
    part: str = "nothing.py"
    settings: dict[str, Any] = Field(default_factory=dict)
    changed: dict[str, Any] = Field(default_factory=dict, description="settings after the injection")
    environment: dict[str, str] = Field(default_factory=dict)


class Injection(Model):
    """An injector by name, with its arguments."""

    use: str
    with_: dict[str, Any] = Field(default_factory=dict, alias="with")


class Check(Model):
    """A reading that must hold while the fault lasts.

    `at_least`, `at_most`: bounds of its value; `over_baseline`, `under_baseline`: least and largest ratio to its value
    before the injection.
    """

    reading: str
    of: dict[str, Any] = Field(default_factory=dict)
    at_least: float | None = None
    at_most: float | None = None
    over_baseline: float | None = None
    under_baseline: float | None = None


class Expected(Model):
    """The accepted answers.

    `causes`: ids accepted as the root cause, best first; empty for a control. `scope`: per dimension the accepted
    facts, of which one must be in the answer: `code` as ``FILE#MARK``, `pid` as a role, `wait` as a code, others as
    names of facts that the injectors set. `tempting`: wrong causes that the evidence suggests. `verdicts`: accepted.
    `also`: causes that are true beside the root cause, and not counted as wrong.
    """

    causes: list[str] = Field(default_factory=list)
    also: list[str] = Field(default_factory=list)
    tempting: list[str] = Field(default_factory=list)
    scope: dict[Dimension, list[str]] = Field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ("confirmed", "likely")


class Rights(Model):
    """The rights of the diagnoser. `capabilities` none: as root in a container that was given none."""

    user: str = "root"
    capabilities: Literal["all", "none"] = "all"


class Scenario(Model):
    """One fault or control. `id` is neutral: it is visible to the diagnoser.

    `unit`: the event of the log whose duration is the job's speed. `baseline_s`, `proof_s`: how long the job runs
    before the injection, and at most until the oracle must hold. `account`: the marks of the lines that the log's
    phases time, to compare shares. `needs`: features of the kernel (`needs.CHECKS`), else the case runs in a guest
    or is void. `diagnoser`: its rights.
    """

    id: str = Field(pattern=r"^[a-z][0-9]{2}$")
    title: str
    group: str
    control: bool = False
    processes: list[Process] = Field(min_length=1)
    inject: list[Injection] = Field(default_factory=list)
    symptom: Words
    unit: str = "step"
    baseline_s: float = 3.0
    proof_s: float = 10.0
    oracle: list[Check] = Field(min_length=1)
    expected: Expected
    account: dict[str, str] = Field(default_factory=dict)
    needs: list[str] = Field(default_factory=list)
    diagnoser: Rights = Rights()


def drawn(value: Any, rng: random.Random) -> Any:
    """Return settings with every ``{between: [a, b]}`` and ``{one_of: [...]}`` replaced by a random value."""
    if isinstance(value, Mapping):
        if set(value) == {"between"}:
            low, high = value["between"]
            return rng.randint(low, high) if isinstance(low, int) else round(rng.uniform(low, high), 4)
        if set(value) == {"one_of"}:
            return rng.choice(value["one_of"])
        return {key: drawn(item, rng) for key, item in value.items()}
    if isinstance(value, list):
        return [drawn(item, rng) for item in value]
    return value


def load(directory: Path = SCENARIOS) -> list[Scenario]:
    """Return all scenarios, ordered by id; raise ValueError if one is wrong or an id is used twice."""
    found = [
        Scenario.model_validate(entry)
        for path in sorted(directory.glob("*.yaml"))
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
    ids = [scenario.id for scenario in found]
    if twice := {one for one in ids if ids.count(one) > 1}:
        raise ValueError(f"ids used twice: {', '.join(sorted(twice))}")
    return sorted(found, key=lambda scenario: scenario.id)
