"""One HTTP server for MCP, the web routes, and the worker."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import anyio

from whystall.agent_server.interfaces.web.alerts import alert_routes
from whystall.agent_server.interfaces.web.app import health_route, web_app
from whystall.agent_server.interfaces.web.chat import chat_routes
from whystall.agent_server.interfaces.web.http_server import Certificate, HttpServer, url
from whystall.agent_server.interfaces.web.metrics import PATH as METRICS
from whystall.agent_server.interfaces.web.pictures import picture_routes
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.reports import report_routes
from whystall.tools.contract.extras import extra

CONSOLE = "/console"

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.routing import Route

    from whystall.agent_server.interfaces.mcp.server import McpServer
    from whystall.agent_server.otlp.export import OtlpExport
    from whystall.agent_server.worker.service import Service


class Server:
    """Serves `mcp` (of `mcp_server`), if given, `service` (None: the settings turn nothing on), and `pages`.

    `pages`: routes of the console and of the metrics; `otlp`: what exports these, if it is on. `tls`: serve HTTPS;
    `scheme`: of the addresses.
    """

    def __init__(
        self,
        service: Service | None,
        mcp_server: McpServer | None,
        mcp: Starlette | None,
        tls: Certificate | None = None,
        pages: Sequence[Route] = (),
        otlp: OtlpExport | None = None,
    ) -> None:
        self._otlp = otlp
        self._paths = {route.path for route in pages}
        self._service = service
        self._mcp_server = mcp_server
        self.works = service is not None and service.settings.server.worker
        self._http = HttpServer(web_app([*routes_of(service), *pages], mcp), tls)
        self.scheme = "http" if tls is None else "https"
        self._work: anyio.CancelScope | None = None

    def addresses(self, listener: socket.socket) -> list[str]:
        """Return a line for each address besides MCP's."""
        lines = [f"{what} at {url(listener, path, self.scheme)}" for what, path in _places(self._service)]
        pages = (("console", CONSOLE), ("metrics", METRICS))
        lines += [f"{what} at {url(listener, path, self.scheme)}" for what, path in pages if path in self._paths]
        return [*lines, *(["works on what comes in"] if self.works else [])]

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve and work until `leave`. Raises the error that ends the worker."""
        failures: list[Exception] = []

        async def work(service: Service) -> None:
            try:
                await service.run()
            except Exception as error:  # raised below: the task group would wrap it
                failures.append(error)
                self._http.leave()

        async with anyio.create_task_group() as group:
            self._work = group.cancel_scope
            if self._service is not None and self.works:
                group.start_soon(work, self._service)
            if self._otlp is not None:
                group.start_soon(self._otlp.run)
            with anyio.CancelScope(shield=True):  # ended by `leave`
                await self._http.serve_on(listener)
            group.cancel_scope.cancel()
        if failures:
            raise failures[0]

    def leave(self) -> None:
        """Cancel calls and work in flight, close connections and return from `serve_on`."""
        if self._mcp_server is not None:
            self._mcp_server.calls.stop()
        self._http.leave()
        if self._work is not None:
            self._work.cancel()


def _places(service: Service | None) -> Iterator[tuple[str, str]]:
    """Yield what is received, and the path; a schedule's path needs its token."""
    if service is None or not service.settings.server.web:
        return
    if service.intake is not None:
        yield "alerts", "/alerts/alertmanager"
    if service.settings.reports.on:
        yield "reports of hosts", "/reports/HOST"
    for name in service.settings.chat:
        yield f"chat {name}", f"/chat/{name}"
    for name, sink in service.settings.sinks.items():
        if sink.kind == "centre":
            continue
        yield f"news of {name}", f"/sinks/{name}"
    if service.settings.server.calendar_token is not None:
        for name in service.settings.oncall.schedules:
            yield f"schedule {name}", f"/oncall/{name}.ics"


def routes_of(service: Service | None) -> Iterator[Route]:
    """Yield the routes of configured features."""
    if service is None:
        yield health_route(None, lambda: False)
        return
    kb, settings = service.kb, service.settings
    yield health_route(kb, lambda: service.failing)
    if not settings.server.web:
        return
    refusals = Refusals(kb)
    if service.intake is not None:
        yield from alert_routes(service.intake, settings.alerts, refusals)
    if settings.reports.on:
        yield from report_routes(kb, service.ticket_service, settings.reports, refusals)
    if service.vendors:
        yield from chat_routes(kb, service.vendors, refusals)
    if settings.sinks:
        with extra("ticketing"):
            from whystall.agent_server.interfaces.web.trackers import sink_routes

        yield from sink_routes(kb, settings, service.ticket_service, refusals)
    if settings.server.public_url is not None:
        yield from picture_routes(service.pictures, refusals)
    if settings.server.calendar_token is not None:
        with extra("ticketing"):
            from whystall.agent_server.interfaces.web.calendar import calendar_routes

        yield from calendar_routes(kb, settings, refusals)
