"""``whystall hybrid-run``: run a program and its children with hybrid I/O."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer

from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.presentation.results import hybrid_text
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.output_file import aside
from whystall.tools.hybrid_io.build import BuildError
from whystall.tools.hybrid_io.run import NOT_FOUND, CannotRun, Options, run

if TYPE_CHECKING:
    from whystall.tools.hybrid_io.report import Programs
    from whystall.tools.hybrid_io.run import Run

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_MOST = 1 << 62


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    # Arguments after the program's name are the program's.
    settings = {"allow_interspersed_args": False, "ignore_unknown_options": False}
    app.command("hybrid-run", context_settings=settings)(hybrid_run)


def hybrid_run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD [ARGS]...", help="the program and its arguments")],
    mode: Annotated[
        Literal["auto", "buffered", "direct"],
        typer.Option("--mode", help="auto: by the policy; the others for measuring"),
    ] = "auto",
    read_direct: Annotated[
        Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--read-direct", metavar="SIZE", help="reads from this size on go direct (like 2m; default 1m)"),
    ] = None,
    write_direct: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--write-direct", metavar="SIZE", help="writes from this size on go direct (default 512k)"),
    ] = None,
    pressure_direct: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--pressure-direct", metavar="SIZE", help="both, while the cache is at its limit (default 256k)"),
    ] = None,
    limit_share: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--limit-share", metavar="X", help="of the memory, what the cache may hold (default 0.8)"),
    ] = None,
    limit: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--limit", metavar="SIZE", help="what the cache may hold, instead of a share"),
    ] = None,
    keep_file: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--keep-file", metavar="SIZE", help="smaller files stay in the cache if they fit (default 64m)"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="also below programs that are given an environment of their own")
    ] = False,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", metavar="FILE", help="write the summary here instead of to standard error"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no summary")] = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> int:
    """Run a program with hybrid I/O: its large requests go direct or through the page cache, by size and pressure.

    Standard output is the program's; the summary goes to standard error. The exit status is the program's, or 128 plus
    the number of the signal that ended it.
    """
    if limit_share is not None and not 0 < limit_share <= 1:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"--limit-share: {limit_share:g} is no share", "give 0 < X <= 1")
    options = Options(
        mode=mode,
        read_direct=_size("--read-direct", read_direct),
        write_direct=_size("--write-direct", write_direct),
        pressure_direct=_size("--pressure-direct", pressure_direct),
        limit_share=limit_share,
        limit_bytes=_size("--limit", limit),
        keep_file=_size("--keep-file", keep_file),
        follow=follow,
    )
    if output is not None and not output.parent.is_dir():
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"--output: there is no directory {output.parent}", "name another file")
    if output is not None and output.is_dir():  # reported before the program runs
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"--output: {output} is a directory", "name a file")
    if output is not None and not os.access(output.parent, os.W_OK | os.X_OK):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"--output: {output.parent} cannot be written", "name another file")
    try:
        done = run(command, options)
    except CannotRun as error:
        missing = error.status == NOT_FOUND
        code = ErrorCode.NOT_FOUND if missing else ErrorCode.BAD_ARGUMENT
        failure = ToolError(code, str(error), "name a program, or the path of one")
        console.note(f"error: {code.value}: {failure.message}; {failure.remedy}")
        if as_json:
            console.say_json(wire.error_object(failure))
        return error.status
    except BuildError as error:
        remedy = "`whystall doctor` reports what is missing"
        raise ToolError(ErrorCode.NO_ENGINE, f"the shim cannot be built: {error}", remedy) from None
    if not quiet:
        try:
            _tell(done, output, as_json, lang)
        except ToolError as error:  # the program has run: its exit status is returned
            console.note(f"error: {error.code.value}: the summary is lost: {error.message}; {error.remedy}")
        except OSError:
            pass  # standard error was closed
    return done.status


def _tell(done: Run, output: Path | None, as_json: bool, lang: Literal["en", "zh"]) -> None:
    text = wire.dumps(as_object(done)) + "\n" if as_json else hybrid_text(done, lang)
    if output is not None:
        with aside(output) as fresh:
            fresh.write_text(text, "utf-8")
    else:
        for line in text.rstrip("\n").split("\n"):
            console.note(line)


def as_object(done: Run) -> dict[str, Any]:
    """Return a run as an object for programs, without paths and reasons that had no request."""
    return {
        "command": done.command,
        "status": done.status,
        "signal": done.signal,
        "seconds": round(done.seconds, 6),
        "kind": done.kind,
        "counted": done.counted,
        "programs": [_program(program) for program in done.programs],
        "others": _program(done.others),
        "total": _program(done.total),
    }


def _program(program: Programs) -> dict[str, Any]:
    values = {f.name: getattr(program, f.name) for f in dataclasses.fields(program) if f.name != "counts"}
    values["direct_bytes"] = {op: program.bytes(op, direct=True) for op in program.counts}
    values["buffered_bytes"] = {op: program.bytes(op, direct=False) for op in program.counts}
    values["counts"] = {
        op: {reason: dataclasses.asdict(count) for reason, count in ways.items() if count.requests or count.bytes}
        for op, ways in program.counts.items()
    }
    return values


def _size(option: str, text: str | None) -> int | None:
    """Return bytes: ``4096``, ``64k``, ``2m``, ``2MiB``, ``1g``."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,19})([kmgt]?)(?:i?b)?", text.strip().lower())
    size = int(match[1]) << _UNITS[match[2]] if match else 0
    if not 0 < size <= _MOST:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{option}: {text!r} is no size", "give bytes, or like 64k, 2m, 1g")
    return size
