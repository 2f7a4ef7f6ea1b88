"""The hosts of the fleet with their jobs, and the page of a job of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.console.heat import LEVELS, SPANS, HeatMap, asked, heat_map
from whystall.agent_server.interfaces.web.console.site import Site, Visit, paged
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.watch.fleet_jobs import FleetJobs, HostState
    from whystall.agent_server.watch.history import HistoryParams
    from whystall.knowledge_base.models import Lang

_PAGE = 200


class FleetView(NamedTuple):
    """Hosts of the fleet: first those with stalled jobs, then those that do not answer. `total`: hosts in all, `found`:
    those that match; `answering`, `stalled`, `silent`, `unknown`: numbers of hosts; `asking`: more answers may come.
    """

    hosts: list[HostState]
    total: int
    found: int
    answering: int
    stalled: int
    silent: int
    unknown: int
    asking: bool


def fleet_view(fleet: FleetJobs, words: str = "", page: int = 1, most: int = _PAGE) -> FleetView:
    """Return page number `page`, of `most` hosts, of those whose name, or that of a job, has `words`. Raises
    `ToolError`."""
    states = fleet.hosts()
    orders = [_order(one) for one in states]
    wanted = words.strip().casefold()
    ordered = [
        one
        for one in sorted(states, key=_order)
        if wanted in one.name.casefold() or any(wanted in job.name.casefold() for job in one.jobs)
    ]
    return FleetView(
        ordered[(page - 1) * most : page * most],
        len(states),
        len(ordered),
        sum(one.answers for one in states),
        orders.count(_STALLED),
        orders.count(_SILENT),
        orders.count(_ASKING),
        fleet.asking or _ASKING in orders,
    )


_STALLED, _SILENT, _ASKING, _WITH_JOBS, _EMPTY = range(5)


def _order(one: HostState) -> int:
    if not one.answers:
        return _ASKING if one.status == "asking" else _SILENT
    return _STALLED if one.stalled else _WITH_JOBS if one.jobs else _EMPTY


def fleet_routes(site: Site) -> Iterator[Route]:
    """Yield the pages of the fleet; none if the settings name none."""
    fleet = site.fleet
    if fleet is None:
        return

    async def listed(visit: Visit) -> Response:
        query = {"q": visit.query("q")[:200]}
        view = await in_thread(lambda: fleet_view(fleet, query["q"], visit.page))
        before = paged(query, visit.page - 1) if visit.page > 1 else ""
        after = paged(query, visit.page + 1) if view.found > visit.page * _PAGE else ""
        return site.show(visit, "fleet", fleet=view, given=query, before=before, after=after)

    async def job(visit: Visit) -> Response:
        name, id = (visit.request.path_params[part] for part in ("host", "id"))

        def read() -> dict[str, Any]:
            host = next((one for one in fleet.hosts() if one.name == name), None)
            if host is None:
                raise ToolError(ErrorCode.NOT_FOUND, f"no host {name!r} is in the fleet", "choose one of the fleet")
            watched, params = host.job(id), asked(id, visit.query("since"))
            history = _history(fleet, host, params, visit.lang)
            return {
                "id": id,
                "name": (watched.name if watched else "") or id,
                "job": watched if host.answers else None,
                "waiting": host.watch.waiting if host.watch else {},
                "host": host,
                "since": params.since,
                **history,
            }

        return site.show(visit, "job", stalls=None, spans=SPANS, levels=LEVELS, **await in_thread(read))

    yield site.page("/fleet", listed, "observe")
    yield site.page("/fleet/{host}/jobs/{id:path}", job, "observe")


def _history(fleet: FleetJobs, host: HostState, params: HistoryParams, lang: Lang) -> dict[str, Any]:
    """Return the history that `host` has of a job, why there is none, and whether it may still come."""
    nothing: dict[str, Any] = {"heat": None, "missing": "", "pending": host.status == "asking"}
    if not host.answers:
        return nothing
    answer = fleet.history(host.name, params)
    if answer is None:
        return {**nothing, "pending": True}
    if answer.status != "answered":
        return {**nothing, "missing": answer.detail or answer.status}
    try:
        found: HeatMap | None = heat_map(dict(answer.reply or {}), lang)
    except (ValueError, KeyError, OverflowError):
        return {**nothing, "missing": "invalid"}
    return {**nothing, "heat": found if found and found.rows else None}
