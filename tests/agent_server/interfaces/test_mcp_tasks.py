"""Calls longer than a client waits: the Tasks extension on the wire, and the tools for clients without it."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
import mcp_types as types
import pytest
from fleet_servers import TOKEN, serving
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ConfigDict, TypeAdapter

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.interfaces.mcp.http import http_app
from whystall.agent_server.interfaces.mcp.presence import Presence
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.agent_server.interfaces.mcp.tasks_extension import TASKS
from whystall.agent_server.interfaces.mcp.tokens import Tokens
from whystall.agent_server.interfaces.web.app import web_app
from whystall.agent_server.journal.client_tasks import RUNNING, TTL_S
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.anyio
RECORDED = Path(__file__).parents[2] / "recorded"
ERAS = ("auto", "legacy")
STEP = "step 1: critical_path (where time goes): observing"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """A diagnosis of a recording."""

    async def run() -> Diagnosis:
        with App(tmp_path_factory.mktemp("made") / "knowledge.db").closing() as app:
            return await app.diagnose(DiagnoseParams(), source=RECORDED / "checkpoint")

    return anyio.run(run)


class GatedApp(App):
    """Its diagnosis ends `pause_s` after `gate` opens; a symptom `fail` fails. `detached`: how many have ended."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__()
        self.made = diagnosis
        self.gate = anyio.Event()
        self.pause_s = 0.0
        self.detached = 0

    async def diagnose(self, params: DiagnoseParams, *, progress: Any = None, **_: Any) -> Diagnosis:
        """Report one step, and wait."""
        progress(1.0, 10.0, STEP)
        try:
            await self.gate.wait()
            await anyio.sleep(self.pause_s)
        finally:
            self.detached += 1
        if params.symptom == "fail":
            raise ToolError(ErrorCode.NO_SUCH_PROCESS, "no process 7", "name another")
        return self.made


class CreatedTask(types.Result):
    """What answers a call that becomes a task."""

    model_config = ConfigDict(extra="allow")

    result_type: Literal["task"]
    task_id: str


class Changed(BaseModel):
    """Parameters of a notification."""

    model_config = ConfigDict(extra="allow")


class TaskRequest(types.Request[dict[str, Any], str]):
    """A request of the extension."""

    name_param = "taskId"


class ListenRequest(types.Request[dict[str, Any], str]):
    """A subscription."""


class TasksClient(ClientExtension):
    """A client that finishes tasks by polling, and keeps what it saw."""

    identifier = TASKS

    def __init__(self) -> None:
        self.polled: list[dict[str, Any]] = []
        self.notified: list[dict[str, Any]] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._finish)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=Changed, handler=self._keep)]

    async def _finish(self, task: CreatedTask, context: ClaimContext) -> types.CallToolResult:
        while True:
            request = TaskRequest(method="tasks/get", params={"taskId": task.task_id})
            self.polled.append(await context.session.send_request(request, TypeAdapter(dict[str, Any])))
            if "result" in self.polled[-1]:
                return types.CallToolResult.model_validate(self.polled[-1]["result"])
            await anyio.sleep(0.02)

    async def _keep(self, params: Changed) -> None:
        self.notified.append(params.model_dump())


@asynccontextmanager
async def connected(
    app: App, mode: str = "auto", *extensions: ClientExtension, patience_s: float = 0.01
) -> AsyncIterator[Client]:
    async with Client(server_of(app, patience_s).server, mode=mode, extensions=extensions) as client:
        yield client


def server_of(app: App, patience_s: float = 0.01) -> McpServer:
    """A server that makes a task of a call sooner than usual."""
    server = McpServer(app)
    server.tasks.patience_s = patience_s
    return server


async def start(client: Client, **arguments: Any) -> dict[str, Any]:
    """Call `diagnose` and return the task that it becomes."""
    answer = await client.session.call_tool("diagnose", arguments, allow_claimed=True)
    assert isinstance(answer, CreatedTask)
    return answer.model_dump(by_alias=True)


async def ask(client: Client, method: str, id: str, **more: Any) -> dict[str, Any]:
    request = TaskRequest(method=method, params={"taskId": id, **more})
    return await client.session.send_request(request, TypeAdapter(dict[str, Any]))


async def until(client: Client, id: str, *states: str) -> dict[str, Any]:
    with anyio.fail_after(60):
        while (task := await ask(client, "tasks/get", id))["status"] not in states:
            await anyio.sleep(0.01)
    return task


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


async def test_a_client_with_the_extension_gets_the_result_by_polling(diagnosis: Diagnosis) -> None:
    app, extension = GatedApp(diagnosis), TasksClient()
    async with connected(app, "auto", extension) as client, anyio.create_task_group() as group:

        async def open_gate() -> None:
            while not extension.polled or extension.polled[-1].get("statusMessage") != STEP:
                await anyio.sleep(0.01)
            app.gate.set()

        group.start_soon(open_gate)
        result = await client.call_tool("diagnose", {"symptom": "slow"})
    assert result.structured_content is not None
    assert Diagnosis.model_validate(result.structured_content) == diagnosis
    assert {p["resultType"] for p in extension.polled} == {"complete"}
    assert [p["status"] for p in extension.polled][-1] == "completed"


async def test_a_task_has_the_fields_of_the_specification(diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    async with connected(app, "auto", TasksClient()) as client:
        task = await start(client)
        fields = {"resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
        assert fields <= task.keys() <= {*fields, "statusMessage", "_meta"}
        assert task["resultType"] == "task"
        assert task["status"] == "working"
        assert task["ttlMs"] == TTL_S * 1000
        assert len(task["taskId"]) == 32
        working = await ask(client, "tasks/get", task["taskId"])
        assert working["status"] == "working"
        assert not {"result", "error", "inputRequests", "requestState"} & working.keys()
        acknowledged = await ask(client, "tasks/update", task["taskId"], inputResponses={"x": {}})
        assert acknowledged.keys() == {"resultType", "_meta"}
        app.gate.set()
        done = await until(client, task["taskId"], "completed")
        assert done["resultType"] == "complete"
        assert done["createdAt"] == task["createdAt"] <= done["lastUpdatedAt"]
        assert done["result"]["structuredContent"]["id"] == diagnosis.id
        assert done["result"]["content"][0]["type"] == "text"
        assert (await ask(client, "tasks/cancel", task["taskId"])).keys() == {"resultType", "_meta"}
        assert (await ask(client, "tasks/get", task["taskId"])) == done


async def test_a_tool_that_fails_has_completed(diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    async with connected(app, "auto", TasksClient()) as client:
        task = await start(client, symptom="fail")
        app.gate.set()
        done = await until(client, task["taskId"], "completed", "failed")
        assert done["result"]["isError"] is True
        assert done["result"]["content"][0]["text"] == "no_such_process: no process 7 (name another)"


async def test_a_short_call_is_answered_at_once(diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    app.gate.set()
    async with connected(app, "auto", TasksClient(), patience_s=60) as client:
        answer = await client.session.call_tool("diagnose", {}, allow_claimed=True)
        refused = await client.session.call_tool("diagnose", {"nope": 1}, allow_claimed=True)
    assert isinstance(answer, types.CallToolResult)
    assert answer.structured_content is not None
    assert isinstance(refused, types.CallToolResult)
    assert refused.is_error


async def test_cancelling_detaches_and_is_seen(diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    async with connected(app, "auto", TasksClient()) as client:
        task = await start(client)
        await ask(client, "tasks/cancel", task["taskId"])
        cancelled = await until(client, task["taskId"], "cancelled")
        assert app.detached == 1
        assert not {"result", "error"} & cancelled.keys()


async def test_what_is_unknown_is_refused(diagnosis: Diagnosis) -> None:
    async with connected(GatedApp(diagnosis), "auto", TasksClient()) as client:
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            with pytest.raises(MCPError, match="not_found") as refused:
                await ask(client, method, "nope", inputResponses={})
            assert refused.value.code == types.INVALID_PARAMS
        for method in ("tasks/list", "tasks/result"):
            with pytest.raises(MCPError) as refused:
                await ask(client, method, "nope")
            assert refused.value.code == types.METHOD_NOT_FOUND
        declared = client.server_capabilities
        assert declared is not None
        assert TASKS in (declared.extensions or {})
        assert declared.tools is not None
        assert not declared.tools.list_changed


async def test_a_client_that_declares_nothing_gets_no_task(diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    app.gate.set()
    async with connected(app) as client:
        answer = await client.session.call_tool("diagnose", {}, allow_claimed=True)
        assert isinstance(answer, types.CallToolResult)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            with pytest.raises(MCPError) as refused:
                await ask(client, method, "nope", inputResponses={})
            assert refused.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
            assert refused.value.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        with pytest.raises(MCPError) as refused:
            await listen(client, ["nope"])
        assert refused.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY


async def test_the_extension_does_not_exist_in_the_handshake_era(diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    app.gate.set()
    async with connected(app, "legacy", TasksClient()) as client:
        assert isinstance(await client.session.call_tool("diagnose", {}, allow_claimed=True), types.CallToolResult)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            with pytest.raises(MCPError) as refused:
                await ask(client, method, "nope", inputResponses={})
            assert refused.value.code == types.METHOD_NOT_FOUND
        declared = client.server_capabilities
        assert declared is not None
        assert TASKS not in (declared.extensions or {})


async def listen(client: Client, ids: list[str]) -> dict[str, Any]:
    request = ListenRequest(method="subscriptions/listen", params={"notifications": {"taskIds": ids}})
    return await client.session.send_request(request, TypeAdapter(dict[str, Any]))


async def test_a_subscription_tells_the_states_of_its_tasks_and_ends_with_them(diagnosis: Diagnosis) -> None:
    app, extension = GatedApp(diagnosis), TasksClient()
    async with connected(app, "auto", extension) as client, anyio.create_task_group() as group:
        task, other = await start(client), await start(client)
        ended: list[dict[str, Any]] = []

        async def follow() -> None:
            ended.append(await listen(client, [task["taskId"], "nope"]))

        group.start_soon(follow)
        with anyio.fail_after(60):
            while not extension.notified:
                await anyio.sleep(0.01)
            app.gate.set()
            while not ended or extension.notified[-1]["status"] == "working":
                await anyio.sleep(0.01)
        await until(client, other["taskId"], "completed")
    assert {n["taskId"] for n in extension.notified} == {task["taskId"]}
    assert extension.notified[0]["status"] == "working"
    assert extension.notified[-1]["status"] == "completed"
    assert extension.notified[-1]["result"]["structuredContent"]["id"] == diagnosis.id
    ids = {n["_meta"]["io.modelcontextprotocol/subscriptionId"] for n in extension.notified}
    assert ids == {ended[0]["_meta"]["io.modelcontextprotocol/subscriptionId"]}


async def test_a_subscription_to_nothing_ends(diagnosis: Diagnosis) -> None:
    async with connected(GatedApp(diagnosis), "auto", TasksClient()) as client:
        with anyio.fail_after(60):
            assert (await listen(client, []))["resultType"] == "complete"
        with pytest.raises(MCPError, match="at most"):
            await listen(client, ["x"] * 65)


async def test_results_survive_a_restart_and_expire(diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    async with connected(app, "auto", TasksClient()) as client:
        done = await start(client)
        app.gate.set()
        before = await until(client, done["taskId"], "completed")
        app.gate = anyio.Event()
        running = await start(client)
    assert app.detached == 2  # the server has stopped
    server = server_of(app)
    async with Client(server.server, extensions=[TasksClient()]) as client:
        again = await ask(client, "tasks/get", done["taskId"])
        assert again == before
        stopped = await ask(client, "tasks/get", running["taskId"])
        assert stopped["status"] == "failed"
        assert stopped["error"]["code"] == types.INTERNAL_ERROR
        assert stopped["error"]["message"] == stopped["statusMessage"]
        assert stopped["statusMessage"].startswith("interrupted: ")
        told = await client.call_tool("diagnose_result", {"id": running["taskId"]})
        assert told.is_error
        assert text_of(told) == "cancelled: interrupted: the server stopped while it ran (call diagnose_start again)"
        now = server.tasks.clock()
        server.tasks.clock = lambda: now + TTL_S
        with pytest.raises(MCPError, match="not_found") as refused:
            await ask(client, "tasks/get", done["taskId"])
        assert refused.value.code == types.INVALID_PARAMS


async def test_the_tasks_of_a_killed_server_are_interrupted(diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    kb = app.kb()
    killed, living = Presence(kb.path), Presence(kb.path)
    server = server_of(app)
    now = server.tasks.clock()
    theirs = [kb.client_tasks.add("", one.id, "diagnose", now).id for one in (killed, living)]
    async with Client(server.server, extensions=[TasksClient()]) as client:
        assert [(await ask(client, "tasks/get", id))["status"] for id in theirs] == ["working", "working"]
        os.close(killed._descriptor)  # as the kernel does, of a process that is killed
        assert [(await ask(client, "tasks/get", id))["status"] for id in theirs] == ["failed", "working"]
        await start(client)  # the first of this server removes what is left of others
        assert len(list(kb.path.parent.glob("*.mcp-*"))) == 2
        assert [(await ask(client, "tasks/get", id))["status"] for id in theirs] == ["failed", "working"]
    living.close()
    assert not list(kb.path.parent.glob("*.mcp-*"))


@pytest.mark.parametrize("mode", ERAS)
async def test_a_diagnosis_is_started_and_fetched_without_the_extension(mode: str, diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    async with connected(app, mode) as client:
        started = await client.call_tool("diagnose_start", {"symptom": "slow"})
        assert started.structured_content is not None
        id = started.structured_content["id"]
        assert id in text_of(started)
        working = await client.call_tool("diagnose_result", {"id": id, "wait_s": 0.05})
        assert working.structured_content is not None
        assert working.structured_content["state"] == "working"
        assert working.structured_content["step"] == STEP
        assert STEP in text_of(working)
        app.gate.set()
        done = await client.call_tool("diagnose_result", {"id": id})
        assert done.structured_content is not None
        assert done.structured_content["state"] == "completed"
        assert Diagnosis.model_validate(done.structured_content["result"]) == diagnosis
        texts = [text_of(done), text_of(await client.call_tool("diagnose", {}))]
        assert len({re.sub(r"artifacts/[0-9a-f]+", "", text) for text in texts}) == 1
        assert await client.call_tool("diagnose_result", {"id": id, "wait_s": 0}) == done


@pytest.mark.parametrize("mode", ERAS)
async def test_failures_are_told_when_fetched(mode: str, diagnosis: Diagnosis) -> None:
    app = GatedApp(diagnosis)
    async with connected(app, mode) as client:
        ids = []
        for symptom in ("fail", *["slow"] * (RUNNING - 1)):
            started = await client.call_tool("diagnose_start", {"symptom": symptom})
            ids.append((started.structured_content or {})["id"])
        busy = await client.call_tool("diagnose_start", {})
        assert busy.is_error
        assert text_of(busy).startswith(f"busy: {RUNNING} calls are running")
        cancelled = await client.call_tool("diagnose_result", {"id": ids[1], "cancel": True})
        assert cancelled.is_error
        assert text_of(cancelled) == "cancelled: it was cancelled (call diagnose_start again)"
        assert app.detached == 1
        assert not (await client.call_tool("diagnose_start", {})).is_error
        app.gate.set()
        failed = await client.call_tool("diagnose_result", {"id": ids[0]})
        assert failed.is_error
        assert text_of(failed) == "no_such_process: no process 7 (name another)"
        for arguments, code in (({"id": "nope"}, "not_found: "), ({"id": ids[0], "wait_s": 60}, "bad_argument: ")):
            refused = await client.call_tool("diagnose_result", arguments)
            assert refused.is_error
            assert text_of(refused).startswith(code)
        refused = await client.call_tool("diagnose_start", {"llm": True})
        assert "reserved for the operator" in text_of(refused)


async def test_a_result_that_cannot_be_stored_is_kept(diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    app = GatedApp(diagnosis)
    async with connected(app, "auto", TasksClient()) as client:
        id = (await start(client))["taskId"]

        def full(_task: object) -> None:
            raise ToolError(ErrorCode.DISK_FULL, "no space", "free some")

        with monkeypatch.context() as patched:
            patched.setattr(app.kb().client_tasks, "end", full)
            app.gate.set()
            done = await until(client, id, "completed")
        assert app.kb().client_tasks.get(id, "", 0.0).state == "working"  # type: ignore[union-attr]
        assert await ask(client, "tasks/get", id) == done
        assert app.kb().client_tasks.get(id, "", 0.0).state == "completed"  # type: ignore[union-attr]


async def test_a_call_is_answered_if_no_task_can_be_stored(
    diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = GatedApp(diagnosis)

    def full(*_: object) -> None:
        app.gate.set()
        raise ToolError(ErrorCode.BUSY, "too many", "wait")

    monkeypatch.setattr(app.kb().client_tasks, "add", full)
    async with connected(app, "auto", TasksClient()) as client:
        answer = await client.session.call_tool("diagnose", {}, allow_claimed=True)
    assert isinstance(answer, types.CallToolResult)
    assert not answer.is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_sees_only_its_own_tasks(
    mode: str, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, where tokens tell clients apart."""

    async def verify(_self: object, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id=token.partition("-")[0], scopes=["observe"])

    monkeypatch.setattr(Tokens, "verify_token", verify)
    app = GatedApp(diagnosis)
    app.pause_s = 0.5
    app.gate.set()
    mcp = http_app(server_of(app), "127.0.0.1", TOKEN)
    with serving({"host": web_app([], mcp)}) as urls:

        def client(token: str, *extensions: ClientExtension) -> Client:
            session = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
            return Client(streamable_http_client(urls["host"], http_client=session), mode=mode, extensions=extensions)

        extension = TasksClient()
        async with client("ann-1") as ann, client("bob-1", extension) as bob, client("ann-2") as later:
            id = ((await ann.call_tool("diagnose_start", {})).structured_content or {})["id"]
            seen = [await one.call_tool("diagnose_result", {"id": id}) for one in (ann, bob, later)]
            assert [one.is_error for one in seen] == [False, True, False]
            assert text_of(seen[1]).startswith("not_found: ")
            if mode == "auto":
                for method in ("tasks/get", "tasks/cancel"):
                    with pytest.raises(MCPError, match="not_found"):
                        await ask(bob, method, id)
                own = await start(bob)
                assert (await listen(bob, [own["taskId"], id]))["resultType"] == "complete"
                assert {one["taskId"] for one in extension.notified} == {own["taskId"]}
                assert extension.notified[0]["status"] == "working"
                assert extension.notified[-1]["status"] == "completed"
                polled = (await bob.call_tool("diagnose", {})).structured_content
                assert polled is not None
                assert polled["id"] == diagnosis.id
                assert extension.polled
