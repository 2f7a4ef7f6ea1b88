"""What the pages of diagnoses and tickets show of a diagnosis: its lines are those of the ticket, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from whystall.agent_server.presentation.template_values import TemplateValues
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Lang
from whystall.prompts.render import voice
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.judging import ARTIFACT_SCHEME, artifact_path

_PAGE, _STACKS = ".html", ".folded"


class Bar(NamedTuple):
    """A row of the critical path. `pct`: its share of the window, 0 to 100."""

    pct: float
    text: str


class Page(NamedTuple):
    """A page about a diagnosis. `kind`: its name without number and ending; `path`: below the console."""

    kind: str
    path: str


def diagnosis_context(d: Diagnosis, lang: Lang) -> dict[str, Any]:
    """Return the values of a diagnosis for templates. `path`: the rows of the account; `pages`: of its artifacts that
    still exist, those of stacks as flame graphs.
    """
    found = TemplateValues("md", lang, d.target).diagnosis(d, load_causes(), None)
    rows = [
        Bar(min(max(row.window_pct, 0.0), 100.0), text)
        for row, text in zip(d.account, found["account"].rows, strict=False)
    ]
    missing = [voice("md", lang).missing(code) for code in d.missing]
    return {**found, "path": rows, "missing": missing, "pages": list(_pages(d))}


def _pages(d: Diagnosis) -> Iterator[Page]:
    for index, uri in enumerate(d.artifacts):
        try:
            file = artifact_path(uri)
        except ToolError:  # it was removed
            continue
        kind = file.stem.partition("-")[2]
        if file.suffix == _PAGE:
            yield Page(kind, f"/pages/{quote(file.name)}")
        elif file.suffix == _STACKS:
            yield Page(kind, f"/diagnoses/{quote(d.id, safe='')}/flames/{index}")


def page_text(name: str) -> bytes:
    """Return the page `name`. Raises `ToolError` (not_found)."""
    if not name.endswith(_PAGE):
        raise ToolError(ErrorCode.NOT_FOUND, f"no page {name!r}", "choose one of a diagnosis")
    return artifact_path(f"{ARTIFACT_SCHEME}{name}").read_bytes()


def stacks_of(d: Diagnosis, index: int) -> Path:
    """Return the file of stacks that is the artifact number `index` of `d`. Raises `ToolError` (not_found)."""
    uri = d.artifacts[index] if index < len(d.artifacts) else ""
    if not uri.endswith(_STACKS):
        raise ToolError(ErrorCode.NOT_FOUND, "no such flame graph", "choose one of the diagnosis")
    return artifact_path(uri)
