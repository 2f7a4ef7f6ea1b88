"""Write stack samples in one of the supported formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.output_file import aside
from whystall.tools.stacks.model import StackProfile

Format = Literal["folded", "pprof", "speedscope", "perf_script", "chrome"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[str, Format] = {
    ".folded": "folded",
    ".collapsed": "folded",
    ".raw": "folded",
    ".pb.gz": "pprof",
    ".pprof": "pprof",
    ".speedscope.json": "speedscope",
    ".speedscope": "speedscope",
    ".perf": "perf_script",
    ".perf.txt": "perf_script",
    ".json": "chrome",
}
"""Format by the end of the file's name; the longest match counts."""


@dataclass(frozen=True)
class Written:
    """A file that was written: `items` are lines, samples or events of its format."""

    path: Path
    format: Format
    items: int
    size_bytes: int


def format_for(path: Path) -> Format | None:
    """Return the format for the end of a name."""
    ends = [end for end in SUFFIXES if path.name.lower().endswith(end)]
    return SUFFIXES[max(ends, key=len)] if ends else None


def convert(profile: StackProfile, event: int, path: Path, format: Format) -> Written:
    """Write `event` of `profile` (pprof: all events, that one as the default); the file is written as a whole or not at
    all.

    Raises `ToolError`: bad_trace when there are no samples of it, disk_full, io_error.
    """
    if profile.samples.filter(profile.samples["event"] == event).is_empty():
        raise ToolError(ErrorCode.BAD_TRACE, "the profile is empty: it has no samples", "profile for longer")
    with aside(path) as beside:
        items = _writer(format)(profile, event, beside)
    return Written(path, format, items, path.stat().st_size)


def _writer(format: Format) -> Callable[[StackProfile, int, Path], int]:
    from whystall.tools.stacks.writers import json_formats as write_json
    from whystall.tools.stacks.writers import pprof as write_pprof
    from whystall.tools.stacks.writers import text as write_text

    return {
        "folded": write_text.folded,
        "perf_script": write_text.perf_script,
        "pprof": write_pprof.pprof,
        "speedscope": write_json.speedscope,
        "chrome": write_json.chrome,
    }[format]
