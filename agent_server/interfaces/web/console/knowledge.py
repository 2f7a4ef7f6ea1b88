"""The search of past incidents, and the page of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.incident_lookup import search
from whystall.agent_server.interfaces.web.console.site import Site, Visit
from whystall.agent_server.presentation.match_lines import note_texts, why_text
from whystall.knowledge_base.causes import load_causes

_MOST = 20
_QUERY = 1000


def knowledge_routes(site: Site) -> Iterator[Route]:
    """Yield the pages of past incidents."""

    async def find(visit: Visit) -> Response:
        query = " ".join(visit.query("q").split())[:_QUERY]

        def read() -> dict[str, Any]:
            if not query:
                return {"hits": None, "notes": []}
            found = search(site.kb, query, _MOST, visit.lang)
            return {
                "hits": [(hit, why_text(hit.match, "md", visit.lang)) for hit in found.hits],
                "notes": note_texts(found.notes, "md", visit.lang),
            }

        return site.show(visit, "knowledge", query=query, **await in_thread(read))

    async def incident(visit: Visit) -> Response:
        card = await in_thread(lambda: site.kb.cards.get(visit.request.path_params["id"]))
        cause = load_causes().get(card.cause or "")
        return site.show(visit, "incident", i=card, cause=cause, link=card.source_url.startswith("https://"))

    yield site.page("/knowledge", find, "observe")
    yield site.page("/knowledge/{id}", incident, "observe")
