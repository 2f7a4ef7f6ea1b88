"""``whystall history``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption, checked, command
from whystall.agent_server.presentation.history_lines import history_text
from whystall.agent_server.watch.history import HistoryParams, history
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.output_file import aside

if TYPE_CHECKING:
    from whystall.agent_server.interfaces.cli.options import Lang
    from whystall.agent_server.watch.history import Judged


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    about = (
        "Report what watched jobs waited for over time, and what changed: by thread, code line, file, lock and peer."
    )
    app.command("history")(command(_history, HistoryParams, doc=about))


def _history(
    given: dict[str, Any],
    html: Annotated[
        Optional[Path],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--html", metavar="FILE", help="also write a page with the heat map over time"),
    ] = None,
    svg: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--svg", metavar="FILE", help="also write the heat map as a picture"),
    ] = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Report, and write the pages that were asked for."""
    judged = history(checked(HistoryParams, given))
    if html or svg:
        _write(judged, {"text/html": html, "image/svg+xml": svg}, lang)
    if as_json:
        console.say_json(judged.result)
    else:
        console.say(history_text(judged.result, lang))


def _write(judged: Judged, files: dict[str, Path | None], lang: Lang) -> None:
    from whystall.agent_server.presentation.history_pages import history_pages

    made = {one.media_type: one.text for one in history_pages(judged.result, judged.spans, lang)}
    if not made:
        raise ToolError(ErrorCode.NO_OVERLAP, "nothing was recorded to draw", "choose another span, job or process")
    for kind, path in files.items():
        if path is not None:
            with aside(path) as beside:
                beside.write_text(made[kind], encoding="utf-8")
            console.note(f"wrote {path}")
