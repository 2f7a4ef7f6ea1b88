"""What `whystall doctor` answers with."""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel, ConfigDict, Field


class State(str, Enum):
    """`OK`; `LIMITED`: works, but not in full; `MISSING`."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


class Check(BaseModel):
    """One thing looked at: what was `found`, what it `means` for the tools, and the command or step that fixes it.

    `group`: what it is about (kernel, rights, surroundings, programs, python, devices, own).
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    state: State
    found: str
    means: str = ""
    fix: str = ""
    group: str = ""


class Health(BaseModel):
    """All checks; `engines` that can observe here, best first (empty: nothing can); the engine of each collector, and
    of each tool: that of the dearest it needs, `traces` for those that read files only, `none` for what cannot run.

    `order`: every engine there is, best first. `refused`: why an engine cannot run here at all. `why`: per tool, why
    each engine better than its own is not used for it.
    """

    model_config = ConfigDict(extra="forbid")

    checks: list[Check]
    engines: list[str]
    collectors: dict[str, str] = Field(default_factory=dict)
    tools: dict[str, str] = Field(default_factory=dict)
    order: list[str] = Field(default_factory=list)
    refused: dict[str, str] = Field(default_factory=dict)
    why: dict[str, dict[str, str]] = Field(default_factory=dict)
