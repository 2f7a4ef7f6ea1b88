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
    """One thing looked at: what was `found`, what it `means` for the tools, and the command or step that fixes it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    state: State
    found: str
    means: str = ""
    fix: str = ""


class Health(BaseModel):
    """All checks; `engines` that can observe here, best first (empty: nothing can); the engine of each collector, and
    of each tool: that of the dearest it needs, `traces` for those that read files only.
    """

    model_config = ConfigDict(extra="forbid")

    checks: list[Check]
    engines: list[str]
    collectors: dict[str, str] = Field(default_factory=dict)
    tools: dict[str, str] = Field(default_factory=dict)
