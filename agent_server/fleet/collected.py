"""What hosts answered to one question, stored to be judged later without them.

A directory or fsspec URL with one file per host, as the host sent it: a packed recording (`recording.packed`), or a
tool's result in JSON; and the index ``fleet.json``, written last: a place without it holds nothing. What is read may
come from a stranger: a file that is missing, cut or something else is a failure of its host alone.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from whystall.agent_server.fleet.answers import Answer, Located, Status, line, stated_host
from whystall.agent_server.fleet.comparable import unused
from whystall.agent_server.fleet.hostlist import LIMIT
from whystall.agent_server.fleet.inventory import same_host
from whystall.agent_server.fleet.reading import read
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.foreign_json import inert
from whystall.tools.contract.text import clean
from whystall.tools.files.output_file import aside
from whystall.tools.ranks.traces.parallel import in_parallel
from whystall.tools.ranks.traces.remote import OF_PROCESS, file_system, is_url, local_path
from whystall.tools.recording.store import check_place

INDEX = "fleet.json"
_INDEX_LIMIT = 64 << 20
_FILE_LIMIT = 64 << 20  # of ``reply_limit`` in the settings
_TOTAL_LIMIT = 2 << 30
_NAME = r"[0-9]{5}-[A-Za-z0-9_.-]{1,64}\.(zip|json)"

Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class StoredAnswer(BaseModel):
    """An `Answer` without its content, which is in `file`; empty: there is none. `received`: its `bytes`."""

    host: str
    status: Status
    detail: str = ""
    file: Annotated[str, StringConstraints(pattern=rf"^({_NAME})?$")] = ""
    located: Located | None = None
    identity: bool = False
    began: Seconds = 0.0
    ended: Seconds = 0.0
    seconds: Seconds = 0.0
    received: Annotated[int, Field(ge=0)] = 0

    def answer(self) -> Answer:
        """Return the answer without content, its texts inert."""
        found = self.located
        if found is not None:
            found = replace(found, job=clean(found.job, 300), ranks=dict(list((found.ranks or {}).items())[:LIMIT]))
        host, detail = clean(self.host, 253), line(self.detail)
        return Answer(
            host,
            self.status,
            detail,
            None,
            b"",
            found,
            self.began,
            self.ended,
            self.seconds,
            self.received,
            self.identity,
        )


_SAME = tuple(StoredAnswer.model_fields.keys() - {"file", "received"})


class Collected(BaseModel):
    """``fleet.json``. `tool`, `arguments`: what hosts were asked; `collected`: when (RFC 3339)."""

    model_config = ConfigDict(extra="ignore")

    schema_version: Literal["1"] = "1"
    tool: Annotated[str, StringConstraints(max_length=100)]
    arguments: dict[str, Any]
    collected: Annotated[str, StringConstraints(max_length=40)]
    hosts: Annotated[list[StoredAnswer], Field(max_length=2 * LIMIT)]


def check(place: str) -> None:
    """Check before hosts are asked that answers can be stored at `place`. Blocks.

    Raises `ToolError`: bad_argument if it holds something, or fsspec or the package of its URL is missing; io_error.
    """
    if not is_url(place):
        check_place(Path(local_path(place)))
        return
    with _remote(place) as (system, root):
        if system.exists(f"{root}/{INDEX}"):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{_shown(place)} holds {INDEX}", "give another place")


def store(place: str, tool: str, arguments: Mapping[str, Any], answers: Sequence[Answer]) -> None:
    """Store the `answers` to ``tool(arguments)`` at `place`. Blocks. Raises `ToolError`: disk_full, io_error."""
    rows = []
    for number, answer in enumerate(answers):
        name = ""
        if answer.status == "answered":
            kind, content = (
                ("json", json.dumps(answer.reply).encode()) if not answer.content else ("zip", answer.content)
            )
            name = f"{number:05d}-{re.sub('[^A-Za-z0-9_.-]', '_', answer.host)[:64] or '_'}.{kind}"
            _write(place, name, content)
        values = {name: getattr(answer, name) for name in _SAME}
        rows.append(StoredAnswer(file=name, received=answer.bytes, **values))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    index = Collected(tool=tool, arguments=dict(arguments), collected=now, hosts=rows)
    _write(place, INDEX, index.model_dump_json(indent=1).encode())


def index_at(place: str) -> Collected:
    """Return the index at `place`. Blocks.

    Raises `ToolError`: bad_recording if there is no valid one; bad_argument without fsspec or the package of its URL.
    """
    try:
        return Collected.model_validate_json(_read(place, INDEX, _INDEX_LIMIT))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        at = clean(".".join(map(str, first["loc"])), 100)
        raise _bad(place, f"{INDEX}: {at}: {line(first['msg'])}" if at else f"{INDEX} is not valid") from None
    except _Unreadable as error:
        raise _bad(place, str(error)) from None


def load(place: str, index: Collected, arguments: Mapping[str, Any], *, scheduler: str | None = None) -> list[Answer]:
    """Return the answers at `place`, read (`reading.read`) for ``index.tool(arguments)``; those that cannot be used are
    marked. Blocks.

    `scheduler`: address of a dask cluster whose workers read them, where `place` must be the same; else processes of
    this machine do, or this one if they are small. Raises `ToolError` as `in_parallel` does, and io_error.
    """
    place = place if is_url(place) else os.path.abspath(local_path(place))
    rows = [row for row in index.hosts if row.status == "answered"]
    sizes, left = _sizes(place, [row.file for row in rows]), _TOTAL_LIMIT
    stored = []
    for row in rows:
        size = min(sizes.get(row.file, 0), _FILE_LIMIT, left)
        left -= size
        stored.append(_Stored(place, row, size, index.tool, arguments))
    here = True if place.startswith(OF_PROCESS) else None
    answers = iter(in_parallel(_answer, stored, _failed, scheduler=scheduler, here=here))
    return [next(answers) if row.status == "answered" else row.answer() for row in index.hosts]


@dataclass(frozen=True)
class _Stored:
    """An answer to ``tool(arguments)`` at `place`. At most `size` bytes are read of its file."""

    place: str
    row: StoredAnswer
    size: int
    tool: str
    arguments: Mapping[str, Any]


def _answer(stored: _Stored) -> Answer:
    """Return an answer, read; any failure is its own."""
    answer, name = stored.row.answer(), stored.row.file
    try:
        content = _read(stored.place, name, stored.size) if name else b""
        return read(stored.tool, stored.arguments, _with_content(answer, name, content))
    except (_Unreadable, ToolError) as error:
        return _failed(stored, error.message if isinstance(error, ToolError) else str(error))


def _failed(stored: _Stored, why: str) -> Answer:
    return unused(stored.row.answer(), "invalid", line(why))


class _Unreadable(Exception):
    """A file cannot be read; the reason in one line."""


def _with_content(answer: Answer, name: str, content: bytes) -> Answer:
    """Return `answer` with the content of its file `name`; or as one that cannot be used."""
    if name.endswith(".zip"):
        return replace(answer, content=content)
    try:
        reply = inert(json.loads(content))
        if not isinstance(reply, dict):
            raise ValueError
    except (ValueError, RecursionError):
        return replace(answer, status="invalid", detail="its file is no result of a tool")
    stated = stated_host(reply)
    if answer.identity and stated and not same_host(stated, answer.host):
        return replace(answer, status="wrong_host", detail=line(f"it calls itself {stated}"))
    return replace(answer, reply=reply)


# --- places ---------------------------------------------------------------------------------------------------------


def _write(place: str, name: str, content: bytes) -> None:
    if is_url(place):
        with _remote(place) as (system, root):
            with suppress(NotImplementedError):  # object stores have no directories
                system.makedirs(root, exist_ok=True)
            system.pipe_file(f"{root}/{name}", content)
        return
    directory = Path(local_path(place))
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with aside(directory / name) as path:
            path.write_bytes(content)
    except OSError as error:
        message = f"cannot write {directory}: {error.strerror}"
        raise ToolError(ErrorCode.IO_ERROR, message, "choose another place") from None


def _read(place: str, name: str, limit: int) -> bytes:
    """Return the content of a file. Raises `_Unreadable`, and `ToolError` if the place cannot be reached."""
    if is_url(place):
        with _remote(place) as (system, root):
            try:
                with system.open(f"{root}/{name}", "rb") as file:
                    content = bytes(file.read(limit + 1))
            except FileNotFoundError:
                raise _Unreadable(f"{name} is missing") from None
    else:
        try:
            # only a regular file: a pipe would block, a link may lead elsewhere
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(Path(local_path(place), name), "rb", opener=lambda path, _: os.open(path, flags)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise _Unreadable(f"{name} is not a regular file")
                content = file.read(limit + 1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "no path"
            raise _Unreadable(f"{name} cannot be read: {why}") from None
    if len(content) > limit:
        raise _Unreadable(f"{name} is too large")
    return content


def _sizes(place: str, names: Sequence[str]) -> dict[str, int]:
    """Return the bytes of the files `names`, without those that are missing."""
    found: dict[str, int] = {}
    if not is_url(place):
        for name in names:
            with suppress(OSError, ValueError):
                found[name] = os.stat(Path(place, name), follow_symlinks=False).st_size
        return found
    with _remote(place) as (system, root), suppress(FileNotFoundError):
        for one in system.ls(root, detail=True):
            found[str(one["name"]).rpartition("/")[2]] = int(one.get("size") or 0)
    return found


@contextmanager
def _remote(place: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of an fsspec URL and the path there; failures are a `ToolError` of one line."""
    try:
        system, root = file_system(place)
        yield system, root.rstrip("/")
    except (ToolError, _Unreadable):
        raise
    except Exception as error:  # each storage has its own errors
        why = line(_URL_USER.sub("//", str(error) or type(error).__name__))
        message = f"{_shown(place)} cannot be used: {why}"
        raise ToolError(ErrorCode.IO_ERROR, message, "check the URL and the access to it") from None


_URL_USER = re.compile(r"//[^/\s]*@")


def _shown(place: str) -> str:
    """Return `place` without user and password."""
    return clean(_URL_USER.sub("//", place), 300)


def _bad(place: str, why: str) -> ToolError:
    message = f"{_shown(place)} holds no answers of a fleet: {why}"
    return ToolError(ErrorCode.BAD_RECORDING, message, "give a place that `whystall fleet run --collect` made")
