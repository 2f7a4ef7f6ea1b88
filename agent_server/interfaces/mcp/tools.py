"""The tools of the MCP server: one entry each, which gives schemas, validation and call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, create_model

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.inputs.stacks import compares, observes
from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.mcp import apps
from whystall.agent_server.interfaces.mcp.asking import Arguments
from whystall.agent_server.interfaces.mcp.background import background_entries
from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.entry import TEXT_LIMIT, TEXT_LIMITS, Answer, Entry
from whystall.agent_server.interfaces.mcp.fleet import fleet_entries
from whystall.agent_server.interfaces.mcp.history import history_entry
from whystall.agent_server.interfaces.mcp.jobs import find_job
from whystall.agent_server.interfaces.mcp.knowledge import knowledge_entries
from whystall.agent_server.interfaces.mcp.next_calls import NextCalls, next_lines
from whystall.agent_server.interfaces.mcp.resources import PAGE_CHARS, read_page
from whystall.agent_server.interfaces.mcp.tasks import TaskRunner
from whystall.agent_server.interfaces.mcp.toolsets import ALL, listed
from whystall.agent_server.interfaces.mcp.which_process import ask_which
from whystall.agent_server.presentation import results as words
from whystall.agent_server.presentation.pages import page_for
from whystall.agent_server.presentation.texts import result_text
from whystall.agent_server.settings.engines import Engine
from whystall.agent_server.settings.load import load
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.models import Lang
from whystall.prompts.render import words as labels
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import JobParams, Params, parse_params
from whystall.tools.contract.registry import ArtifactContent, Reads, Tool
from whystall.tools.recording.judging import write_artifact

_Recording = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=4096,
        description="absolute path of a recording or trace to judge instead",
    ),
]
_Engine = Annotated[Engine, Field(description="how to observe")]
_TARGETS = frozenset({"pid", "comm", "cgroup", "recording", "traces"})
_DIRECTORIES = frozenset({"traces", "before", "after"})
_MANIFEST = "manifest.json"
_RANKS = ("a directory", "the directory with the traces of the ranks")
_NAMED: dict[Reads, tuple[str, str]] = {
    "host": _RANKS,
    "ranks": _RANKS,
    "logs": ("logs", "a log, or a directory of logs"),
    "topology": ("topologies", "a file of a topology, or a directory of them"),
    "stacks": ("stack samples", "a recording, an accelerator's profile, or a file of stacks"),
}


class TicketDraftParams(Params):
    """Draft a ticket."""

    diagnosis: Annotated[str, Field(min_length=1, max_length=200, description="id of a diagnosis")]


class ReadParams(Params):
    """Read a stored text."""

    uri: Annotated[
        str,
        Field(
            min_length=1, max_length=4096, description="whystall://artifacts|incidents|tickets|transcripts|schemas/ID"
        ),
    ]
    offset: Annotated[int, Field(ge=0, description="characters to skip")] = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_CHARS, description="characters to return")] = TEXT_LIMIT


def entries(app: App, lang: Lang, chosen: Sequence[str] = (), tasks: TaskRunner | None = None) -> dict[str, Entry]:
    """Return the entries that answer calls, by name: all, or the tools and toolsets in `chosen`; without `tasks` none
    that needs them.

    Raises `ToolError` (bad_argument) for an unknown one.
    """
    following = NextCalls(serves=partial(_serves, app))
    made = [diagnose_entry(app, lang), find_job(lang), *(_diagnostic(app, tool, lang) for tool in app.tools())]
    made += [*knowledge_entries(app, lang), _ticket_draft(app, lang), _artifact_read(app, lang), history_entry(lang)]
    known = {entry.name: _followed(entry, following, lang) for entry in [*made, *fleet_entries(app, lang)]}
    if tasks is not None:
        known |= {entry.name: entry for entry in background_entries(known["diagnose"], tasks, lang)}
    following.offered.update(listed(known, chosen))
    return {name: known[name] for name in listed(known, chosen or (ALL,))}


def _serves(app: App, tool: str, recording: Path) -> bool:
    """Return whether `tool` can judge the directory `recording`: it has all that the tool needs."""
    try:
        has = set(json.loads((recording / _MANIFEST).read_bytes())["collectors"])
        found = app.tool(tool)
        return {need.collector for need in found.needs(found.params()) if not need.optional} <= has
    except (OSError, ValueError, KeyError, TypeError, ToolError):
        return False


def _followed(entry: Entry, following: NextCalls, lang: Lang) -> Entry:
    """Return `entry` with the next calls at the end of its texts."""

    async def call(given: dict[str, Any], progress: Progress) -> Answer:
        source = Path(given["recording"]) if given.get("recording") else None
        result, text = await entry.call(dict(given), progress)
        return result, f"{text.rstrip()}\n{next_lines(following.after(entry.name, given, result, source), lang)}"

    return replace(entry, call=call)


def _worded(name: str, write: Callable[[int | None], str], lang: Lang) -> str:
    """Return what `write` makes within the limit. If that leaves something out, all is stored, and pointed to."""
    text, whole = write(TEXT_LIMITS[lang]), write(None)
    if text == whole:
        return text
    stored = write_artifact(ArtifactContent(f"{name}.txt", name, "text/plain", wire.inert(whole)))
    return f"{text.rstrip()}\n{labels(lang)['labels']['whole_text'].format(stored.uri)}"


def _diagnostic(app: App, tool: Tool[Any, Any], lang: Lang) -> Entry:
    fields: dict[str, Any] = {}
    if not compares(tool):
        fields["recording"] = (_Recording, None)
    if tool.reads == "host" or (tool.reads == "stacks" and observes(tool)):
        fields["engine"] = (_Engine, "auto")
    params = create_model(f"{tool.name}_call", __base__=tool.params, **fields)

    async def call(given: dict[str, Any], progress: Progress) -> Answer:
        source, engine = _source(given, tool.reads), given.pop("engine", "auto")
        result = await app.run_tool(tool.name, given, source=source, engine=engine, progress=progress, lang=lang)
        return result, _worded(tool.name, partial(result_text, result, lang), lang)

    by_words = "job" in tool.params.model_fields
    prepare = ask_which(partial(_job_of, tool), _of_process, lang) if by_words else None
    view = apps.PAGES if page_for(tool.name) else None
    return Entry(tool.name, tool.title, tool.description, params, call, prepare=prepare, view=view)


def _job_of(tool: Tool[Any, Any], given: Arguments) -> str | None:
    """Return the words for the job that a call observes, empty without any; None if words do not name it."""
    if given.get("recording") is not None:
        return None
    fields = {name: value for name, value in given.items() if name in tool.params.model_fields}
    observed = parse_params(tool.params, fields).observed()
    if not isinstance(observed, JobParams) or (observed.pid, observed.comm, observed.cgroup) != (None, None, None):
        return None
    return observed.job or ""


def _of_process(given: Arguments, pid: int) -> Arguments:
    return {name: value for name, value in given.items() if name != "job"} | {"pid": pid}


def diagnose_entry(app: App, lang: Lang) -> Entry:
    """Return the tool ``diagnose``."""
    params = create_model("diagnose_call", __base__=DiagnoseParams, recording=(_Recording, None))

    async def call(given: dict[str, Any], progress: Progress) -> Answer:
        source = _source(given)
        wanted = DiagnoseParams.model_validate(given)
        diagnosis = await app.diagnose(wanted, source=source, progress=progress, lang=lang)
        return diagnosis, _worded("diagnosis", partial(words.diagnosis_text, diagnosis, lang), lang)

    text = "Says what stalls a job: runs the tools it needs, names victim, cause, culprit, similar incidents."
    prepare = ask_which(_symptom_of, _of_process, lang, named_only=True)
    return Entry("diagnose", "Diagnose a stall", text, params, call, read_only=False, prepare=prepare)


def _symptom_of(given: Arguments) -> str | None:
    """Return the symptom if it is all that may say which job is meant."""
    return None if _TARGETS & given.keys() else given.get("symptom")


def _ticket_draft(app: App, lang: Lang) -> Entry:
    async def call(given: dict[str, Any], progress: Progress) -> Answer:
        kb = app.kb()
        ticket_service = TicketService(kb, load())
        with kb.transaction():
            ticket = ticket_service.settle(kb.tickets.draft(given["diagnosis"]).id)
        return ticket, _worded("ticket", lambda limit: words.ticket_text(ticket, lang)[:limit], lang)

    text = "Stores a ticket for a diagnosis: evidence, ruled out causes, ranked fixes. The same fault gets one ticket."
    entry = Entry("ticket_draft", "Draft a ticket", text, TicketDraftParams, call, read_only=False, scope="tickets")
    return replace(entry, view=apps.TICKET)


def _artifact_read(app: App, lang: Lang) -> Entry:
    async def call(given: dict[str, Any], progress: Progress) -> Answer:
        page = await read_page(app, given["uri"], given.get("offset", 0), given.get("limit", TEXT_LIMIT), lang)
        return page, page.text

    text = "Reads an artifact, incident, ticket, transcript, schema or doctor's report by its uri, a page at a time."
    # Escaping may lengthen the text; a page must be complete for clients that read the text alone.
    return Entry("artifact_read", "Read an artifact", text, ReadParams, call, text_limit=2 * PAGE_CHARS, scope=None)


def _source(given: dict[str, Any], reads: Reads = "host") -> Path | None:
    """Take out of `given` the path to judge instead of observing, and check it.

    Paths must be absolute; a recording is a regular file or a directory with a manifest (a tool that `reads` stacks
    also takes a profiler's directory), since a pipe would block and a device never ends. The error is the same whatever
    exists there, and readers quote no content of refused files.
    """
    if (profile := given.get("profile")) is not None and not Path(profile).is_absolute():
        raise ToolError(ErrorCode.BAD_TRACE, f"{profile!r} is no absolute path", "give one of what a profiler wrote")
    for path in (*(given.get("log") or ()), *filter(None, [given.get("kernel_log"), given.get("cards")])):
        if not _usable(path, ""):
            message = f"{path!r} is no absolute path of a log or directory on this host"
            raise ToolError(ErrorCode.BAD_TRACE, message, f"give {_NAMED['logs'][1]}")
    for path in given.get("metrics") or ():
        if not _usable(path, ""):
            message = f"{path!r} is no absolute path of a file on this host"
            raise ToolError(ErrorCode.BAD_TRACE, message, "give one of saved metrics")
    for path in given.get("files") or ():
        if not _usable(path, ""):
            message = f"{path!r} is no absolute path of a file or directory on this host"
            raise ToolError(ErrorCode.BAD_TRACE, message, f"give {_NAMED['topology'][1]}")
    earlier = given.get("before") if reads == "host" else None
    if earlier is not None and not _usable(earlier, _MANIFEST):
        message = f"{earlier!r} is no absolute path of a recording"
        raise ToolError(ErrorCode.BAD_RECORDING, message, "give a directory made by `whystall record`")
    for name in _DIRECTORIES & given.keys() - ({"before"} if reads == "host" else set()):
        if not _usable(given[name], ""):
            what, remedy = _NAMED[reads]
            message = f"{given[name]!r} is no absolute path of {what} on this host"
            raise ToolError(ErrorCode.BAD_TRACE, message, f"give {remedy}")
    if (named := given.pop("recording", None)) is None:
        return None
    if not _usable(named, "" if reads in ("stacks", "logs", "topology") else _MANIFEST):
        message = f"{named!r} is no absolute path of a recording"
        other = "stack samples" if reads == "stacks" else "a trace file"
        remedy = f"give a directory made by `whystall record`, or {other}"
        raise ToolError(ErrorCode.BAD_RECORDING, message, remedy)
    return Path(named)


def _usable(named: str, holding: str) -> bool:
    """Return whether an absolute path is a regular file, or a directory that has the file `holding`."""
    path = Path(named)
    try:
        inside = (path / holding).is_file() if holding else path.is_dir()
        return path.is_absolute() and (path.is_file() or inside)
    except (OSError, ValueError):  # too long, or with a NUL
        return False
