"""The critical paths of two recordings compared: by commands, over MCP, and within a diagnosis."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from loader_steps import recording_of, waits_ms
from mcp import Client

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.briefing import briefing_data
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.causes import PATH_TOOL
from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.knowledge_base.causes import load_causes
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ToolError

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """An earlier recording, and a later one in which a thread reads for longer."""
    place = tmp_path_factory.mktemp("recordings")
    others = COLLECTORS.keys() - {"proc", "switches", "syscalls"}
    for name, mean, seed in (("old", 30, 1), ("new", 90, 2)):
        recording_of(waits_ms(60, mean, seed), without=others).save(place / name)
    return str(place / "old"), str(place / "new")


def test_the_command_shows_what_changed_in_both_languages(whystall: Run, both: tuple[str, str]) -> None:
    old, new = both
    for lang, expected in (("en", "per step, from one wait at"), ("zh", "每步关键路径")):
        done = whystall("run", "critical_path", "--from", new, "--before", old, "--lang", lang)
        assert done.returncode == 0, done.stderr
        assert "next_batch (train.py:41)" in done.stdout
        assert "/data/a*.bin" in done.stdout
        assert "q = " in done.stdout
        assert expected in done.stdout
    found = json.loads(whystall("run", "critical_path", "--from", new, "--before", old, "--json").stdout)
    compared = found["data"]["compared"]
    first = compared["rows"][0]
    assert (first["verdict"], first["root_object"]) == ("grew", "/data/a*.bin")
    assert 0 < first["p_value"] <= first["q_value"] < 0.05
    assert first["low_ms"] < 60 < first["high_ms"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "critical_path", "--from", "NEW", "--before", "/nowhere"], "bad_recording"),
        (["diagnose", "--from", "NEW", "--before", "/nowhere"], "bad_recording"),
        (["diagnose", "--traces", "/x", "--before", "OLD"], "bad_argument"),
        (["run", "compare_runs", "--before", "OLD", "--after", "NEW"], "bad_argument"),
    ],
)
def test_what_cannot_be_compared_is_refused(whystall: Run, both: tuple[str, str], words: list[str], code: str) -> None:
    done = whystall(*[{"OLD": both[0], "NEW": both[1]}.get(word, word) for word in words])
    assert done.returncode != 0
    assert done.stderr.startswith(f"error: {code}: ")
    assert len(done.stderr.splitlines()) == 1
    if words[1] == "compare_runs":
        assert "whystall run critical_path --from AFTER --before BEFORE" in done.stderr


@pytest.mark.anyio
async def test_the_tool_keeps_to_its_schema(
    both: tuple[str, str], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(state))
    old, new = both
    with App().closing() as app:
        async with Client(McpServer(app).server, mode="auto") as client:
            result = await client.call_tool("critical_path", {"recording": new, "before": old})
            assert not result.is_error
            shape = json.loads((await client.read_resource("whystall://schemas/critical_path")).contents[0].text)
            jsonschema.validate(result.structured_content, shape)
            assert result.structured_content["data"]["compared"]["changed"] == 1
            assert len(result.content[0].text) <= 6000
            diagnosed = await client.call_tool("diagnose", {"recording": new, "before": old})
            shape = json.loads((await client.read_resource("whystall://schemas/diagnose")).contents[0].text)
            jsonschema.validate(diagnosed.structured_content, shape)
            assert "step.change" in {one["kind"] for one in diagnosed.structured_content["findings"]}
            for wrong in ("old", "/etc"):
                refused = await client.call_tool("critical_path", {"recording": new, "before": wrong})
                assert refused.is_error
                assert refused.content[0].text.startswith("bad_recording")


def test_a_diagnosis_has_what_changed(whystall: Run, both: tuple[str, str]) -> None:
    old, new = both
    alone = json.loads(whystall("diagnose", "--from", new, "--json").stdout)
    found = json.loads(whystall("diagnose", "--from", new, "--before", old, "--json").stdout)
    assert found["compared"]["rows"][0]["root_object"] == "/data/a*.bin"
    for name in ("verdict", "cause", "explained_pct", "missing"):  # a change is no proof of a cause
        assert found[name] == alone[name]
    text = whystall("diagnose", "--from", new, "--before", old).stdout
    assert "per step, from one wait at" in text
    assert alone["compared"] is None


@pytest.mark.anyio
async def test_a_model_is_given_what_changed_and_cannot_choose_the_recording(both: tuple[str, str]) -> None:
    from whystall.agent_server.inputs.recordings import open_source
    from whystall.tools.toolbox import registry

    old, new = (open_source(Path(path)) for path in both)
    new.before = old
    tools = {tool.name: tool for tool in registry().all()}
    case = Case(load_causes(), tools, RecordedObserver(new), duration=12.0)
    await case.observe([PATH_TOOL], 12.0, "first")
    data: dict[str, Any] = briefing_data(case, [tools[PATH_TOOL]], [])
    assert data["compared_with_earlier"]["step"]["verdict"] == "grew"
    assert "step.change" in {finding["kind"] for finding in data["findings"]}
    from whystall.agent_server.diagnosis.functions import Functions

    (declared,) = [
        one
        for one in Functions([tools[PATH_TOOL]], list(case.causes), duration=12.0, searchable=False).offered()
        if one.name == PATH_TOOL
    ]
    assert "before" not in declared.parameters["properties"]


def test_traces_and_an_earlier_recording_exclude_each_other() -> None:
    with pytest.raises(ToolError, match="compare_runs"):
        DiagnoseParams(traces="/x", before="/y").check(None)
