"""A finding: one measured fact about one subject, without prose."""

from __future__ import annotations

import hashlib
import re
from enum import Enum

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from whystall.tools.contract.kinds import KINDS, KindSpec
from whystall.tools.contract.text import path_pattern


class Severity(str, Enum):
    """How severe a finding is for its subject; ordered by `rank`."""

    INFO = "info"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Return 0 for `INFO` to 3 for `CRITICAL`."""
        return list(Severity).index(self)


class Polarity(str, Enum):
    """`ABNORMAL`, or measured and `NORMAL`, which rules a cause out."""

    ABNORMAL = "abnormal"
    NORMAL = "normal"


class Subject(BaseModel):
    """What a finding is about. `type` is the primary subject; the other fields are its process and place.

    `path` is a full path on the observed host, or a numbered series of paths with ``*`` (see `path_pattern`).
    `rank`: of a distributed job; `host`: where it ran. `container` (its id) and `pod` (``namespace/name``; only the
    name or the uid if no more is known): of the process `pid`, or of the cgroup. A path is as that
    process sees it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    type: str
    pid: int | None = None
    tid: int | None = None
    comm: str | None = None
    path: str | None = None
    device: str | None = None
    cgroup: str | None = None
    rank: int | None = None
    host: str | None = None
    container: str | None = None
    pod: str | None = None


class Interval(BaseModel):
    """Nanoseconds since the start of the recording, `end_ns` >= `start_ns`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    start_ns: int = Field(ge=0)
    end_ns: int = Field(ge=0)

    @model_validator(mode="after")
    def _forward(self) -> Interval:
        if self.end_ns < self.start_ns:
            raise ValueError("ends before it starts")
        return self

    def overlaps(self, other: Interval) -> bool:
        """Return whether the two intervals overlap."""
        return self.start_ns <= other.end_ns and other.start_ns <= self.end_ns


class Finding(BaseModel):
    """One measured fact. `id` is unique within a run; `fingerprint` is stable across runs and hosts.

    `metrics` and `attributes` have only keys that `KINDS` declares for `kind`; else ValueError.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    id: str = ""
    fingerprint: str = ""
    kind: str
    subject: Subject
    interval: Interval
    metrics: dict[str, FiniteFloat]
    attributes: dict[str, str] = Field(default_factory=dict)
    severity: Severity = Severity.INFO
    polarity: Polarity

    @property
    def spec(self) -> KindSpec:
        """Return the declaration of this finding's kind."""
        return KINDS[self.kind]

    @property
    def window_pct(self) -> float:
        """Return the finding's share of its thread's time in the window, percent; 0 if the kind has none."""
        return self.metrics.get(self.spec.share, 0.0) if self.spec.share else 0.0

    @model_validator(mode="after")
    def _in_vocabulary(self) -> Finding:
        spec = KINDS.get(self.kind)
        if spec is None:
            raise ValueError(f"unknown finding kind {self.kind!r}")
        extra = (set(self.metrics) - set(spec.metrics)) | (set(self.attributes) - spec.attributes)
        if extra:
            raise ValueError(f"{self.kind} does not declare {sorted(extra)}")
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", _fingerprint(self))  # the model is frozen
        return self


# Attributes that distinguish findings of one kind about one thread, after `syscall` and `operation`: old fingerprints
# must not change.
_DISTINGUISH = ("neighbour", "interrupt", "reason", "ranks", "name", "what", "error", "xid", "condition", "throttle")
# save (train.py:212)
_LINE = re.compile(r":\d+\)$")


def _of_path(words: dict[str, str]) -> list[str]:
    """Return what identifies a row of a critical path: the wait, and the function without its line, which changes with
    edits of the program.
    """
    function = _LINE.sub(")", words.get("function") or words.get("code", ""))
    return [words.get("wait") or words.get("mode", ""), function]


def _fingerprint(finding: Finding) -> str:
    """Hash the stable parts: kind, command, file series, device, system call, neighbour."""
    subject, words = finding.subject, finding.attributes
    parts = [
        finding.kind,
        subject.type,
        subject.comm or "",
        path_pattern(subject.path) if subject.path else "",
        subject.device or "",
        subject.cgroup or "",
        words.get("syscall", ""),
        words.get("operation", ""),
        *(f"{name}={words[name]}" for name in _DISTINGUISH if words.get(name)),
        *([f"rank={subject.rank}"] if subject.rank is not None else []),
        *(_of_path(words) if finding.kind.startswith("path.") else []),
    ]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
