"""The metrics of inference servers that are read, from ``metrics.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["gauge", "counter", "histogram"]


class _Quantity(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    names: list[str] = Field(min_length=1)
    factor: float = Field(default=1.0, gt=0)
    labels: dict[str, str] = Field(default_factory=dict)


class Server(BaseModel):
    """A kind of inference server. `processes`: words in its command lines; `ports`: where it serves its metrics if its
    command line states none; `path`: and at which path. `progress`: quantities that grow while a request advances, each
    at least every `seldom_s` seconds; None: all that count; empty: none does before a request ends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sources: list[str] = Field(min_length=1)
    processes: list[str]
    ports: list[int]
    path: str = "/metrics"
    progress: list[str] | None = None
    seldom_s: float = Field(default=0.0, ge=0)
    quantities: dict[str, _Quantity]


@dataclass(frozen=True)
class Metric:
    """What a sample of a given name measures. `rank`: 0 is the preferred name of its quantity."""

    server: str
    quantity: str
    kind: Kind
    part: str
    factor: float
    rank: int
    labels: Mapping[str, str] = field(default_factory=dict)


@cache
def servers() -> dict[str, Server]:
    """Return the known servers by name."""
    text = Path(__file__).with_name("metrics.yaml").read_text("utf-8")
    return {name: Server.model_validate(about) for name, about in yaml.safe_load(text).items()}


@cache
def metrics() -> dict[str, Metric]:
    """Return what each sample measures, by the name of the sample (``..._bucket``)."""
    found = {}
    for server, about in servers().items():
        for quantity, known in about.quantities.items():
            for rank, name in enumerate(known.names):
                for ending, part in _ENDINGS[known.kind].items():
                    found[name + ending] = Metric(
                        server, quantity, known.kind, part, known.factor, rank, dict(known.labels)
                    )
    return found


# Old clients write counters without the suffix: https://prometheus.io/docs/instrumenting/exposition_formats/
_ENDINGS: dict[str, dict[str, str]] = {
    "gauge": {"": "value"},
    "counter": {"": "count", "_total": "count"},
    "histogram": {"_bucket": "bucket", "_sum": "sum", "_count": "count"},
}
