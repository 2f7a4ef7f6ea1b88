"""MCP Apps: which clients are told of the pages, what the pages are, and that they allow our own scripts only."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from apps_host.server import Shows
from mcp import Client
from mcp.shared.exceptions import MCPError

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp import apps
from whystall.agent_server.interfaces.mcp.scopes import needed
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.prompts.files import LANGS
from whystall.prompts.render import words
from whystall.tools.views.app_page import WORDS

pytestmark = pytest.mark.anyio
ERAS = ("auto", "legacy")
RECORDED = Path(__file__).parents[2] / "recorded"
ASSETS = Path(__file__).parents[3] / "tools/views/assets"
DRAWN = {
    "cpu_profile",
    "critical_path",
    "flame_graph",
    "flamegraph_diff",
    "heat_map",
    "history",
    "host_bound",
    "offcputime",
}
VIEWS = dict.fromkeys((*DRAWN, "cluster_topology", "slow_node_check"), apps.PAGES) | {"ticket_draft": apps.TICKET}


@pytest.fixture(autouse=True)
def _own_state(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(state))


@asynccontextmanager
async def connected(mode: str, *declared: Shows, tools: tuple[str, ...] = ("all",)) -> AsyncIterator[Client]:
    """A client of a server in this process."""
    with App().closing() as app:
        async with Client(McpServer(app, chosen=tools).server, mode=mode, extensions=declared) as client:
            yield client


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_shows_pages_is_told_of_them(mode: str) -> None:
    async with connected(mode, Shows()) as client:
        listed = {tool.name: tool.meta for tool in (await client.list_tools()).tools if tool.meta}
        found = {one.uri: one.mime_type for one in (await client.list_resources()).resources}
    assert listed == {name: {"ui": {"resourceUri": uri}} for name, uri in VIEWS.items()}
    assert {uri: kind for uri, kind in found.items() if uri.startswith("ui://")} == dict.fromkeys(
        (apps.PAGES, apps.TICKET), "text/html;profile=mcp-app"
    )


async def test_the_default_list_keeps_to_its_budget() -> None:
    async with connected("auto", Shows(), tools=()) as client:
        listed = await client.list_tools()
    assert len(listed.model_dump_json(by_alias=True, exclude_none=True).encode()) < 6000 * 3  # bytes of a token
    assert {tool.name for tool in listed.tools if tool.meta} == DRAWN & {tool.name for tool in listed.tools}


@pytest.mark.parametrize("declared", [(), (Shows("text/uri-list"),)], ids=["nothing", "other"])
@pytest.mark.parametrize("mode", ERAS)
async def test_other_clients_see_no_difference(mode: str, declared: tuple[Shows, ...]) -> None:
    async with connected(mode, *declared) as client:
        assert [tool.name for tool in (await client.list_tools()).tools if tool.meta] == []
        assert [one.uri for one in (await client.list_resources()).resources if one.uri.startswith("ui:")] == []


async def test_a_result_is_the_same_text_with_and_without_pages() -> None:
    given = {"recording": str(RECORDED / "checkpoint")}
    texts = []
    for declared in ((), (Shows(),)):
        async with connected("auto", *declared) as client:
            (block,) = (await client.call_tool("critical_path", given)).content
            texts.append(re.sub(r"artifacts/[0-9a-f]{8}|whystall\S+/[0-9a-f]{8}", "", block.text))
    assert texts[0] == texts[1]
    assert "fsync" in texts[0]


@pytest.mark.parametrize("uri", [apps.PAGES, apps.TICKET])
@pytest.mark.parametrize("mode", ERAS)
async def test_a_page_loads_nothing_and_runs_our_scripts_only(mode: str, uri: str) -> None:
    async with connected(mode) as client:
        (page,) = (await client.read_resource(uri)).contents
    assert page.mime_type == "text/html;profile=mcp-app"
    assert page.meta == {"ui": {"csp": {}, "prefersBorder": True}}
    assert page.text.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|url\(", page.text)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page.text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    hashes = {base64.b64encode(hashlib.sha256(one.read_bytes()).digest()).decode() for one in ASSETS.glob("*.js")}
    assert set(rules.pop("script-src").split()) == {f"'sha256-{one}'" for one in hashes}
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "base-uri": "'none'",
        "img-src": "data:",
        "form-action": "'none'",
    }


@pytest.mark.parametrize("uri", ["ui://whystall/other.html", "ui://whystall", f"{apps.PAGES}/..", "ui://"])
async def test_another_page_is_unknown(uri: str) -> None:
    async with connected("auto", Shows()) as client:
        with pytest.raises(MCPError, match="not_found"):
            await client.read_resource(uri)


def test_any_token_may_read_a_page() -> None:
    assert needed("resources/read", {"uri": apps.PAGES}, {}) == ()
    assert needed("resources/read", {"uri": "whystall://artifacts/x"}, {}) == ("observe",)


@pytest.mark.parametrize("lang", LANGS)
def test_the_page_has_its_words(lang: str) -> None:
    assert words(lang)["app_page"].keys() == WORDS
