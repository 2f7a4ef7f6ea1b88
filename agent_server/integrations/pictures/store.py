"""Store pictures of diagnoses among the artifacts of this host, and serve them by signed addresses."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from whystall.agent_server.integrations.messages import Picture
from whystall.agent_server.integrations.pictures import links, raster
from whystall.agent_server.integrations.pictures.verdict import svg
from whystall.knowledge_base.models import Diagnosis, Lang
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.home import home
from whystall.tools.recording.judging import ARTIFACT_SCHEME, artifact_path

PNG_LIMIT = 5 << 20
"""Maximum bytes of a picture; Feishu accepts 10 MB, and ours have about 0.1 MB."""
_KEY = "pictures.key"
_KEY_BYTES = 32


class Pictures:
    """`public_url`: where vendors reach this server (``https://host``); None: pictures are only uploaded."""

    def __init__(self, public_url: str | None = None) -> None:
        self._public = public_url

    def make(self, diagnosis: Diagnosis, lang: Lang) -> str | None:
        """Draw and store `diagnosis`; return its uri, or None if nothing can be rendered here (no resvg or no font).

        It is in English if no font has Chinese characters. The same diagnosis and language give the same uri. Takes
        0.1 s, more the first time. Raises `ToolError`: disk_full, io_error.
        """
        drawn_lang = raster.readable(lang)
        if drawn_lang is None:
            return None
        drawn = svg(diagnosis, drawn_lang)
        name = f"{links.digest(drawn)}-verdict-{drawn_lang}.png"
        path = _directory() / name
        if not path.is_file():
            _write(path, raster.png(drawn))
        return ARTIFACT_SCHEME + name

    def load(self, uri: str, alt: str, now: float) -> Picture | None:
        """See `sending.Pictures`."""
        try:
            path = artifact_path(uri)
            with path.open("rb") as file:
                data = file.read(PNG_LIMIT + 1)
        except (ToolError, OSError):
            return None  # artifacts may be deleted; the message is sent without
        if len(data) > PNG_LIMIT or not links.NAME.fullmatch(path.name):
            return None
        url = links.link(self._public, path.name, self._key, now) if self._public else None
        return Picture(data, path.name.partition("-")[2], alt, url)

    def open(self, name: str, query: Mapping[str, str], now: float) -> Path | None:
        """Return the file of a signed address (`links`); None if it is invalid, has expired, or the file is gone."""
        if self._public is None or not links.is_valid(name, query, self._key, now):
            return None
        try:
            return artifact_path(ARTIFACT_SCHEME + name)
        except ToolError:
            return None

    @cached_property
    def _key(self) -> bytes:
        """Return the signing key, created once beside the knowledge base (mode 0600)."""
        path = home() / _KEY
        made = secrets.token_bytes(_KEY_BYTES)
        try:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                key = path.read_bytes()
                if len(key) == _KEY_BYTES:
                    return key
                descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # its writing was interrupted
            with open(descriptor, "wb") as file:
                file.write(made)
        except OSError as error:
            raise _failed(path, error) from None
        return made


def _directory() -> Path:
    path = home() / "artifacts"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _failed(path, error) from None
    return path


def _write(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _failed(path, error) from None


def _failed(path: Path, error: OSError) -> ToolError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = ErrorCode.DISK_FULL if full else ErrorCode.IO_ERROR
    return ToolError(code, f"cannot write {path}: {error.strerror}", "free space, or set WHYSTALL_HOME elsewhere")
