"""All routes of the console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from whystall.agent_server.interfaces.web.console.alerts import alert_routes
from whystall.agent_server.interfaces.web.console.diagnoses import diagnosis_routes
from whystall.agent_server.interfaces.web.console.fleet import fleet_routes
from whystall.agent_server.interfaces.web.console.jobs import job_routes
from whystall.agent_server.interfaces.web.console.knowledge import knowledge_routes
from whystall.agent_server.interfaces.web.console.login import login_routes
from whystall.agent_server.interfaces.web.console.tickets import ticket_routes

if TYPE_CHECKING:
    from starlette.routing import Route

    from whystall.agent_server.interfaces.web.console.site import Site


def console_routes(site: Site) -> Iterator[Route]:
    """Yield the routes of the console; its pages for unknown addresses come last."""
    yield from job_routes(site)
    yield from fleet_routes(site)
    yield from diagnosis_routes(site)
    yield from ticket_routes(site)
    yield from alert_routes(site)
    yield from knowledge_routes(site)
    yield from login_routes(site)
