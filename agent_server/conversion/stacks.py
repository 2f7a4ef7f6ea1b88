"""``stacks convert``: convert stack samples to a format of other programs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.profiles.common.open_stacks import open_stacks
from whystall.tools.stacks.convert import FORMATS, SUFFIXES, Format, convert, format_for
from whystall.tools.stacks.events import choose_event


class StackConversion(BaseModel):
    """Converted stack samples. `items`: lines, samples or events of `format`; `total`: weight of the samples of
    `event`, in its `unit`; `span_s`: from the first to the last sample, 0 without times.
    """

    model_config = ConfigDict(extra="forbid")

    path: str
    format: Format
    items: int
    bytes: int
    source: str
    event: str
    unit: str
    total: float
    samples: int
    stacks: int
    threads: int
    span_s: float
    odd_lines: int
    not_seen: list[BlindSpot]


def convert_stacks(
    source: Path,
    output: Path,
    *,
    format: Format | None = None,
    event: str = "",
    rank: int | None = None,
    step: int | None = None,
    idle: bool = False,
    overwrite: bool = False,
) -> StackConversion:
    """Convert the stack samples at `source` (see `open_stacks`); `format` None: by the suffix of `output`.

    Raises `ToolError`: bad_argument, what opening raises, disk_full, io_error.
    """
    chosen = _checked(output, format, overwrite)
    profile = open_stacks(source, event=event, rank=rank, step=step, idle=idle)
    number = choose_event(profile)
    done = convert(profile, number, output, chosen)
    _, name, unit, _ = profile.events.row(number)
    samples = profile.samples.filter(pl.col("event") == number)
    timed = samples.filter(pl.col("at_ns") >= 0)
    last, first = (timed["at_ns"] + timed["span_ns"]).max(), timed["at_ns"].min()
    return StackConversion(
        path=str(done.path),
        format=done.format,
        items=done.items,
        bytes=done.size_bytes,
        source=profile.source,
        event=name,
        unit=unit,
        total=float(samples["weight"].sum()),
        samples=samples.height,
        stacks=samples["stack"].n_unique(),
        threads=samples.filter(pl.col("thread") >= 0)["thread"].n_unique(),
        span_s=(last - first) / 1e9 if isinstance(last, int) and isinstance(first, int) else 0.0,
        odd_lines=sum(int(detail) for code, detail in profile.notes if code == "odd_lines" and detail.isdigit()),
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in dict.fromkeys(profile.notes)],
    )


def _checked(output: Path, asked: Format | None, overwrite: bool) -> Format:
    named = format_for(output)
    chosen = asked or named
    if chosen is None:
        message = f"the name {output.name} does not say which format is wanted"
        remedy = f"give --format {'|'.join(FORMATS)}, or a name that ends with {', '.join(SUFFIXES)}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)
    if named not in (None, chosen) and not (output.name.endswith(".json") and chosen == "speedscope"):
        message = f"{output.name} would be taken for {named}, not {chosen}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give a name that fits the format")
    if output.exists() and not output.is_dir() and not overwrite:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{output} exists", "name a new file, or give --overwrite")
    return chosen
