"""The skills: their format, the extension that serves them, and each as a story over the real tools and recordings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from fleet_servers import TOKEN, application, serving
from hang_jobs import ALL_REDUCE, TRAIN
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from page_cache_scenes import DATA, HOT, OTHER, Cache, rereading, streaming
from recordings import PID, Scene
from scheduled import TID, write

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.entry import Entry
from whystall.agent_server.interfaces.mcp.resources import results
from whystall.agent_server.interfaces.mcp.schemas import full_schema
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.tools.contract.params import parse_params

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/recorded"
FILES = {path.parent.name: path for path in sorted((ROOT / "skills").glob("*/SKILL.md"))}
HANGS = yaml.safe_load((ROOT / "prompts/words/en.yaml").read_text("utf-8"))["hang"]["verdicts"].keys()
SOURCES = {"traces", "before", "profile"}  # files of their own kind, which a call names
LIVE = {"pid", "tid", "duration", "live"}  # arguments that a recording replaces
READ = ("__schedule", "io_schedule", "folio_wait_bit_common", "filemap_get_pages", "filemap_read", "vfs_read")
Call = tuple[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def entries() -> Iterator[dict[str, Entry]]:
    """The tools of the server."""
    with App().closing() as app:
        yield McpServer(app).entries


def calls_of(name: str) -> list[Call]:
    """The calls that a skill shows: a tool, and its arguments as JSON."""
    shown = re.findall(r"`([a-z_]+) (\{[^`]*\})`", FILES[name].read_text("utf-8"))
    return [(tool, json.loads(arguments)) for tool, arguments in shown]


def head_of(name: str) -> dict[str, Any]:
    _, head, _ = FILES[name].read_text("utf-8").split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(head)
    return found


def test_the_skills_are_those_that_are_promised() -> None:
    assert set(FILES) == {"hang", "host-bound", "page-cache", "slow-inference", "slow-rank", "stalled-training"}


@pytest.mark.parametrize("name", FILES)
def test_a_skill_has_the_open_format(name: str) -> None:
    """https://agentskills.io/specification; one is read whole, so that it stays far below the 5000 tokens there."""
    head, text = head_of(name), FILES[name].read_text("utf-8")
    assert head.keys() == {"name", "description", "license"}
    assert head["name"] == name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert 1 <= len(head["description"]) <= 1024
    assert "Use " in head["description"]
    assert len(text) < 4000


@pytest.mark.parametrize("name", FILES)
def test_every_call_of_a_skill_is_one_of_a_real_tool(name: str, entries: dict[str, Entry]) -> None:
    calls = calls_of(name)
    assert len(calls) >= 5
    for tool, arguments in calls:
        entry = entries[tool]
        assert arguments.keys() <= entry.arguments["properties"].keys(), (tool, arguments)
        parse_params(entry.params, arguments)  # types and bounds


@pytest.mark.parametrize("name", FILES)
def test_every_word_of_code_in_a_skill_exists(name: str, entries: dict[str, Entry]) -> None:
    with App().closing() as app:
        known = {"fleet", *entries, *FILES, *HANGS}
        for entry in entries.values():
            known |= entry.arguments["properties"].keys()
        for model in results(app).values():
            known |= set(_words(full_schema(model)))
    # commands are checked with the documentation; the others are names of files and of our library
    named = set(re.findall(r"`([a-z_-]+)`", FILES[name].read_text("utf-8"))) - {"hybrid_open", "whystall"}
    assert named - known == set()


def _words(schema: Any) -> Iterator[str]:
    """The names of fields and the codes in a JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (word for word in schema.get("enum", []) if isinstance(word, str))
        for value in schema.values():
            yield from _words(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _words(value)


# --- the extension -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on loopback."""
    with pytest.MonkeyPatch.context() as patch, App().closing() as app:
        patch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))
        with serving({"here": application(app)}) as urls:  # type: ignore[arg-type]
            yield urls["here"]


HEADERS = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {TOKEN}"}


def modern(url: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The answer to a stateless client."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {**HEADERS, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    answer: dict[str, Any] = httpx2.post(url, json=body, headers=headers, timeout=60).json()
    return answer


def legacy(url: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The answer to a client with a session."""
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    asked: list[tuple[str, dict[str, Any], int | None]] = [("initialize", opening, 1)]
    asked += [("notifications/initialized", {}, None), (method, params, 2)]
    headers = dict(HEADERS)
    for name, given, id in asked:
        body = {"jsonrpc": "2.0", "method": name, "params": given} | ({"id": id} if id is not None else {})
        got = httpx2.post(url, json=body, headers=headers, timeout=60)
        headers.setdefault("Mcp-Session-Id", got.headers.get("mcp-session-id", ""))
    (line,) = [line for line in got.text.splitlines() if line.startswith("data: {")]
    answer: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return answer


def test_the_extension_is_declared(url: str) -> None:
    declared = modern(url, "server/discover", {})["result"]["capabilities"]
    assert declared["extensions"]["io.modelcontextprotocol/skills"] == {}
    assert "resources" in declared


@pytest.mark.parametrize("ask", [modern, legacy])
def test_skills_are_listed_with_a_digest_of_what_is_read(ask: Any, url: str) -> None:
    result = ask(url, "skills/list", {})["result"]
    hints = {name: result.get(name) for name in ("resultType", "ttlMs", "cacheScope")}
    if ask is modern:
        assert hints == {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "public"}
    else:  # these are of a later revision
        assert hints == dict.fromkeys(hints)
    assert [entry["frontmatter"]["name"] for entry in result["skills"]] == list(FILES)
    for entry in result["skills"]:
        name = entry["frontmatter"]["name"]
        content = FILES[name].read_bytes()
        assert entry["uri"] == f"skill://{name}/SKILL.md"
        assert entry["frontmatter"] == head_of(name)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert entry["resources"] == [{"uri": entry["uri"], "digest": digest, "size": len(content)}]
        assert ask(url, "skills/get", {"uri": entry["uri"]})["result"]["skill"] == entry


@pytest.mark.parametrize("ask", [modern, legacy])
@pytest.mark.parametrize("uri", ["skill://nothing/SKILL.md", "skill://hang", "skill://../SKILL.md", "x"])
def test_what_is_no_skill_is_invalid(ask: Any, uri: str, url: str) -> None:
    for method in ("skills/get", "resources/read"):
        if method == "skills/get" or ask is legacy:
            assert ask(url, method, {"uri": uri})["error"]["code"] == -32602


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_skills_are_read_as_resources_and_by_the_tool(mode: str, url: str) -> None:
    session = httpx2.AsyncClient(headers=HEADERS, timeout=60)
    async with Client(streamable_http_client(url, http_client=session), mode=mode) as client:
        listed = {str(r.uri): r for r in (await client.list_resources()).resources}
        for name, path in FILES.items():
            uri, text = f"skill://{name}/SKILL.md", path.read_text("utf-8")
            assert (listed[uri].name, listed[uri].mime_type) == (name, "text/markdown")
            assert listed[uri].description == head_of(name)["description"]
            (read,) = (await client.read_resource(uri)).contents
            assert read.text == text  # type: ignore[union-attr]
            page = await client.call_tool("artifact_read", {"uri": uri})
            assert page.structured_content is not None
            assert page.structured_content["text"] == text


# --- the stories -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    """A client of a server in this process."""
    with App().closing() as app:
        async with Client(McpServer(app).server) as client:
            yield client


async def follow(client: Client, name: str, given: dict[str, Any], entries: dict[str, Entry]) -> dict[str, Any]:
    """Make the calls of a skill in its order on what is `given` in place of the running job; the answers by tool.

    Left out is what can only observe, what uses an id of an earlier answer, and what reads another kind of file. A
    recording need not have what every tool needs.
    """
    answers: dict[str, Any] = {}
    kind = SOURCES & given.keys() or {"recording"}
    for tool, arguments in calls_of(name):
        takes = entries[tool].arguments["properties"].keys()
        if not (kind & arguments.keys() or (kind == {"recording"} and not SOURCES & arguments.keys())):
            continue
        used = {key: given[key] for key in given.keys() & takes & {*arguments, "recording"}}
        if not used.keys() & {*kind, "recording"}:
            continue
        kept = {key: value for key, value in arguments.items() if key not in LIVE}
        result = await client.call_tool(tool, kept | used)
        text = result.content[0].text  # type: ignore[union-attr]
        if result.is_error:
            assert text.startswith("missing_collector"), (tool, text)
        else:
            answers.setdefault(tool, result.structured_content)
    return answers


async def test_the_story_of_stalled_training(entries: dict[str, Entry]) -> None:
    async with connected() as client:
        told = await follow(client, "stalled-training", {"recording": str(RECORDED / "checkpoint")}, entries)
        assert (told["diagnose"]["verdict"], told["diagnose"]["cause"]) == ("confirmed", "sync_checkpoint_write")
        assert told["critical_path"]["data"]["rows"][0]["what"] == "file"
        assert "chk_" in told["fileslower"]["findings"][0]["subject"]["path"]
        assert not [f for f in told["biolatency"]["findings"] if f["polarity"] == "abnormal"]  # not the device
        assert told["offcputime"]["findings"][0]["polarity"] == "abnormal"
        for tool, arguments in calls_of("stalled-training"):
            if arguments == {"diagnosis": "ID"}:
                result = await client.call_tool(tool, {"diagnosis": told["diagnose"]["id"]})
                assert not result.is_error, result.content
        healthy = await follow(client, "stalled-training", {"recording": str(RECORDED / "healthy")}, entries)
        assert healthy["diagnose"]["verdict"] == "healthy"


async def test_the_story_of_a_slow_rank(entries: dict[str, Entry]) -> None:
    run = {"traces": str(RECORDED / "ranks/compute"), "before": str(RECORDED / "ranks/nothing")}
    async with connected() as client:
        told = await follow(client, "slow-rank", run | {"after": run["traces"]}, entries)
        assert (told["slow_node_check"]["data"]["verdict"], _ranks(told)) == ("rank", [2])
        assert "aten::matmul" in json.dumps(told["flamegraph_diff"]["findings"][0])
        assert told["compare_runs"]["findings"][0]["polarity"] == "abnormal"
        assert (told["diagnose"]["verdict"], told["diagnose"]["cause"]) == ("likely", "slow_rank_compute")
        alike = await follow(client, "slow-rank", {"traces": run["before"]}, entries)
        assert alike["slow_node_check"]["data"]["verdict"] in ("none", "cannot_tell")


def _ranks(told: dict[str, Any]) -> list[int]:
    return [one["rank"] for one in told["slow_node_check"]["data"]["accused"]]


async def test_the_story_of_slow_inference(entries: dict[str, Entry]) -> None:
    async with connected() as client:
        told = await follow(client, "slow-inference", {"recording": str(RECORDED / "quota")}, entries)
    assert (told["diagnose"]["verdict"], told["diagnose"]["cause"]) == ("confirmed", "cgroup_cpu_throttling")
    assert told["critical_path"]["data"]["rows"][0]["window_pct"] > 50
    assert not [f for f in told["lock_wait"]["findings"] if f["polarity"] == "abnormal"]


async def test_the_story_of_a_hang(tmp_path: Path, entries: dict[str, Entry]) -> None:
    scene = Scene(window_s=2)
    for rank, (started, stack) in enumerate([(38, (*ALL_REDUCE, *TRAIN)), (37, ("load (job.py:6)", *TRAIN))]):
        where = {"state": "S", "syscall": "futex", "wchan": "futex_do_wait", "lock": 0}
        pid = 100 + rank
        scene.seen("threads", pid=pid, tid=pid, comm="python", pystack=scene.stack(stack, kernel=False), **where)
        group = {"backend": "gloo", "name": "0", "rank": rank, "size": 2}
        scene.seen("process_groups", pid=pid, group=1000, started=started, **group)
    scene.build().save(tmp_path / "job")
    async with connected() as client:
        job = await follow(client, "hang", {"recording": str(tmp_path / "job")}, entries)
        assert job["hang"]["data"]["verdict"] == "late"
        assert [one["rank"] for one in job["hang"]["data"]["late"]] == [1]
        alone = await follow(client, "hang", {"recording": str(RECORDED / "hang")}, entries)
        assert (alone["diagnose"]["verdict"], alone["diagnose"]["cause"]) == ("confirmed", "stuck_file_operation")
        assert alone["critical_path"]["data"]["rows"][0]["window_pct"] > 90
        dumps = await follow(client, "hang", {"traces": str(RECORDED / "flight_recorder/absent")}, entries)
        assert dumps["slow_node_check"]["data"]["hangs"]


async def test_the_story_of_an_idle_accelerator(tmp_path: Path, entries: dict[str, Entry]) -> None:
    trace, profile = write(tmp_path)
    given = {"recording": str(trace), "profile": str(profile), "pid": TID}
    async with connected() as client:
        told = await follow(client, "host-bound", given, entries)
    assert [one["tid"] for one in told["host_bound"]["data"]["dispatchers"]] == [TID]
    assert told["host_bound"]["data"]["devices"][0]["device"] == 0
    assert told["host_bound"]["artifacts"]
    assert told["diagnose"]["verdict"]


async def test_the_story_of_the_page_cache(tmp_path: Path, entries: dict[str, Entry]) -> None:
    scene = Scene(window_s=10.0).thread(user=50, system=5, blocked=40)
    for number in range(10):
        scene.call(number + 0.1, 400, "pread64", HOT, size=24 << 20, stack=READ)
    cache = Cache(scene=scene)
    cache.places[OTHER] = "/job"
    scene.cgroup(full=True, hits=5000)
    cache.memory(limit=1000, usage=999, hits=5000)
    cache = rereading(streaming(cache, pid=OTHER), pid=PID, back=2000)
    cache.build(without=("ranks", "crashes")).save(tmp_path / "cache")
    async with connected() as client:
        told = await follow(client, "page-cache", {"recording": str(tmp_path / "cache")}, entries)
    assert (told["diagnose"]["verdict"], told["diagnose"]["cause"]) == ("confirmed", "cache_pollution")
    assert HOT in json.dumps(told["page_cache"]["findings"])
    assert DATA in json.dumps(told["page_cache"]["findings"])
    assert HOT in json.dumps(told["fileslower"]["findings"])
    assert told["hybrid_io_advise"]["status"] == "no_data"  # the victim, whom the recording follows, streams nothing
