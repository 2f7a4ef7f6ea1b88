"""``whystall stacks``: convert stack samples between the formats of profilers and viewers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from whystall.agent_server.conversion.stacks import convert_stacks
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.presentation.results import stacks_text


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Convert stack samples.", rich_markup_mode=None)
    group.callback()(_group)  # keeps the group although it has one command
    group.command("convert")(convert)
    app.add_typer(group, name="stacks")


def _group() -> None:
    """Convert stack samples between the formats of profilers and viewers."""


def convert(
    source: Annotated[
        Path,
        typer.Option(
            "--input",
            "-i",
            metavar="PATH",
            help="folded stacks (py-spy raw), perf script, pprof, speedscope, a trace (JSON), or a recording",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help=".folded, .pb.gz (pprof), .speedscope.json, .perf.txt or .json (Chrome)",
        ),
    ],
    format: Annotated[
        Optional[Literal["folded", "pprof", "speedscope", "perf_script", "chrome"]],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--format", help="what to write (default: by name)"),
    ] = None,
    event: Annotated[
        str, typer.Option("--event", metavar="NAME", help="which event, where the input has several")
    ] = "",
    rank: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--rank", min=0, help="of an accelerator's profiles: which rank"),
    ] = None,
    step: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--step", min=0, help="of an accelerator's profile: only work launched in this step"),
    ] = None,
    idle: Annotated[bool, typer.Option("--idle", help="of an accelerator's profile: its gaps as frames")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace what is at --output")] = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Convert stack samples to another format."""
    summary = convert_stacks(
        source, output, format=format, event=event, rank=rank, step=step, idle=idle, overwrite=overwrite
    )
    if as_json:
        console.say_json(summary)
    else:
        console.say(stacks_text(summary, lang))
