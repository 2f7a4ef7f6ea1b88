"""``GET /oncall/SCHEDULE.ics``: schedules for calendar programs, which send no headers but keep the address."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.gate import Denied, Gate, knows
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import route
from whystall.agent_server.journal.overrides import Overrides
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.oncall import ical

_AT_ONCE = 4


def calendar_routes(kb: Stores, settings: Settings, refusals: Refusals) -> Iterator[Route]:
    """Yield the route of all schedules; ``?token=`` must be ``[server] calendar_token``."""

    async def calendar(request: Request, _gate: Gate) -> Response:
        token = request.query_params.get("token", "")
        if not knows(token, settings.server.calendar_token, "[server] calendar_token"):
            raise Denied(401, "unauthorised")
        name = request.path_params["name"]
        if name not in settings.oncall.schedules:
            raise Denied(404, "not_found")
        body = await in_thread(lambda: _calendar(kb.overrides, settings, name))
        return Response(body, media_type="text/calendar", headers={"Cache-Control": "private, max-age=300"})

    yield route("/oncall/{name}.ics", "GET", calendar, Gate(0, 5.0, _AT_ONCE), refusals)


def _calendar(overrides: Overrides, settings: Settings, name: str) -> bytes:
    return ical.calendar(settings, overrides.all(), name, datetime.now(timezone.utc))
