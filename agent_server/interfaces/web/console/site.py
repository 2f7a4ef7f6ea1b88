"""What all pages of the console share: sessions, scopes, forms, languages, headers, and pages for errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.authentication import AuthenticationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from whystall.agent_server.interfaces.mcp.scopes import permits
from whystall.agent_server.interfaces.web.console.sessions import LONGEST_S, Session, Sessions, actor
from whystall.agent_server.interfaces.web.gate import Denied, Gate
from whystall.agent_server.interfaces.web.refusals import Refusals
from whystall.agent_server.interfaces.web.route import STATUS
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.models import Lang
from whystall.prompts.errors import error_text
from whystall.prompts.files import texts_of
from whystall.prompts.html import render_page
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from mcp.server.auth.provider import AccessToken

    from whystall.agent_server.app import App
    from whystall.agent_server.interfaces.mcp.server import McpServer
    from whystall.agent_server.interfaces.mcp.tokens import Tokens
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.settings.sections.access import Scope
    from whystall.agent_server.stores import Stores
    from whystall.agent_server.watch.fleet_jobs import FleetJobs

ROOT = "/console"
SOURCE = "web"
"""`Comment.source` and the detail ``source`` of audit lines."""
_SESSION, _LANGUAGE = "whystall_session", "whystall_lang"
_LANGUAGE_S = 365 * 24 * 3600
_FORM_BYTES, _FORM_S, _FIELDS = 128 << 10, 10.0, 40
_AT_ONCE = 32
_AGAIN_S = 10
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# For pages and pictures that are opened by themselves: no origin, nothing fetched. Our pages state a stricter policy.
FRAMED = "sandbox allow-scripts; frame-ancestors 'self'; default-src 'none'; script-src 'unsafe-inline'; "
FRAMED += "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_ASSETS = Path(__file__).parent / "assets"
_log = logging.getLogger("whystall.web")


class Login(Exception):
    """The request has no session."""


@dataclass
class Visit:
    """One request of somebody who has logged in. `form`: the fields of its body."""

    request: Request
    id: str
    session: Session
    access: AccessToken
    lang: Lang
    form: dict[str, str] = field(default_factory=dict)

    @property
    def by(self) -> str:
        return actor(self.access)

    def may(self, *scopes: Scope) -> bool:
        """Return whether its token has all these scopes."""
        return permits(frozenset(self.access.scopes), scopes)

    def require(self, *scopes: Scope) -> None:
        """Raise `Denied` (403) without these scopes."""
        if not self.may(*scopes):
            raise Denied(403, "insufficient_scope", detail=" ".join(scopes))

    def query(self, name: str) -> str:
        """Return a field of the address, empty without it."""
        return self.request.query_params.get(name, "")

    @property
    def page(self) -> int:
        """The number of the page of a list, from 1."""
        given = self.query("page")
        return min(max(int(given), 1), 100_000) if given.isascii() and given.isdigit() and len(given) < 9 else 1

    @contextmanager
    def client(self) -> Iterator[None]:
        """Let the tasks of MCP know whose they are within the block."""
        before = auth_context_var.set(AuthenticatedUser(self.access))
        try:
            yield
        finally:
            auth_context_var.reset(before)


Answer = Callable[[Visit], Awaitable[Response]]


class Site:
    """The console of one server."""

    def __init__(
        self, app: App, mcp_server: McpServer, tokens: Tokens, settings: Settings, sessions: Sessions | None = None
    ) -> None:
        self.app = app
        self.mcp_server = mcp_server
        self.settings = settings
        self.sessions = sessions or Sessions(tokens)
        self.fleet: FleetJobs | None = None
        if settings.fleet.configured:
            from whystall.agent_server.watch.fleet_jobs import FleetJobs

            self.fleet = FleetJobs(settings.fleet)
        self._gate = Gate(_FORM_BYTES, _FORM_S, _AT_ONCE)
        self._refusals: Refusals | None = None

    @property
    def kb(self) -> Stores:
        return self.app.kb()

    @property
    def tickets(self) -> TicketService:
        return TicketService(self.kb, self.settings)

    # --- routes -----------------------------------------------------------------------------------------------------

    def page(self, path: str, answer: Answer, *scopes: Scope) -> Route:
        """Return the route of a page, which needs `scopes`."""

        async def get(request: Request) -> Response:
            visit = await self._visit(request)
            visit.require(*scopes)
            return await answer(visit)

        return self.route(path, "GET", get)

    def action(self, path: str, answer: Answer, *scopes: Scope) -> Route:
        """Return the route of a form that changes something: it needs `scopes` and the proof of a page of ours."""

        async def post(request: Request) -> Response:
            visit = await self._visit(request)
            visit.form = await self.form(request)
            if not visit.session.proves(visit.form.get("csrf", "")):
                raise Denied(403, "csrf")
            visit.require(*scopes)
            return await answer(visit)

        return self.route(path, "POST", post)

    def route(self, path: str, method: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        """Return a route without a session, whose errors are pages."""

        async def endpoint(request: Request) -> Response:
            try:
                with self._gate.entered():
                    return _guarded(await answer(request))
            except Login:
                return self._to_login(request)
            except Denied as denied:
                await self.refused(path, denied.code, denied.detail)
                return self._error(request, denied.status, denied.code, denied.detail, denied.wait)
            except AuthenticationError:
                return self._error(request, 503, "unready", "", _AGAIN_S)
            except ToolError as error:
                return self._failed(request, error)
            except Exception:
                _log.exception("%s failed unexpectedly", path)
                return self._error(request, 500, "internal", "")

        return Route(ROOT + path, endpoint, methods=[method])

    async def form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form sent by a page of this server. Raises `Denied`."""
        origin = request.headers.get("origin")
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin" or (
            origin is not None and urlsplit(origin).netloc != request.headers.get("host")
        ):
            raise Denied(403, "csrf", detail="from another site")
        body = await self._gate.body(request)
        try:
            return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS, strict_parsing=False))
        except ValueError:
            raise Denied(400, "malformed") from None

    # --- answers ----------------------------------------------------------------------------------------------------

    def show(self, visit: Visit, name: str, /, **context: Any) -> Response:
        """Return the page `name`."""
        who = {"name": visit.by, "csrf": visit.session.csrf, "tickets": visit.may("tickets")}
        who["observe"] = visit.may("observe")
        who["fleet"] = self.fleet is not None and visit.may("observe")
        return _html(visit.request, visit.lang, name, 200, who=who, **context)

    def go(self, path: str, **query: str) -> Response:
        """Return the redirection after a change."""
        return RedirectResponse(f"{ROOT}{path}{'?' + urlencode(query) if query else ''}", status_code=303)

    def begun(self, request: Request, id: str, path: str) -> Response:
        """Return the redirection to `path` with the cookie of the session `id`."""
        response = self.go(path)
        response.set_cookie(
            _SESSION, id, max_age=int(LONGEST_S), path=ROOT, secure=self._encrypted(request), httponly=True,
            samesite="strict",
        )  # fmt: skip
        return response

    def ended(self, request: Request) -> Response:
        """Return the redirection to the login, without a cookie."""
        response = self.go("/login")
        response.delete_cookie(_SESSION, path=ROOT, secure=self._encrypted(request), httponly=True, samesite="strict")
        return response

    def bare(self, request: Request, name: str, status: int = 200, /, **context: Any) -> Response:
        """Return a page for anybody."""
        return _html(request, language(request), name, status, who=None, **context)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _encrypted(self, request: Request) -> bool:
        """Return whether the browser's connection is encrypted: by TLS here, or by a proxy on this host."""
        public = self.settings.server.public_url
        return request.url.scheme == "https" or (public is not None and public.startswith("https:"))

    async def _visit(self, request: Request) -> Visit:
        id = request.cookies.get(_SESSION, "")
        found = await self.sessions.find(id) if id else None
        if found is None:
            raise Login
        return Visit(request, id, found[0], found[1], language(request))

    def _to_login(self, request: Request) -> Response:
        if request.method != "GET":
            return self._error(request, 401, "unauthorised", "")
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link from elsewhere, as from a chat, comes without the strict cookie; from our page it comes with it.
            return _guarded(self.bare(request, "again", wanted=wanted))
        response = RedirectResponse(f"{ROOT}/login?to={quote(wanted, safe='')}", status_code=303)
        return _guarded(response)

    def asset(self, name: str, media_type: str) -> Response:
        """Return a file of ours, which browsers keep."""
        headers = {"Cache-Control": "public, max-age=3600"}
        return Response((_ASSETS / name).read_bytes(), media_type=media_type, headers=headers)

    async def refused(self, path: str, code: str, detail: str = "") -> None:
        """Count a refused request in the audit log."""
        if self._refusals is None:
            self._refusals = Refusals(self.kb)
        await self._refusals.note(ROOT + path, code, clean(detail, 300))

    def _error(self, request: Request, status: int, code: str, detail: str, wait: int | None = None) -> Response:
        texts = texts_of("console", language(request))["errors"]
        text = str(texts.get(code, texts["other"])).format(detail)
        response = self.bare(request, "error", status, code=code, text=text, markdown="")
        if wait is not None:
            response.headers["Retry-After"] = str(wait)
        return _guarded(response)

    def _failed(self, request: Request, error: ToolError) -> Response:
        status = STATUS.get(error.code, 409 if error.code is ErrorCode.BUSY else 503)
        text = error_text(language(request), error.code.value, error.message, error.remedy)
        return _guarded(self.bare(request, "error", status, code=error.code.value, text="", markdown=text))


def language(request: Request) -> Lang:
    """Return the language of the cookie of the switch, else the preferred one of the browser that we have."""
    for chosen in (request.query_params.get("lang"), request.cookies.get(_LANGUAGE)):
        if chosen in get_args(Lang):
            return "zh" if chosen == "zh" else "en"
    return _preferred(request.headers.get("accept-language", ""))


def _preferred(header: str) -> Lang:
    """Return the language of ``zh-CN,zh;q=0.9,en;q=0.8``; English without one of ours."""
    best: tuple[float, Lang] = (0.0, "en")
    for part in header[:500].split(","):
        name, _, rest = part.strip().partition(";")
        try:
            weight = float(rest.strip().removeprefix("q=") or 1)
        except ValueError:
            continue
        short = name.lower().partition("-")[0]
        if short in ("en", "zh") and weight > best[0]:
            best = (weight, "zh" if short == "zh" else "en")
    return best[1]


def _html(request: Request, lang: Lang, name: str, status: int, /, **context: Any) -> Response:
    others = [(key, value) for key, value in request.query_params.multi_items() if key not in ("lang", "done")]
    switch = {each: "?" + urlencode([*others, ("lang", each)]) for each in get_args(Lang)}
    here = {"root": ROOT, "path": request.url.path.removeprefix(ROOT), "switch": switch}
    response = HTMLResponse(render_page(name, lang, here=here, **context), status_code=status)
    if request.query_params.get("lang") in get_args(Lang):
        response.set_cookie(_LANGUAGE, lang, max_age=_LANGUAGE_S, path=ROOT, samesite="lax")
    return response


def _guarded(response: Response) -> Response:
    """Return `response` with our headers, unless it has its own."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def framed(page: str | bytes) -> Response:
    """Return a self-contained page with scripts, for a frame without an origin."""
    headers = {"Content-Security-Policy": FRAMED, "X-Frame-Options": "SAMEORIGIN"}
    return Response(page, media_type="text/html", headers=headers)


def paged(query: Mapping[str, str], page: int) -> str:
    """Return the query of another page of a list."""
    return "?" + urlencode({**{name: value for name, value in query.items() if value}, "page": str(page)})
