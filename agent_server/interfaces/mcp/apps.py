"""The extension MCP Apps, ``io.modelcontextprotocol/ui`` (SEP-1865): results of tools as pages inside the client.

A tool names one of two ``ui://`` pages, which contain nothing of a result. The client opens it in a frame, and passes
the result to it; through the client the page reads our HTML of the result, an artifact, or the ticket. Only clients
that declare the extension see the pages in lists; their models get the same texts.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import mcp_types as types
from mcp.server import Server
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID

from whystall.agent_server.interfaces.mcp.resources import PAGE_CHARS, TICKETS
from whystall.agent_server.version import version
from whystall.knowledge_base.models import Lang
from whystall.prompts.files import LANGS
from whystall.prompts.render import words
from whystall.tools.views.app_page import app_page

SCHEME = "ui://"
PAGES = f"{SCHEME}whystall/pages.html"
"""Shows the HTML artifacts of a result."""
TICKET = f"{SCHEME}whystall/ticket.html"
"""Shows the ticket that a result is."""
_SHOWS: dict[str, Literal["pages", "ticket"]] = {PAGES: "pages", TICKET: "ticket"}
# Nothing is loaded from anywhere: no domains, which leaves the client's policy at its strictest.
_META: dict[str, Any] = {"ui": {"csp": {}, "prefersBorder": True}}


def offer(server: Server[Any]) -> None:
    """Declare the extension on `server`."""
    server.extensions[EXTENSION_ID] = {}


def shown(tool: types.Tool, view: str | None) -> types.Tool:
    """Return `tool` with the page that shows its results; as it is without a `view`."""
    return tool.model_copy(update={"meta": {"ui": {"resourceUri": view}}}) if view else tool


def resources(lang: Lang) -> list[types.Resource]:
    """Return the pages as listed resources."""
    title = words(lang)["app_page"]["title"]
    return [
        types.Resource(uri=uri, name=name, title=str(title), mime_type=APP_MIME_TYPE, _meta=_META)
        for uri, name in _SHOWS.items()
    ]


def contents(uri: str, lang: Lang) -> types.TextResourceContents | None:
    """Return the page `uri`, in `lang` until the client has named the user's language; None for another URI."""
    if uri not in _SHOWS:
        return None
    return types.TextResourceContents(uri=uri, mime_type=APP_MIME_TYPE, text=_page(uri, lang), _meta=_META)


@cache
def _page(uri: str, lang: Lang) -> str:
    texts = {each: words(each)["app_page"] for each in LANGS}
    return app_page(_SHOWS[uri], texts, lang=lang, version=version(), tickets=TICKETS, page_chars=PAGE_CHARS)
