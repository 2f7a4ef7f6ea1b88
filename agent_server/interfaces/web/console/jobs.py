"""The overview of hosts and jobs, and the page of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.console.site import Site, Visit
from whystall.agent_server.interfaces.web.console.tickets import title
from whystall.agent_server.interfaces.web.console.watched import history_of, stalls, waiting, watch
from whystall.knowledge_base.ticket_models import LIVE
from whystall.knowledge_base.tickets.rows import Wanted
from whystall.tools.contract.errors import ErrorCode, ToolError

_LATEST = 8


def job_routes(site: Site) -> Iterator[Route]:
    """Yield the pages of hosts and jobs."""

    async def overview(visit: Visit) -> Response:
        observes, tickets = visit.may("observe"), visit.may("tickets")

        def read() -> dict[str, Any]:
            found = watch(also_unwatched=True) if observes else None
            pids = {process.pid for job in found.jobs for process in job.processes} if found else set()
            open_ = Wanted(states=LIVE)
            latest = site.kb.tickets.lines(open_, _LATEST) if tickets else []
            return {
                "watch": found,
                "waiting": waiting(pids),
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
            pids = {process.pid for process in watched.processes} if watched else set()
            return {
                "id": id,
                "name": watched.name if watched else noted[0].name,
                "job": watched,
                "waiting": waiting(pids),
                "history": history_of(id),
                "stalls": noted,
            }

        return site.show(visit, "job", **await in_thread(read))

    yield site.page("", overview)
    yield site.page("/", overview)
    yield site.page("/jobs/{id:path}", job, "observe")
