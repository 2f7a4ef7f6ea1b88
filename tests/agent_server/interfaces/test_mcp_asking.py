"""Asking the user of a client which process is meant, through the SDK's own client, in both eras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.asking import Answers, Questions, untitled
from whystall.agent_server.interfaces.mcp.entry import Entry
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.agent_server.interfaces.mcp.which_process import KEY
from whystall.agent_server.job_lookup.models import LISTED

pytestmark = pytest.mark.anyio
ERAS = ("auto", "legacy")
NAME = "zqxwv-train"
Reply = Callable[[types.ElicitRequestFormParams], Awaitable[types.ElicitResult]]


@pytest.fixture(autouse=True)
def _own_state(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(state))


def started(directory: Path, name: str) -> subprocess.Popen[bytes]:
    """A process that sleeps, and is called `name`."""
    directory.mkdir()
    script = directory / name
    script.write_text("import time\ntime.sleep(600)\n")
    return subprocess.Popen([sys.executable, "-S", str(script)])


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two jobs with one name, one of which also has a name to mislead a terminal."""
    made = [started(tmp_path / "a", f"{NAME}-a.py"), started(tmp_path / "b", f"{NAME}-\x1b[2J\u202e.py")]
    try:
        yield made
    finally:
        for one in made:
            one.kill()
            one.wait()


class User:
    """Answers in turn with `replies`; the last one again. `asked`: what was shown."""

    def __init__(self, *replies: types.ElicitResult) -> None:
        self.replies = list(replies)
        self.asked: list[types.ElicitRequestFormParams] = []

    async def __call__(self, _ctx: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    @property
    def choices(self) -> dict[str, str]:
        """The labels of the last question by value."""
        field = self.asked[-1].requested_schema["properties"][KEY]
        return {one["const"]: one["title"] for one in field["oneOf"]}


def choose(pid: int | str) -> types.ElicitResult:
    """Choose a process."""
    return types.ElicitResult(action="accept", content={KEY: str(pid)})


DECLINE, CANCEL = types.ElicitResult(action="decline"), types.ElicitResult(action="cancel")


@asynccontextmanager
async def connected(mode: str, user: Any, patience_s: float = 60.0) -> AsyncIterator[Client]:
    """A client, with a user to ask if `user` is not None."""
    with App().closing() as app:
        server = McpServer(app, chosen=("all",))
        server.patience_s = patience_s
        async with Client(server.server, mode=mode, elicitation_callback=user) as client:
            yield client


async def find(client: Client, text: str = NAME) -> dict[str, Any]:
    """What ``find_job`` answers."""
    result = await client.call_tool("find_job", {"text": text})
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


@pytest.mark.parametrize("mode", ERAS)
async def test_the_chosen_process_is_found(mode: str, jobs: list[subprocess.Popen[bytes]]) -> None:
    user = User(choose(jobs[1].pid))
    async with connected(mode, user) as client:
        found = await find(client)
    assert (found["status"], found["pid"]) == ("found", jobs[1].pid)
    assert len(user.asked) == 1
    assert set(user.choices) == {str(one.pid) for one in jobs}
    for value, label in user.choices.items():
        assert label.isprintable()
        assert NAME in label
        assert value in label


@pytest.mark.parametrize(("mode", "reply"), [("auto", DECLINE), ("legacy", CANCEL)])
async def test_without_an_answer_all_are_listed(
    mode: str, reply: types.ElicitResult, jobs: list[subprocess.Popen[bytes]]
) -> None:
    async with connected(mode, None) as client:
        unasked = await find(client)
    user = User(reply)
    async with connected(mode, user) as client:
        found = await find(client)
    assert len(user.asked) == 1
    assert found["status"] == unasked["status"] == "several"
    assert [one["pid"] for one in found["jobs"]] == [one["pid"] for one in unasked["jobs"]]
    assert {one["pid"] for one in found["jobs"]} == {one.pid for one in jobs}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.usefixtures("jobs")
async def test_what_was_not_offered_is_asked_again(mode: str) -> None:
    user = User(choose(1), types.ElicitResult(action="accept"), DECLINE)
    async with connected(mode, user) as client:
        assert (await find(client))["status"] == "several"
    assert len(user.asked) == 3
    assert user.asked[0].requested_schema == user.asked[2].requested_schema


@pytest.mark.parametrize("mode", ERAS)
async def test_one_match_asks_nothing(mode: str, jobs: list[subprocess.Popen[bytes]]) -> None:
    user = User(DECLINE)
    async with connected(mode, user) as client:
        assert (await find(client, f"pid {jobs[0].pid}"))["pid"] == jobs[0].pid
    assert user.asked == []


@pytest.mark.usefixtures("jobs")
async def test_a_user_who_does_not_answer_in_time_is_not_waited_for() -> None:
    async def silent(_ctx: Any, _params: Any) -> types.ElicitResult:
        await anyio.sleep_forever()
        raise AssertionError

    async with connected("legacy", silent, patience_s=0.1) as client:
        assert (await find(client))["status"] == "several"


@pytest.mark.usefixtures("jobs")
async def test_a_client_that_fails_to_ask_gets_the_list() -> None:
    async def broken(_ctx: Any, _params: Any) -> Any:
        return types.ErrorData(code=types.INTERNAL_ERROR, message="no window")

    async with connected("legacy", broken) as client:
        assert (await find(client))["status"] == "several"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_process_that_ends_meanwhile_is_not_confused(mode: str, jobs: list[subprocess.Popen[bytes]]) -> None:
    async def slow(_ctx: Any, _params: Any) -> types.ElicitResult:
        jobs[0].kill()
        jobs[0].wait()
        return choose(jobs[0].pid)

    async with connected(mode, slow) as client:
        result = await client.call_tool("find_job", {"text": NAME})
    assert result.is_error
    assert f"process {jobs[0].pid} has ended" in result.content[0].text


async def test_a_state_of_another_call_is_refused(jobs: list[subprocess.Popen[bytes]]) -> None:
    async with connected("auto", User(DECLINE)) as client:
        asked = await client.session.call_tool("find_job", {"text": NAME}, allow_input_required=True)
        assert isinstance(asked, types.InputRequiredResult)
        assert asked.request_state is not None
        assert str(jobs[0].pid) not in asked.request_state
        for words, state in ((f"{NAME}-a", asked.request_state), (NAME, asked.request_state[:-2] + "AA")):
            with pytest.raises(MCPError) as refused:
                await client.call_tool(
                    "find_job", {"text": words}, input_responses={KEY: choose(jobs[0].pid)}, request_state=state
                )
            assert refused.value.error.code == types.INVALID_PARAMS


async def test_not_more_than_can_be_overlooked_are_offered(tmp_path: Path) -> None:
    made = [started(tmp_path / f"{n}", f"{NAME}-{n}.py") for n in range(LISTED + 2)]
    user = User(DECLINE)
    try:
        async with connected("auto", user) as client:
            await find(client)
    finally:
        for one in made:
            one.kill()
            one.wait()
    assert len(user.choices) == LISTED
    assert f"{LISTED + 2} jobs" in user.asked[0].message
    assert "2 more match" in user.asked[0].message


def entry(name: str) -> Entry:
    """A tool of the server."""
    with App().closing() as app:
        return McpServer(app, chosen=("all",)).entries[name]


@pytest.mark.parametrize(
    ("name", "words"), [("hang", {}), ("collective_live", {}), ("slow_node_check", {"live": True})]
)
async def test_a_tool_observes_the_chosen_job(
    name: str, words: dict[str, Any], jobs: list[subprocess.Popen[bytes]]
) -> None:
    prepare = entry(name).prepare
    assert prepare is not None
    given = words | {"job": NAME, "duration": 5.0}
    asked = await prepare(given, None)
    assert isinstance(asked, Questions)
    chosen = await prepare(given, Answers({KEY: choose(jobs[1].pid)}, asked.state))
    assert chosen == words | {"pid": jobs[1].pid, "duration": 5.0}
    assert await prepare(given, Answers({KEY: DECLINE}, asked.state)) == given


@pytest.mark.parametrize("name", ["diagnose", "diagnose_start"])
async def test_a_symptom_that_names_several_jobs_is_asked_about(name: str, jobs: list[subprocess.Popen[bytes]]) -> None:
    prepare = entry(name).prepare
    assert prepare is not None
    given = {"symptom": f"{NAME} stands still since the checkpoint"}
    asked = await prepare(given, None)
    assert isinstance(asked, Questions)
    assert await prepare(given, Answers({KEY: DECLINE}, asked.state)) == given
    assert await prepare(given, Answers({}, asked.state)) == asked
    assert await prepare(given, Answers({KEY: choose(jobs[0].pid)}, asked.state)) == given | {"pid": jobs[0].pid}


@pytest.mark.parametrize(
    "given",
    [
        {"symptom": "training is slow since yesterday"},
        {"symptom": f"{NAME} is slow", "pid": 1},
        {"symptom": f"{NAME} is slow", "recording": "/tmp/r"},
        {},
    ],
    ids=["no name", "a pid", "a recording", "no symptom"],
)
@pytest.mark.usefixtures("jobs")
async def test_a_symptom_is_not_asked_about_otherwise(given: dict[str, Any]) -> None:
    prepare = entry("diagnose").prepare
    assert prepare is not None
    assert await prepare(given, None) == given


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("hang", {"job": NAME, "recording": "/tmp/r"}),
        ("hang", {"pid": 1}),
        ("slow_node_check", {"traces": "/tmp/t"}),
    ],
)
@pytest.mark.usefixtures("jobs")
async def test_calls_that_name_their_job_otherwise_ask_nothing(tool: str, given: dict[str, Any]) -> None:
    prepare = entry(tool).prepare
    assert prepare is not None
    assert await prepare(given, None) == given


def test_earlier_protocols_name_choices_apart_from_their_values() -> None:
    choices = [{"const": "7", "title": "a"}, {"const": "9", "title": "b"}]
    field = {"type": "string", "title": "Process", "oneOf": choices}
    schema = {"type": "object", "properties": {KEY: field}, "required": [KEY]}
    plain = {"type": "string", "title": "Process", "enum": ["7", "9"], "enumNames": ["a", "b"]}
    assert untitled(schema) == schema | {"properties": {KEY: plain}}
