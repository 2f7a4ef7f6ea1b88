"""``whystall record``, ``diagnose`` and ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.inputs.record_params import GatherParams, RecordParams
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import FromOption, JsonOption, LangOption, checked, command
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.presentation.results import diagnosis_text, gather_text, record_text, ticket_text
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import LiveParams, TargetParams

if TYPE_CHECKING:
    from whystall.agent_server.llm.wire import LlmError


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    about = "Record what every tool needs, to judge it later with --from."
    app.command("record")(command(record, RecordParams, doc=about))
    about = "Read the traces of a job's ranks into a small recording, to judge it elsewhere or later with --from."
    app.command("gather")(command(gather, GatherParams, doc=about, skip=["traces", "top"]))
    about = "Report what stalls a job, where, for how long, and what to do."
    app.command("diagnose")(command(diagnose, DiagnoseParams, doc=about))
    about = "Run a ticket's tools again and show before beside after."
    app.command("verify")(command(verify, LiveParams, doc=about, skip=["top"]))


def record(
    given: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="a new directory for the recording")],
    redact: Annotated[bool, typer.Option("--redact", help="hash names and paths before they are written")] = False,
    as_json: JsonOption = False,
) -> None:
    """Record for some time, or cut out the past."""
    if not {"duration", "past"} & given.keys():
        raise ToolError(ErrorCode.BAD_ARGUMENT, "how long is not known", "give --duration or --past")
    params = checked(RecordParams, given)
    with console.progress() as progress:
        summary = signals.run(App().record(params, out, redact=redact, progress=progress))
    if as_json:
        console.say_json(summary)
    else:
        console.say(record_text(summary))


def gather(
    given: dict[str, Any],
    traces: Annotated[str, typer.Argument(metavar="DIR", help="directory with the traces of the ranks")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="a new directory for the recording")],
    redact: Annotated[bool, typer.Option("--redact", help="hash names and paths before they are written")] = False,
    as_json: JsonOption = False,
) -> None:
    """Gather the ranks of a job."""
    params = checked(GatherParams, given | {"traces": traces})
    summary = signals.run(App().gather(params, out, redact=redact))
    if as_json:
        console.say_json(summary)
    else:
        console.say(gather_text(summary))


def diagnose(
    given: dict[str, Any],
    source: FromOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Investigate; any verdict is an answer, so the status is 0."""
    params = checked(DiagnoseParams, given)
    app = App()
    failures: list[LlmError] = []
    with console.progress() as progress:
        work = app.diagnose(params, source=source, progress=progress, lang=lang, failed=failures.append)
        diagnosis = signals.run(work)
    for failure in failures:
        console.note(f"note: the model did not answer, and the rules finished: {failure}")
    if as_json:
        console.say_json(diagnosis)
    else:
        console.say(diagnosis_text(diagnosis, lang))


def verify(
    given: dict[str, Any],
    ticket: Annotated[str, typer.Argument(metavar="TICKET", help="the ticket's id")],
    source: FromOption = None,
    traces: Annotated[
        Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--traces", metavar="DIR", help="traces of the job's ranks from after the fix"),
    ] = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Verify a fix."""
    duration = given.pop("duration", None)
    target = checked(TargetParams, given) if given else None
    with console.progress() as progress:
        work = App().verify(ticket, target=target, duration=duration, source=source, traces=traces, progress=progress)
        result = signals.run(work)
    if as_json:
        console.say_json(result)
    else:
        console.say(ticket_text(result, lang))
