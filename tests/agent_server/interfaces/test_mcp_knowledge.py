"""The knowledge base over MCP, through the SDK's own client, in both eras."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.knowledge_base.models import Incident, Words

pytestmark = pytest.mark.anyio
ERAS = ("auto", "legacy")
RECORDED = Path(__file__).parents[2] / "recorded"
DRAFT = {"title": "Saves stop the loop", "symptom": "A step of 3 s every 20 steps.", "fix": "Save in a thread."}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with a new knowledge base: made once, and copied."""
    home = tmp_path_factory.mktemp("fresh") / "home"
    with pytest.MonkeyPatch.context() as patch, App().closing() as app:
        patch.setenv("WHYSTALL_HOME", str(home))
        app.kb()
    return home


@pytest.fixture(autouse=True)
def _own_home(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(fresh, tmp_path / "home")
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@asynccontextmanager
async def connected(mode: str) -> AsyncIterator[tuple[Client, App]]:
    """A client of a server in this process, and what the server serves."""
    with App().closing() as app:
        async with Client(McpServer(app).server, mode=mode) as client:
            yield client, app


async def answered(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer of a call, whose text is not empty and within its budget."""
    result = await client.call_tool(tool, arguments)
    text = "\n".join(block.text for block in result.content)  # type: ignore[union-attr]
    assert not result.is_error, text
    assert 0 < len(text) <= 6000
    assert result.structured_content is not None
    return {**result.structured_content, "text": text}


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The one line of a call that fails."""
    result = await client.call_tool(tool, arguments)
    text = "\n".join(block.text for block in result.content)  # type: ignore[union-attr]
    assert result.is_error, text
    assert "\n" not in text
    return text


async def diagnosed(client: Client, case: str = "checkpoint") -> dict[str, Any]:
    """The diagnosis of a recorded case, stored."""
    return await answered(client, "diagnose", recording=str(RECORDED / case))


@pytest.mark.parametrize("mode", ERAS)
async def test_the_like_of_a_diagnosis_or_of_findings_is_found(mode: str) -> None:
    async with connected(mode) as (client, _):
        diagnosis = await diagnosed(client)
        same = await answered(client, "kb_similar", diagnosis=diagnosis["id"])
        assert [h["match"]["incident"] for h in same["hits"]] == [m["incident"] for m in diagnosis["matches"]]
        told = await answered(client, "kb_similar", kinds="file.slow_sync, file.slow_write", features="op:fsync")
        assert told["hits"]
        for hit in told["hits"]:
            assert hit["match"]["shared"]
            assert hit["incident"]["id"] == hit["match"]["incident"]
            assert hit["incident"]["title"]["en"] in told["text"]
        checks = {c for h in told["hits"] for c in h["match"]["unchecked"]}
        assert "fileslower" in checks
        ran = await answered(client, "kb_similar", kinds="file.slow_sync", features="op:fsync", ran="fileslower")
        assert not any("fileslower" in h["match"]["unchecked"] for h in ran["hits"])
        many = await answered(client, "kb_search", query="checkpoint fsync nfs slow disk write cgroup", limit=20)
        assert len(many["hits"]) == 20
        assert all(h["incident"]["id"] in many["text"] for h in many["hits"])
        assert not many["text"].endswith("…")
        few = await answered(client, "kb_similar", kinds="file.slow_sync", limit=1)
        assert len(few["hits"]) == 1


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({}, ("bad_argument: nothing to compare with", "diagnosis, kinds, features or symptom")),
        ({"ran": "fileslower"}, ("bad_argument: nothing to compare with",)),
        ({"kinds": "file.slow_sink"}, ("bad_argument: kinds: unknown 'file.slow_sink'", "file.slow_sync")),
        ({"kinds": "file.slow_sync,\x1b[31m"}, ("bad_argument: kinds: unknown",)),
        ({"features": "fsync"}, ("bad_argument: features: unknown 'fsync'", "op, ")),
        ({"kinds": ",".join(f"k{i}" for i in range(100))}, ("bad_argument: kinds: 100 entries",)),
        ({"diagnosis": "x", "kinds": "file.slow_sync"}, ("bad_argument: a diagnosis has its own kinds",)),
        ({"diagnosis": "20260101T000000-000000"}, ("not_found: there is no diagnosis",)),
        ({"findings": "F1"}, ("bad_argument: unknown argument 'findings'", "kinds")),
    ],
    ids=["nothing", "tools only", "kind", "hostile", "feature", "many", "both", "diagnosis", "argument"],
)
async def test_what_cannot_be_compared_is_refused(arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
    async with connected("auto") as (client, _):
        text = await refused(client, "kb_similar", **arguments)
    assert all(part in text for part in parts), text
    assert "\x1b" not in text


@pytest.mark.parametrize("mode", ERAS)
async def test_what_an_assistant_records_is_a_draft_and_never_known(mode: str) -> None:
    async with connected(mode) as (client, app):
        diagnosis = await diagnosed(client)
        card = await answered(client, "kb_record", **DRAFT, cause=diagnosis["cause"], diagnosis=diagnosis["id"])
        assert card["state"] == "draft"
        assert card["title"]["en"] == DRAFT["title"]
        assert card["title"]["en"] in card["text"]
        assert "draft" in card["text"]
        assert card["kinds"]
        assert card["checks"]
        again = await answered(client, "kb_record", **DRAFT, cause=diagnosis["cause"], diagnosis=diagnosis["id"])
        assert again["id"] == card["id"]
        hits = await answered(client, "kb_similar", diagnosis=diagnosis["id"], limit=20)
        mine = [h["match"] for h in hits["hits"] if h["match"]["incident"] == card["id"]]
        assert [match["known"] for match in mine] == [False]
        uri = f"whystall://incidents/{card['id']}"
        assert json.loads((await client.read_resource(uri)).contents[0].text)["state"] == "draft"  # type: ignore[union-attr]
        app.kb().cards.accept(card["id"], by="somebody")
        hits = await answered(client, "kb_similar", diagnosis=diagnosis["id"], limit=20)
        assert [h["match"]["known"] for h in hits["hits"] if h["match"]["incident"] == card["id"]] == [True]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"title": ""}, "bad_argument: title"),
        ({"symptom": "s" * 5000}, "bad_argument: symptom"),
        ({"cause": "bad_luck"}, "bad_argument: unknown cause"),
        ({"diagnosis": "none"}, "not_found: "),
        ({"state": "reviewed"}, "bad_argument: unknown argument 'state'"),
        ({"id": "checkpoint"}, "bad_argument: unknown argument 'id'"),
    ],
    ids=["empty", "long", "cause", "diagnosis", "state", "id"],
)
async def test_a_card_that_cannot_be_is_refused(changes: dict[str, str], part: str) -> None:
    async with connected("auto") as (client, _):
        assert part in await refused(client, "kb_record", **{**DRAFT, **changes})


async def test_hostile_words_of_a_card_are_inert() -> None:
    async with connected("auto") as (client, _):
        card = await answered(client, "kb_record", **{**DRAFT, "title": "\x1b]0;x\x07 a\u202eb\n# IGNORE"})
    assert not any(c in card["text"] + card["title"]["en"] for c in "\x1b\x07\u202e")
    assert not any(line.startswith("# IGNORE") for line in card["text"].splitlines())


@pytest.mark.parametrize("mode", ERAS)
async def test_feedback_counts_once_per_diagnosis(mode: str) -> None:
    async with connected(mode) as (client, _):
        diagnosis = await diagnosed(client)
        of = {"incident": diagnosis["matches"][0]["incident"], "diagnosis": diagnosis["id"]}
        said = await answered(client, "kb_feedback", **of, verdict="wrong", comment="another disk")
        assert (said["record"]["helped"], said["record"]["wrong"]) == (0, 1)
        said = await answered(client, "kb_feedback", **of, verdict="helped")
        assert (said["record"]["helped"], said["record"]["wrong"]) == (1, 0)
        assert of["incident"] in said["text"]
        hits = await answered(client, "kb_similar", diagnosis=diagnosis["id"])
        assert hits["hits"][0]["match"]["record"]["helped"] == 1
        matched = {match["incident"] for match in diagnosis["matches"]}
        resources = (await client.list_resources()).resources
        other = next(r.name for r in resources if "/incidents/" in str(r.uri) and r.name not in matched)
        not_matched = {"incident": other, "diagnosis": diagnosis["id"], "verdict": "helped"}
        assert "bad_argument: " in await refused(client, "kb_feedback", **not_matched)
        assert "not_found: " in await refused(client, "kb_feedback", **{**of, "incident": "no"}, verdict="wrong")
        assert "not_found: " in await refused(client, "kb_feedback", **{**of, "diagnosis": "no"}, verdict="wrong")
        assert "bad_argument: verdict" in await refused(client, "kb_feedback", **of, verdict="maybe")


def _card(id: str) -> Incident:
    text = Words(en="A tale \x1b[31mof a stall", zh="停顿")
    plain = {"title": text, "symptom": text, "root_cause": text, "fix": text}
    return Incident(id=id, cause=None, source="of a test", **plain)


@pytest.mark.parametrize("mode", ERAS)
async def test_ids_are_completed(mode: str) -> None:
    async with connected(mode) as (client, app):
        for number in range(130):
            app.kb().cards.add(_card(f"tale-{number:03}"))
        diagnosis = await diagnosed(client)
        ticket = await answered(client, "ticket_draft", diagnosis=diagnosis["id"])

        async def completed(kind: str, typed: str, argument: str = "id") -> Any:
            ref = ResourceTemplateReference(uri=f"whystall://{kind}/{{id}}")
            return (await client.complete(ref, {"name": argument, "value": typed})).completion

        tales = await completed("incidents", "tale-")
        assert len(tales.values) == 100
        assert tales.has_more is True
        one = await completed("incidents", "tale-07")
        assert sorted(one.values) == [f"tale-07{n}" for n in range(10)]
        assert (one.total, one.has_more) == (10, False)
        assert (await completed("incidents", "checkpoint-")).values
        assert (await completed("tickets", ticket["id"][:1])).values == [ticket["id"]]
        assert (await completed("tickets", "")).total == 1
        assert (await completed("schemas", "kb_")).values == ["kb_feedback", "kb_record", "kb_search", "kb_similar"]
        for kind, typed, argument in (
            ("incidents", "nothing begins so", "id"),
            ("incidents", "%", "id"),
            ("incidents", "' OR 1=1 --", "id"),
            ("incidents", "tale", "name"),
            ("tickets", "-1", "id"),
            ("transcripts", "../", "id"),
            ("secrets", "", "id"),
        ):
            assert (await completed(kind, typed, argument)).values == []
        of_prompt = await client.complete(PromptReference(name="start_here"), {"name": "symptom", "value": "s"})
        assert of_prompt.completion.values == []
        listed = (await client.list_resources()).resources
        assert f"whystall://tickets/{ticket['id']}" in [str(r.uri) for r in listed]
        tale = next(r for r in listed if r.name.startswith("tale-"))
        assert tale.title is not None
        assert "\x1b" not in tale.title
        assert json.loads((await client.read_resource(str(tale.uri))).contents[0].text)["id"] == tale.name  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ERAS)
async def test_an_id_of_any_letters_is_read_by_its_uri(mode: str) -> None:
    async with connected(mode) as (client, app):
        app.kb().cards.add(_card("卡顿/a?b#c%d"))
        listed = [r for r in (await client.list_resources()).resources if r.name.startswith("卡顿")]
        assert len(listed) == 1
        content = (await client.read_resource(str(listed[0].uri))).contents[0]
        assert json.loads(content.text)["id"] == "卡顿/a?b#c%d"  # type: ignore[union-attr]


async def test_a_damaged_knowledge_base_is_told_by_every_door(tmp_path: Path) -> None:
    for file in (tmp_path / "home").iterdir():
        file.unlink()
    (tmp_path / "home" / "knowledge.db").write_bytes(b"this is no database" * 100)
    async with connected("auto") as (client, _):
        for tool, arguments in (("kb_similar", {"symptom": "slow"}), ("kb_record", DRAFT)):
            assert "database: " in await refused(client, tool, **arguments)
        with pytest.raises(MCPError, match="database: "):
            await client.complete(
                ResourceTemplateReference(uri="whystall://incidents/{id}"), {"name": "id", "value": ""}
            )
