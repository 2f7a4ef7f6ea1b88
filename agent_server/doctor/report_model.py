"""The result of `whystall doctor`."""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel, ConfigDict, Field


class State(str, Enum):
    """`OK`; `LIMITED`: works, but not in full; `MISSING`."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


class Check(BaseModel):
    """One check: what was `found`, what it `means` for the tools, and the command or step that fixes it. `group`:
    kernel, rights, surroundings, programs, python, devices or own.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    state: State
    found: str
    means: str = ""
    fix: str = ""
    group: str = ""


class Health(BaseModel):
    """All checks. `engines` that can observe here, best first; the engine of each collector, and of each tool: the
    costliest it needs, ``traces`` for those that only read files, ``none`` for those that cannot run. `order`: every
    engine, best first. `refused`: why an engine cannot run here. `why`: per tool, why each better engine is not used.
    """

    model_config = ConfigDict(extra="forbid")

    checks: list[Check]
    engines: list[str]
    collectors: dict[str, str] = Field(default_factory=dict)
    tools: dict[str, str] = Field(default_factory=dict)
    order: list[str] = Field(default_factory=list)
    refused: dict[str, str] = Field(default_factory=dict)
    why: dict[str, dict[str, str]] = Field(default_factory=dict)
