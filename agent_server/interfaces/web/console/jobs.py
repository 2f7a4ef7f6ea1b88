"""The overview of hosts and jobs, and the page of a job of this host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.console.fleet import fleet_view
from whystall.agent_server.interfaces.web.console.heat import LEVELS, SPANS, HeatMap, asked, heat_map
from whystall.agent_server.interfaces.web.console.site import Site, Visit, framed
from whystall.agent_server.interfaces.web.console.tickets import title
from whystall.agent_server.presentation.history_pages import history_pages
from whystall.agent_server.watch.history import history
from whystall.agent_server.watch.overview import overview, stalls, waiting, watch
from whystall.knowledge_base.ticket_models import LIVE
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.prompts.errors import error_text
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.watch.history import HistoryParams
    from whystall.knowledge_base.models import Lang

_LATEST = 8
_PAGE_ROWS = 30


def job_routes(site: Site) -> Iterator[Route]:
    """Yield the pages of hosts and jobs."""

    async def shown(visit: Visit) -> Response:
        observes, tickets = visit.may("observe"), visit.may("tickets")

        def read() -> dict[str, Any]:
            open_ = Wanted(states=LIVE)
            latest = site.kb.tickets.lines(open_, _LATEST) if tickets else []
            return {
                **(_fleet(site, visit.lang) if observes else {"fleet": None, "fleet_error": ""}),
                "watch": overview() if observes else None,
                "stalls": stalls(visit.lang)[:_LATEST] if observes else [],
                "hosts": site.kb.tickets.hosts() if tickets else [],
                "latest": latest,
                "titles": {line.id: title(line, visit.lang) for line in latest},
                "open": site.kb.tickets.count(open_) if tickets else 0,
            }

        return site.show(visit, "overview", **await in_thread(read))

    async def job(visit: Visit) -> Response:
        id = visit.request.path_params["id"]

        def read() -> dict[str, Any]:
            found, noted = watch(), stalls(visit.lang, id)
            watched = found.job(id)
            if watched is None and not noted:
                raise ToolError(ErrorCode.NOT_FOUND, f"no job {id!r} is watched", "choose one of the overview")
            params = asked(id, visit.query("since"))
            return {
                "id": id,
                "name": watched.name if watched else noted[0].name,
                "job": watched,
                "waiting": waiting({process.pid for process in watched.processes} if watched else ()),
                "heat": _heat(params, visit.lang),
                "since": params.since,
                "stalls": noted,
            }

        return site.show(
            visit, "job", host=None, pending=False, missing="", spans=SPANS, levels=LEVELS, **await in_thread(read)
        )

    async def whole(visit: Visit) -> Response:
        params = asked(visit.request.path_params["id"], visit.query("since")).model_copy(update={"top": _PAGE_ROWS})

        def drawn() -> str:
            judged = history(params)
            pages = history_pages(judged.result, judged.spans, visit.lang)
            if not pages:
                raise ToolError(ErrorCode.NOT_FOUND, "nothing was recorded of this job", "choose a longer span")
            return next(page.text for page in pages if page.media_type == "text/html")

        return framed(await in_thread(drawn))

    yield site.page("", shown)
    yield site.page("/", shown)
    yield site.page("/jobs/{id:path}", job, "observe")
    yield site.page("/history/{id:path}", whole, "observe")


def _heat(params: HistoryParams, lang: Lang) -> HeatMap | None:
    """Return the history of a job of this host; None if nothing was recorded."""
    try:
        found = heat_map(history(params).result.model_dump(mode="json"), lang)
    except ToolError:
        return None
    return found if found.rows else None


def _fleet(site: Site, lang: Lang) -> dict[str, Any]:
    """Return the first hosts of the fleet; an unreadable list of hosts leaves the rest of the page."""
    try:
        return {"fleet": fleet_view(site.fleet, most=_LATEST) if site.fleet else None, "fleet_error": ""}
    except ToolError as error:
        return {"fleet": None, "fleet_error": error_text(lang, error.code.value, error.message, error.remedy)}
