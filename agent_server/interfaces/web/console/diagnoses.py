"""Diagnoses: the list, starting one, its live progress, and its page with evidence, critical path and pictures.

A diagnosis runs as a task of MCP (`interfaces.mcp.tasks`): with its limits, for the same client, and it survives the
connection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import Response
from starlette.routing import Route

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.pictures.verdict import svg
from whystall.agent_server.interfaces.mcp.scopes import needed
from whystall.agent_server.interfaces.mcp.tools import diagnose_entry
from whystall.agent_server.interfaces.web.console.diagnosis_view import diagnosis_context, page_text, stacks_of
from whystall.agent_server.interfaces.web.console.site import FRAMED, ROOT, SOURCE, Site, Visit, framed, paged
from whystall.agent_server.interfaces.web.gate import Denied
from whystall.agent_server.watch.overview import watch
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from whystall.agent_server.journal.client_tasks import ClientTask

_PAGE = 30
_STREAMS = 32
_FLAMES = 1000  # names of pages that are remembered
_BEAT_S = 15.0


def diagnosis_routes(site: Site) -> Iterator[Route]:
    """Yield the pages of diagnoses."""
    entries = {lang: diagnose_entry(site.app, lang) for lang in ("en", "zh")}
    tasks = site.mcp_server.tasks
    drawn_flames: dict[tuple[str, Lang], str] = {}
    streams = anyio.CapacityLimiter(_STREAMS)

    async def listed(visit: Visit) -> Response:
        def read() -> dict[str, Any]:
            lines = site.kb.latest_diagnoses(_PAGE + 1, (visit.page - 1) * _PAGE)
            causes = {id: cause.title.get(visit.lang) for id, cause in load_causes().items()}
            found = watch(also_unwatched=True)
            return {"lines": lines[:_PAGE], "more": len(lines) > _PAGE, "causes": causes, "watch": found}

        found = await in_thread(read)
        before, after = (paged({}, visit.page + step) for step in (-1, 1))
        return site.show(
            visit,
            "diagnoses",
            pid=visit.query("pid"),
            before=before if visit.page > 1 else "",
            after=after if found.pop("more") else "",
            **found,
        )

    async def start(visit: Visit) -> Response:
        entry = entries[visit.lang]
        arguments = _arguments(visit.form)
        visit.require(*needed("tools/call", {"name": entry.name, "arguments": arguments}, {entry.name: entry}))
        checked = entry.checked(arguments)
        with visit.client():
            task = tasks.start(entry, checked)
        detail = {"source": SOURCE, **checked}
        await in_thread(lambda: site.kb.audit.put(visit.by, "diagnosis.started", f"task:{task.id}", detail=detail))
        return site.go(f"/runs/{task.id}")

    def task_of(visit: Visit) -> ClientTask:
        with visit.client():
            return tasks.get(visit.request.path_params["id"])

    async def run(visit: Visit) -> Response:
        task = task_of(visit)
        if done := diagnosis_of(task):
            return site.go(f"/diagnoses/{done}")
        seconds = max(time.time() - task.created, 0.0)
        return site.show(visit, "run", task=task, seconds=round(seconds), failure=_failure(task))

    async def cancel(visit: Visit) -> Response:
        with visit.client():
            tasks.cancel(visit.request.path_params["id"])
        return site.go(f"/runs/{visit.request.path_params['id']}")

    async def events(visit: Visit) -> Response:
        task = task_of(visit)
        return _Progress(site, visit, task.id, streams)

    async def shown(visit: Visit) -> Response:
        d = await in_thread(lambda: site.kb.get_diagnosis(visit.request.path_params["id"]))
        context = await in_thread(lambda: diagnosis_context(d, visit.lang))
        return site.show(visit, "diagnosis", view=context, d=d)

    async def picture(visit: Visit) -> Response:
        d = await in_thread(lambda: site.kb.get_diagnosis(visit.request.path_params["id"]))
        drawn = await in_thread(lambda: svg(d, visit.lang))
        return Response(drawn, media_type="image/svg+xml", headers={"Content-Security-Policy": FRAMED})

    async def flame(visit: Visit) -> Response:
        d = await in_thread(lambda: site.kb.get_diagnosis(visit.request.path_params["id"]))
        file = stacks_of(d, visit.request.path_params["index"])
        name = drawn_flames.get((file.name, visit.lang), "")
        if not name:
            result = await site.app.run_tool("flame_graph", {}, source=file, lang=visit.lang)
            name = next((one.uri.rpartition("/")[2] for one in result.artifacts if one.media_type == "text/html"), "")
            if len(drawn_flames) >= _FLAMES:
                drawn_flames.clear()
            drawn_flames[file.name, visit.lang] = name
        return framed(await in_thread(lambda: page_text(name)))

    async def page(visit: Visit) -> Response:
        return framed(await in_thread(lambda: page_text(visit.request.path_params["name"])))

    yield site.page("/diagnoses", listed, "observe")
    yield site.action("/diagnoses", start, "observe")
    yield site.page("/diagnoses/{id}", shown, "observe")
    yield site.page("/diagnoses/{id}/picture.svg", picture, "observe")
    yield site.page("/diagnoses/{id}/flames/{index:int}", flame, "observe")
    yield site.page("/pages/{name}", page, "observe")
    yield site.page("/runs/{id}", run, "observe")
    yield site.page("/runs/{id}/events", events, "observe")
    yield site.action("/runs/{id}/cancel", cancel, "observe")


def _arguments(form: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of ``diagnose`` in a form. Raises `ToolError` (bad_argument) for what is no number."""
    found: dict[str, Any] = {}
    for name, kind in (("pid", int), ("duration", float)):
        if text := form.get(name, "").strip():
            try:
                found[name] = kind(text[:20])
            except ValueError:
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: {text!r} is no number", "give a number") from None
    if symptom := form.get("symptom", "").strip():
        found["symptom"] = symptom
    if form.get("ticket"):
        found["ticket"] = True
    return found


def diagnosis_of(task: ClientTask) -> str:
    """Return the id of the diagnosis that a task has made, empty if it has not."""
    outcome = task.outcome or {}
    if task.state != "completed" or outcome.get("isError"):
        return ""
    return str((outcome.get("structuredContent") or {}).get("id", ""))


def _failure(task: ClientTask) -> str:
    """Return the message with which a task failed, empty if it did not."""
    outcome = task.outcome or {}
    if task.state == "failed":
        return str(outcome.get("message", ""))
    return "\n".join(str(part.get("text", "")) for part in outcome.get("content", ())) if outcome.get("isError") else ""


class _Progress(Response):
    """Sends the progress of a task as server-sent events, until it or the session has ended."""

    media_type = "text/event-stream"

    def __init__(self, site: Site, visit: Visit, task: str, limiter: anyio.CapacityLimiter) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._site = site
        self._visit = visit
        self._task = task
        self._limiter = limiter
        if limiter.available_tokens < 1:
            raise Denied(503, "busy")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        async with self._limiter, anyio.create_task_group() as group:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

            async def progress_of(task: ClientTask) -> None:
                done = diagnosis_of(task)
                place = f"{ROOT}/diagnoses/{done}" if done else ""
                if task.state != "working" and not done:
                    place = f"{ROOT}/runs/{task.id}"
                event = {"state": task.state, "step": task.step, "place": place}
                await write(f"data: {json.dumps(event, ensure_ascii=True)}\n\n")

            async def write(text: str) -> None:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

            async def beat() -> None:
                while await self._site.sessions.find(self._visit.id) is not None:
                    await anyio.sleep(_BEAT_S)
                    await write(": \n\n")  # a proxy would end a silent connection
                group.cancel_scope.cancel()

            async def gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(beat)
            group.start_soon(gone)
            with self._visit.client():
                await self._site.mcp_server.tasks.follow([self._task], progress_of)
            group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
