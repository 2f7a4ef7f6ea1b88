"""Read a page of an artifact for a model."""

from __future__ import annotations

from typing import Any

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import Artifact
from whystall.tools.recording.judging import artifact_path

PAGE_BYTES = 6_000


def page(artifact: Artifact, offset: int) -> dict[str, Any]:
    """Return at most `PAGE_BYTES` of the text of `artifact` from byte `offset` as data: its lines.

    The last one is whole, unless the page is one line; `next_offset` is missing on the last page. Raises `ToolError`:
    not_found if the file was removed, io_error if it cannot be read.
    """
    path = artifact_path(artifact.uri)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            read = file.read(PAGE_BYTES + 1)
    except OSError as error:
        message = f"cannot read the artifact {artifact.uri}: {error.strerror}"
        raise ToolError(ErrorCode.IO_ERROR, message, "observe again") from None
    more = len(read) > PAGE_BYTES
    read = read[:PAGE_BYTES]
    if more:
        read = read[: read.rfind(b"\n") + 1 or PAGE_BYTES]
    return {
        "uri": artifact.uri,
        "title": artifact.title,
        "bytes": artifact.bytes,
        "offset": offset,
        **({"next_offset": offset + len(read)} if more else {}),
        "lines": read.decode("utf-8", "replace").removesuffix("\n").split("\n"),
    }
