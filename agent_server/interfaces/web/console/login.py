"""Logging in by token, and out."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.interfaces.web.console.sessions import actor
from whystall.agent_server.interfaces.web.console.site import ROOT, SOURCE, Site, Visit
from whystall.agent_server.interfaces.web.gate import Denied

_TOKEN = 16_384  # characters; a signed token has some thousand


def login_routes(site: Site) -> Iterator[Route]:
    """Yield the pages without a session, and the end of one."""

    async def ask(request: Request) -> Response:
        return site.bare(request, "login", wrong=False, to=_inside(request.query_params.get("to", "")))

    async def login(request: Request) -> Response:
        form = await site.form(request)
        token, to = form.get("token", "").strip()[:_TOKEN], _inside(form.get("to", ""))
        begun = await site.sessions.begin(token) if token else None
        if begun is None:
            await site.refused("/login", "unauthorised")
            return site.bare(request, "login", 401, wrong=True, to=to)
        id, access = begun
        await in_thread(lambda: site.kb.audit.put(actor(access), "console.login", "console", detail={"source": SOURCE}))
        return site.begun(request, id, to)

    async def logout(visit: Visit) -> Response:
        site.sessions.end(visit.id)
        return site.ended(visit.request)

    def asset(name: str, media_type: str) -> Route:
        async def file(_request: Request) -> Response:
            return site.asset(name, media_type)

        return site.route(f"/{name}", "GET", file)

    async def elsewhere(_request: Request) -> Response:
        raise Denied(404, "not_found")

    yield site.route("/login", "GET", ask)
    yield site.route("/login", "POST", login)
    yield site.action("/logout", logout)
    yield asset("console.css", "text/css")
    yield asset("console.js", "text/javascript")
    yield asset("icon.svg", "image/svg+xml")
    yield site.route("/{rest:path}", "GET", elsewhere)


def _inside(place: str) -> str:
    """Return the path of the console that `place` names, without `ROOT`; that of the first page for another place."""
    try:
        parts = urlsplit(place)
    except ValueError:
        return ""
    own = parts.path == ROOT or parts.path.startswith(f"{ROOT}/")
    if parts.scheme or parts.netloc or not own or not place.isprintable() or "\\" in place:
        return ""
    return place.removeprefix(ROOT)
