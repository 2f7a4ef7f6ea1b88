"""The MCP tools ``diagnose_start`` and ``diagnose_result``: a diagnosis longer than the client waits for a call."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.interfaces.mcp.answers import StoredFailure
from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.entry import Answer, Entry
from whystall.agent_server.interfaces.mcp.tasks import TaskRunner
from whystall.agent_server.journal.client_tasks import ClientTask
from whystall.knowledge_base.models import Lang
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params

_LONGEST_S, _WAIT_S = 50.0, 45.0  # many clients end a call after 60 s


class DiagnoseResultParams(Params):
    """Which diagnosis."""

    id: Annotated[str, Field(min_length=1, max_length=200, description="from diagnose_start")]
    wait_s: Annotated[float, Field(ge=0, le=_LONGEST_S, description="seconds to wait for it")] = _WAIT_S
    cancel: Annotated[bool, Field(description="end it")] = False


class BackgroundDiagnosis(BaseModel):
    """A diagnosis in the background, for `seconds` so far; `step`: its progress. `result`: as `diagnose` returns it."""

    model_config = ConfigDict(extra="forbid")

    id: str
    state: Literal["working", "completed"]
    step: str = ""
    seconds: float = 0.0
    result: dict[str, Any] | None = None


def background_entries(diagnose: Entry, tasks: TaskRunner, lang: Lang) -> list[Entry]:
    """Return both tools; `diagnose` does the work."""
    texts = words(lang)["background"]

    async def start(given: dict[str, Any], _progress: Progress) -> Answer:
        task = tasks.start(diagnose, given)
        return BackgroundDiagnosis(id=task.id, state="working"), texts["started"].format(task.id)

    async def result(given: dict[str, Any], _progress: Progress) -> Answer:
        if given.get("cancel"):
            tasks.cancel(given["id"])
        task = await tasks.wait(given["id"], given.get("wait_s", _WAIT_S))
        if task.state == "working":
            seconds = max(time.time() - task.created, 0.0)
            still = BackgroundDiagnosis(id=task.id, state="working", step=task.step, seconds=seconds)
            return still, texts["working"].format(f"{seconds:.0f}", task.step or texts["waiting"], task.id)
        return _ended(task)

    parts: dict[str, Any] = {"read_only": False, "task": False}
    asking = parts | {"prepare": diagnose.prepare}
    text = "As `diagnose`, for clients that end calls after a minute: gives the id for `diagnose_result` at once."
    starts = Entry("diagnose_start", "Start a diagnosis", text, diagnose.params, start, **asking)
    text = "The diagnosis with this id, or its progress."
    params = DiagnoseResultParams
    return [starts, Entry("diagnose_result", "Get a diagnosis", text, params, call=result, repeatable=True, **parts)]


def _ended(task: ClientTask) -> Answer:
    """Return a finished diagnosis; raise what ended it otherwise."""
    if task.state == "completed" and task.outcome is not None:
        text = "\n".join(block["text"] for block in task.outcome["content"])
        if task.outcome.get("isError"):
            raise StoredFailure(text)
        seconds, result = task.updated - task.created, task.outcome["structuredContent"]
        return BackgroundDiagnosis(id=task.id, state="completed", seconds=seconds, result=result), text
    if task.state == "failed" and task.outcome is not None:
        raise StoredFailure(task.outcome["message"])
    why = "it was cancelled" if task.state == "cancelled" else "interrupted: the server stopped while it ran"
    raise ToolError(ErrorCode.CANCELLED, why, "call diagnose_start again")
