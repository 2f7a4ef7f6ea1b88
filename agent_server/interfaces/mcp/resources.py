"""Texts by URI: artifacts, incidents, tickets, result schemas; as resources, and for clients without resources. What
the centre of a fleet needs of the ranks of a job is a resource only."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis import transcript_files
from whystall.agent_server.doctor import examine, report
from whystall.agent_server.fleet.merge import FleetResult
from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.mcp.background import BackgroundDiagnosis
from whystall.agent_server.interfaces.mcp.knowledge import RESULTS
from whystall.agent_server.interfaces.mcp.schemas import full_schema
from whystall.agent_server.interfaces.mcp.skills import MEDIA_TYPE, skills
from whystall.agent_server.job_lookup.torchrun import endpoints
from whystall.agent_server.presentation import results as words
from whystall.agent_server.watch.overview import RESOURCE as WATCH
from whystall.agent_server.watch.overview import overview
from whystall.knowledge_base.models import Diagnosis, Lang
from whystall.knowledge_base.ticket_models import Ticket
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import ToolResult
from whystall.tools.history.data import HistoryData
from whystall.tools.recording.packed import pack
from whystall.tools.recording.store import Recording

SCHEME = "whystall://"
DOCTOR = f"{SCHEME}doctor/host"
RANKS = f"{SCHEME}ranks/"
WINDOWS = f"{SCHEME}windows/"
ENDPOINTS = f"{SCHEME}endpoints/"
TICKETS = f"{SCHEME}tickets/"
PAGE_CHARS = 20_000
"""Most characters of a stored text that `artifact_read` returns at a time."""
TEMPLATES = {
    "artifacts": ("Artifact", "A table, folded stacks or another file that a result points to"),
    "incidents": ("Incident", "A past incident: symptom, root cause, fix, source (JSON)"),
    "tickets": ("Ticket", "A ticket with its evidence (Markdown)"),
    "transcripts": ("Transcript", "Everything a diagnosis rests on (JSON lines); the id is the diagnosis'"),
    "doctor": (
        "Doctor",
        "What works on this host, which engine each tool runs on, what to install or grant; the id is host",
    ),
    "ranks": (
        "Ranks",
        "The ranks of a job below a directory of traces, as `whystall gather` makes them; the id is its absolute path",
    ),
    "windows": (
        "Window",
        "What a tool that compares ranks observes of a running job, to judge it with other hosts; the id is "
        "TOOL,PID,SECONDS",
    ),
    "endpoints": (
        "Endpoints",
        "With which hosts a job of torchrun communicates, as one of them shows; the id is the pid of a rank or agent",
    ),
    "watch": ("Watch", "The jobs of this host, and what each process of them waits for now (JSON); the id is host"),
    "schemas": ("Schema", "The whole shape of a tool's structured result (JSON schema); the id is the tool's name"),
}
_MEDIA = {".json": "application/json", ".jsonl": "application/jsonl", ".csv": "text/csv", ".md": "text/markdown"}
_MEDIA |= {".html": "text/html", ".svg": "image/svg+xml"}
_WINDOW = re.compile(r"([a-z_]{1,40}),([0-9]{1,7}),([0-9]{1,3}(?:\.[0-9]{1,6})?)")


@dataclass(frozen=True)
class Stored:
    """A stored text; or `content`, which is none."""

    media_type: str
    text: str
    content: bytes | None = None


class Page(BaseModel):
    """`text`: the characters from `offset` to `next_offset`, which is None at the end."""

    model_config = ConfigDict(extra="forbid")

    uri: str
    media_type: str
    text: str
    offset: int
    next_offset: int | None
    total_chars: int


def results(app: App) -> dict[str, type[BaseModel]]:
    """Return the result model of each MCP tool."""
    found: dict[str, type[BaseModel]] = {tool.name: ToolResult[tool.data] for tool in app.tools()}  # type: ignore[name-defined]
    found |= dict.fromkeys(("diagnose_start", "diagnose_result"), BackgroundDiagnosis)
    return (
        found
        | RESULTS
        | {"diagnose": Diagnosis, "fleet": FleetResult, "ticket_draft": Ticket, "artifact_read": Page}
        | {"history": ToolResult[HistoryData]}
    )


def read(app: App, uri: str, lang: Lang) -> Stored:
    """Return the text of `uri`. Raises `ToolError` (not_found)."""
    if skill := skills().get(uri):
        return Stored(MEDIA_TYPE, skill.content.decode())
    kind, _, name = uri.removeprefix(SCHEME).partition("/")
    if uri.startswith(SCHEME) and name:
        if kind in ("artifacts", "transcripts"):
            return _file(uri, app.artifact(uri) if kind == "artifacts" else transcript_files.path_of(name))
        if kind == "incidents":
            incident = wire.structured(app.kb().cards.get(unquote(name)))
            return Stored("application/json", json.dumps(incident, ensure_ascii=False, indent=1))
        if kind == "tickets":
            return Stored("text/markdown", words.whole_ticket_text(app.kb(), name, lang))
        if kind == "schemas" and (model := results(app).get(name)):
            return Stored("application/schema+json", json.dumps(full_schema(model), ensure_ascii=False))
    raise ToolError(ErrorCode.NOT_FOUND, f"nothing is stored under {uri!r}", f"valid: {', '.join(templates())}")


async def fetch(app: App, uri: str, lang: Lang) -> Stored:
    """Return what `uri` names, as `read` does; this host is examined, traces are read, and a job is observed."""
    if uri == DOCTOR:
        return Stored("text/plain", await in_thread(lambda: report(examine(lang), lang)))
    if uri == WATCH:
        return Stored("application/json", await in_thread(lambda: overview().model_dump_json()))
    if uri.startswith(RANKS):
        return await _ranks(app, unquote(uri.removeprefix(RANKS)))
    if uri.startswith(WINDOWS) and (named := _WINDOW.fullmatch(unquote(uri.removeprefix(WINDOWS)))):
        return await _packed(await app.window(named[1], int(named[2]), float(named[3])))
    if uri.startswith(ENDPOINTS) and re.fullmatch("[0-9]{1,7}", number := uri.removeprefix(ENDPOINTS)):
        shown = await in_thread(lambda: endpoints(int(number)))
        return Stored("application/json", "", shown.model_dump_json().encode())
    return read(app, uri, lang)


async def _ranks(app: App, place: str) -> Stored:
    if not Path(place).is_absolute():
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{place!r} is no absolute path", "name the directory of the traces")
    return await _packed(await app.ranks(place))


async def _packed(recording: Recording) -> Stored:
    return Stored("application/zip", "", await in_thread(lambda: pack(recording)))


def _file(uri: str, path: Path) -> Stored:
    try:
        text = path.read_text("utf-8", errors="backslashreplace")
    except OSError as error:
        message = f"cannot read {uri!r}: {error.strerror}"
        raise ToolError(ErrorCode.IO_ERROR, message, "run the tool again") from None
    return Stored(_MEDIA.get(path.suffix, "text/plain"), text)


async def read_page(app: App, uri: str, offset: int, limit: int, lang: Lang) -> Page:
    """Return at most `limit` characters of the text of `uri` from `offset`; an offset beyond the end is refused."""
    stored = await fetch(app, uri, lang)
    if stored.content is not None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{uri!r} is no text", "read it as a resource")
    total = len(stored.text)
    if offset > total:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"offset {offset} is behind the end", f"give an offset up to {total}")
    end = min(offset + limit, total)
    return Page(
        uri=uri,
        media_type=stored.media_type,
        text=stored.text[offset:end],
        offset=offset,
        next_offset=end if end < total else None,
        total_chars=total,
    )


def templates() -> list[str]:
    """Return the URI templates."""
    return [f"{SCHEME}{kind}/{{id}}" for kind in TEMPLATES]
