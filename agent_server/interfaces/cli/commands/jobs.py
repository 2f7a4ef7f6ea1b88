"""``whystall jobs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from whystall.agent_server.integrations.chat import answers
from whystall.agent_server.integrations.chat.message_texts import tried
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.job_lookup.find import find, running_jobs
from whystall.agent_server.job_lookup.models import LISTED, Wanted
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.integrations.messages import Outgoing

_LONGEST = 4000  # characters of a question


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("jobs")(jobs)


def jobs(
    text: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Argument(metavar="[TEXT]...", help="a name, a pid, a job's number, 'rank 3 of llama-7b'; none: all"),
    ] = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List the jobs of this machine, or find the process that some words describe."""
    if not text:
        seen, found = running_jobs()
        if as_json:
            listed = [job.model_dump(mode="json") for job in found]
            console.say_json({"jobs": listed, "missed": seen.missed.model_dump()})
        else:
            console.say(
                plain_text(answers.jobs_message(found[: 5 * LISTED], len(found) - 5 * LISTED, seen.missed, lang))
            )
        return
    words = " ".join(text)
    resolution = signals.run(find(Wanted(text=words[:_LONGEST])))
    if as_json:
        console.say_json(resolution)
    elif resolution.status == "none":
        looked = f"; looked for {tried(resolution.tried, 'en')}" if resolution.tried else ""
        why = f"no job of this machine fits {words[:200]!r}{looked}"
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, why, "`whystall jobs` lists what runs")
    else:
        console.say(plain_text(answers.found_message(resolution, lang)))


def plain_text(message: Outgoing) -> str:
    """Return the Markdown of `message` without empty lines."""
    return "\n".join(line for line in message.text.splitlines() if line.strip())
