"""``whystall serve``: the MCP server, and over HTTP the features turned on in the settings. The only command that
imports the MCP SDK.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer

from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import LangOption, underscores
from whystall.agent_server.interfaces.cli.watcher_process import WatcherProcess
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.settings.load import load
from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.worker.configured import configured
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import Route

    from whystall.agent_server.app import App
    from whystall.agent_server.interfaces.mcp.server import McpServer
    from whystall.agent_server.interfaces.web.http_server import Certificate
    from whystall.agent_server.otlp.export import OtlpExport
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.worker.service import Service
    from whystall.knowledge_base.models import Lang


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("serve")(serve)


def serve(
    transport: Annotated[Literal["stdio", "http"], typer.Option("--transport", help="how clients connect")] = "stdio",
    host: Annotated[
        str, typer.Option("--host", help="http: address to bind; anything but loopback needs a token")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="http: port; 0 takes any")] = 8377,
    token_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--token-file", metavar="FILE", help="http: file with the bearer token (or set WHYSTALL_TOKEN)"),
    ] = None,
    token: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--token", help="http: bearer token; other users can see it in the list of processes"),
    ] = None,
    allow_host: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--allow-host", metavar="NAME", help="http: further host name clients may use; repeatable"),
    ] = None,
    tls_cert: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--tls-cert", metavar="FILE", help="http: certificate with its chain, PEM; serves HTTPS"),
    ] = None,
    tls_key: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--tls-key", metavar="FILE", help="http: private key of --tls-cert, PEM"),
    ] = None,
    tools: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--tools",
            metavar="LIST",
            help="offer these toolsets (core, ranks, profiles, io, system, ticketing, fleet; all) or tools, by comma",
        ),
    ] = None,
    lang: LangOption = "en",
) -> None:
    """Serve the tools over MCP, on standard input and output or over HTTP.

    Over HTTP the settings turn on more: alerts, chats and trackers are received and processed. See `whystall config`.
    """
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(levelname)s: %(message)s")
    chosen = [underscores(name.strip()) for name in (tools or "").split(",") if name.strip()]
    if transport == "http":
        _http(lang, chosen, host, port, token, token_file, allow_host or [], (tls_cert, tls_key))
    else:
        _stdio(_mcp_server(lang, chosen))


def _mcp_server(lang: Lang, chosen: Sequence[str], app: App | None = None) -> McpServer:
    from whystall.agent_server.app import App
    from whystall.agent_server.interfaces.mcp.server import McpServer

    return McpServer(app or App(), lang, chosen)


def _stdio(mcp_server: McpServer) -> None:
    from whystall.agent_server.interfaces.mcp import stdio as mcp_stdio

    leaving: list[asyncio.Future[None]] = []

    def stop() -> None:
        leaving.append(asyncio.ensure_future(mcp_stdio.leave(mcp_server, signals.received or 0, console.note)))

    signals.run(mcp_stdio.serve(mcp_server), stop)


def _http(
    lang: Lang,
    chosen: Sequence[str],
    host: str,
    port: int,
    token: str | None,
    token_file: Path | None,
    names: list[str],
    certificate: tuple[Path | None, Path | None],
) -> None:
    from whystall.agent_server.app import App
    from whystall.agent_server.interfaces.web import http_server
    from whystall.agent_server.interfaces.web.serve import Server

    tls = _certificate(*certificate)
    settings, app = load(), App()
    mcp_server = mcp = secret = None
    shown = ""
    if settings.server.mcp:
        from whystall.agent_server.interfaces.mcp import http as mcp_http

        mcp_server = _mcp_server(lang, chosen, app)
        secret, made = mcp_http.choose_token(host, token, token_file, others=settings.access.on)
        mcp = mcp_http.http_app(mcp_server, host, secret, names, settings.access)
        shown = secret if made and secret else ""
    console_routes = _console(app, mcp_server, secret, settings) if mcp_server and settings.server.console else []
    routes = [*console_routes, *([metrics] if (metrics := _metrics(app, settings)) is not None else [])]
    server = Server(_service(app, settings), mcp_server, mcp, tls, routes, _otlp(app, settings))
    with http_server.listen(host, port) as listener:
        if mcp is not None:
            console.note(f"whystall: MCP at {http_server.url(listener, mcp_http.PATH, server.scheme)}")
        if shown:
            console.note(f"token: {shown}")
        for line in server.addresses(listener):
            console.note(f"whystall: {line}")
        if tls is None and not is_loopback(host):
            console.note(
                "warning: plain HTTP shows tokens to the network; give --tls-cert, or put a TLS proxy in front"
            )
        gc.freeze()  # a full collection passes over all modules: 0.2 s in which no page is answered
        with WatcherProcess(console.note) if settings.watch.on else nullcontext():
            signals.run(server.serve_on(listener), server.leave)


def _console(app: App, mcp_server: McpServer, secret: str | None, settings: Settings) -> list[Route]:
    """Return the routes of the console, behind the tokens of MCP."""
    from whystall.agent_server.interfaces.mcp.tokens import Tokens
    from whystall.agent_server.interfaces.web.console.routes import console_routes
    from whystall.agent_server.interfaces.web.console.site import Site

    return list(console_routes(Site(app, mcp_server, Tokens(secret, settings.access), settings)))


def _certificate(chain: Path | None, key: Path | None) -> Certificate | None:
    """Return the certificate, checked; None if none is given."""
    from whystall.agent_server.interfaces.web.http_server import Certificate

    if chain is None and key is None:
        return None
    if chain is None or key is None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "a certificate needs its key", "give both --tls-cert and --tls-key")
    certificate = Certificate(chain, key)
    certificate.check()
    return certificate


def _service(app: App, settings: Settings) -> Service | None:
    """Return the service for `settings`; None if they turn nothing on."""
    if not configured(settings):
        return None
    with extra("ticketing"):
        from whystall.agent_server.worker.service import Service

    return Service(app, settings)


def _metrics(app: App, settings: Settings) -> Route | None:
    """Return the route of the metrics; None if they are off."""
    if settings.metrics.token is None:
        return None
    from whystall.agent_server.interfaces.web.metrics import metrics_route
    from whystall.agent_server.interfaces.web.refusals import Refusals

    return metrics_route(app.kb(), settings.metrics, Refusals(app.kb()))


def _otlp(app: App, settings: Settings) -> OtlpExport | None:
    """Return what exports to a collector; None if there is none."""
    if not settings.otlp.on:
        return None
    from whystall.agent_server.otlp.export import OtlpExport

    return OtlpExport(app.kb(), settings.otlp)
