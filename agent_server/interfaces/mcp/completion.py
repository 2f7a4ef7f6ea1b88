"""Completion of ids in resource templates and prompt arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import mcp_types as types

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis import transcript_files
from whystall.agent_server.interfaces.mcp.resources import SCHEME, results

MOST = 100
"""The protocol's limit of values per answer."""
_DIAGNOSES = frozenset({"diagnosis", "before"})  # prompt arguments that are the id of a diagnosis


def complete(app: App, params: types.CompleteRequestParams) -> types.Completion:
    """Return the ids that begin with the typed text; none for arguments without ids. Raises `ToolError`."""
    typed = params.argument.value
    ids: Iterable[str] = ()
    if isinstance(params.ref, types.PromptReference):
        if params.argument.name in _DIAGNOSES:
            ids = _beginning(typed, transcript_files.ids())
    elif params.argument.name == "id":
        kind = params.ref.uri.removeprefix(SCHEME).removesuffix("/{id}")
        find = _KINDS.get(kind)
        ids = find(app, typed) if find else ()
    found = list(ids)
    more = len(found) > MOST
    return types.Completion(values=found[:MOST], total=None if more else len(found), has_more=more)


def _incidents(app: App, typed: str) -> list[str]:
    return [card.id for card in app.kb().cards.list(prefix=typed, limit=MOST + 1)]


def _tickets(app: App, typed: str) -> list[str]:
    return list(app.kb().tickets.ids(typed, MOST + 1))


def _transcripts(_app: App, typed: str) -> list[str]:
    return _beginning(typed, transcript_files.ids())


def _schemas(app: App, typed: str) -> list[str]:
    return _beginning(typed, sorted(results(app)))


def _beginning(typed: str, ids: Iterable[str]) -> list[str]:
    return [id for id in ids if id.startswith(typed)][: MOST + 1]


_KINDS: dict[str, Callable[[App, str], list[str]]] = {
    "incidents": _incidents,
    "tickets": _tickets,
    "transcripts": _transcripts,
    "schemas": _schemas,
}
