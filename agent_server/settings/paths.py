"""Paths in the settings: relative ones start at the directory of the settings file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

_base: ContextVar[Path | None] = ContextVar("_base", default=None)


@contextmanager
def relative_to(settings: Path | None) -> Iterator[None]:
    """In this block, validated paths start at the directory of the file `settings`."""
    token = _base.set(settings.absolute().parent if settings else None)
    try:
        yield
    finally:
        _base.reset(token)


def _located(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("no path")
    try:
        path = path.expanduser()
    except RuntimeError:
        raise ValueError("no home directory is known for ~") from None
    base = _base.get()
    return path if base is None or path.is_absolute() else base / path


Located = Annotated[Path, AfterValidator(_located)]
