"""What the watcher asks of the process that investigates a stall, and its answer; both are JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from whystall.agent_server.watch.progress import Stall


@dataclass(frozen=True)
class Request:
    """A stall to investigate. `slices`: the directory of the recorder; empty if `recording`, where it is stored or is
    to be stored, exists already. `start_ns`, `end_ns`: of the recording, CLOCK_MONOTONIC. `live_pid`: observe this
    process now, in addition, for `live_s`.
    `earlier`: the diagnosis made while the stall lasted. `noticed_ns`: when the stall was noticed."""

    job: str
    name: str
    pid: int
    pids: tuple[int, ...]
    rank: int | None
    stall: Stall
    start_ns: int
    end_ns: int
    noticed_ns: int
    slices: str
    recording: str
    live_pid: int | None = None
    live_s: float = 0.0
    earlier: str = ""
    tickets: bool = True

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """Raises ValueError or TypeError for what `to_json` did not write."""
        given = json.loads(text)
        return cls(**{**given, "pids": tuple(given["pids"]), "stall": Stall(**given["stall"])})


@dataclass(frozen=True)
class Answer:
    """The result of an investigation. `action`, `why`, `usual`: see `policy.Decision`; `error`: why there is none.
    `line`: the line of the program that ran for the largest part, with its share of the stall and of the time before,
    percent, if the program's own work is the answer."""

    diagnosis: str = ""
    verdict: str = ""
    cause: str = ""
    severity: str = ""
    action: str = "log"
    why: str = ""
    usual: bool = False
    ticket: str = ""
    new: bool = False
    title: str = ""
    error: str = ""
    line: str = ""
    line_pct: float = 0.0
    line_before_pct: float | None = None
    looks: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """Raises ValueError or TypeError for what `to_json` did not write."""
        return cls(**json.loads(text))
