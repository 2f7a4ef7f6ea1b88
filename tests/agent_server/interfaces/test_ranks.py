"""The ranks of a job through both doors: directories of traces, recordings gathered from them, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from whystall.agent_server.app import App
from whystall.agent_server.inputs.ranks import open_job
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.ranks.slow_node_check import tool as slow_node_check
from whystall.tools.toolbox import registry

pytestmark = pytest.mark.thorough

Run = Callable[..., "subprocess.CompletedProcess[str]"]
RANKS = Path(__file__).parents[2] / "recorded" / "ranks"
SLOW, EVEN = RANKS / "compute", RANKS / "nothing"


@pytest.fixture(scope="module")
def gathered(whystall: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one job in one recording."""
    place = tmp_path_factory.mktemp("gathered") / "rec"
    done = whystall("gather", str(SLOW), "--before", str(EVEN), "--out", str(place), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["rows"]["ranks.ranks"] == summary["rows"]["ranks_before.ranks"] == 4
    return place


def answer(whystall: Run, *words: str) -> dict[str, Any]:
    done = whystall("run", "slow_node_check", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def of(found: dict[str, Any]) -> Any:
    """What does not depend on where the tables came from."""
    named = ("id", "subject", "fingerprint", "attributes")
    findings = [{k: v for k, v in f.items() if k not in named} for f in found["findings"]]
    accused = [(row["rank"], row["slow_class"], row["lost_ms_per_step"]) for row in found["data"]["accused"]]
    return found["data"]["verdict"], accused, findings


def test_a_directory_of_ranks_says_who_is_slow(whystall: Run) -> None:
    done = whystall("run", "slow_node_check", "--traces", str(SLOW))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "Verdict: one rank delays the job"
    truth = json.loads((SLOW / "truth.json").read_text())
    (rank,) = truth["slow_ranks"]
    assert any(line.startswith(f"- rank {rank} ") and "slow in computing" in line for line in lines[2:5])
    assert "Target: the job" in lines[0]


def test_what_was_gathered_gives_the_same_answer_redacted_or_not(whystall: Run, gathered: Path, tmp_path: Path) -> None:
    live = answer(whystall, "--traces", str(SLOW))
    assert of(answer(whystall, "--from", str(gathered))) == of(live)
    redacted = whystall("gather", str(SLOW), "--out", str(tmp_path / "red"), "--redact")
    assert redacted.returncode == 0, redacted.stderr
    assert redacted.stdout.splitlines()[-1] == f"next: whystall run slow_node_check --from {tmp_path / 'red'}"
    hidden = answer(whystall, "--from", str(tmp_path / "red"))
    assert of(hidden) == of(live)
    hosts = {row["host"] for row in live["data"]["ranks"]}
    assert hosts
    assert not hosts & {row["host"] for row in hidden["data"]["ranks"]}
    assert json.loads((tmp_path / "red" / "manifest.json").read_text())["id"] != SLOW.name
    # the latencies of single calls are a table of bounded size per rank: more than these small traces
    size = sum(file.stat().st_size for file in gathered.iterdir() if "latencies" not in file.name)
    assert size < sum(file.stat().st_size for file in SLOW.iterdir())


@pytest.mark.parametrize("first", ["compare_runs", "slow_node_check"])
@pytest.mark.parametrize("given", ["nothing", "both"])
def test_traces_and_a_recording_are_alternatives(whystall: Run, gathered: Path, first: str, given: str) -> None:
    named = {"slow_node_check": ["--traces", str(SLOW)], "compare_runs": ["--before", str(EVEN), "--after", str(SLOW)]}
    words = [*named[first], "--from", str(gathered)] if given == "both" else []
    done = whystall("run", first, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: bad_argument: ")
    assert ("exclude each other" in line) is (given == "both")


def test_one_run_alone_is_nothing_to_compare(whystall: Run) -> None:
    for only in ("--before", "--after"):
        done = whystall("run", "compare_runs", only, str(SLOW))
        assert done.returncode == 2
        assert "needs before and after" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--traces", "/nonexistent"], "io_error"),
        (["--traces", "/dev/zero"], "bad_trace"),
        (["--traces", str(SLOW), "--engine", "procfs"], "bad_argument"),  # nothing is observed
        (["--traces", str(SLOW), "--jobs", "0"], "bad_argument"),
        (["--traces", str(SLOW), "--live"], "bad_argument"),
        (["--traces", str(SLOW), "--pid", "1"], "bad_argument"),
        ([], "bad_argument"),
        (["--from", "/nonexistent"], "bad_recording"),
    ],
)
def test_failures_are_one_line(whystall: Run, words: list[str], code: str) -> None:
    done = whystall("run", "slow_node_check", *words)
    assert done.returncode == (2 if code == "bad_argument" else 1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {code}: "), line


def test_a_recording_of_a_host_has_no_ranks(whystall: Run) -> None:
    done = whystall("run", "slow_node_check", "--from", str(RANKS.parent / "checkpoint"))
    assert done.stderr.startswith("error: missing_collector: this recording has no ranks of a job")


def test_gather_keeps_what_is_there(whystall: Run, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("x")
    done = whystall("gather", str(SLOW), "--out", str(tmp_path / "there"))
    assert done.returncode == 2
    assert (tmp_path / "there" / "mine").read_text() == "x"


def test_a_diagnosis_of_ranks_names_the_cause_and_writes_the_ticket(whystall: Run) -> None:
    done = whystall("diagnose", "--traces", str(SLOW), "--ticket", "--lang", "zh")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "结论：很可能 - 有 rank 的计算比同类慢"
    number = lines[-1].removeprefix("工单：")
    told = whystall("tickets", "show", number)
    assert "# Ticket" in told.stdout
    assert "A rank computes more slowly than its peers" in told.stdout


def test_a_ticket_about_ranks_is_verified_by_a_later_run(whystall: Run) -> None:
    ticket = json.loads(whystall("diagnose", "--traces", str(SLOW), "--ticket", "--json").stdout)["ticket"]
    bare = whystall("verify", ticket)
    assert bare.returncode == 2
    assert bare.stderr.startswith("error: bad_argument: the ticket is about the ranks of a job; ")
    for traces, solved in ((SLOW, False), (EVEN, True)):
        done = whystall("verify", ticket, "--traces", str(traces), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["verifications"][-1]["solved"] is solved


def test_a_pid_beside_a_recording_is_refused(whystall: Run, gathered: Path) -> None:
    done = whystall("diagnose", "--from", str(gathered), "--pid", "1")
    assert done.returncode == 2
    assert done.stderr.startswith("error: bad_argument: pid cannot select a part of a recording")


# --- MCP --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def _own_state(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(state))


async def call(tool: str, arguments: dict[str, Any], *chosen: str) -> tuple[Any, str]:
    with App().closing() as app:
        async with Client(McpServer(app, chosen=chosen).server, mode="auto") as client:
            result = await client.call_tool(tool, arguments)
    return result, "\n".join(block.text for block in result.content)  # type: ignore[union-attr]


@pytest.mark.anyio
@pytest.mark.usefixtures("_own_state")
async def test_a_client_gets_what_the_command_line_prints(whystall: Run, gathered: Path) -> None:
    for given, words in (
        ({"traces": str(SLOW)}, ["--traces", str(SLOW)]),
        ({"recording": str(gathered)}, ["--from", str(gathered)]),
    ):
        result, text = await call("slow_node_check", given)
        assert not result.is_error, text
        assert of(result.structured_content) == of(answer(whystall, *words))
        assert text.splitlines()[1] == "Verdict: one rank delays the job"


@pytest.mark.anyio
@pytest.mark.usefixtures("_own_state")
@pytest.mark.parametrize(
    ("tool", "arguments", "start"),
    [
        ("slow_node_check", {}, "bad_argument: slow_node_check needs traces"),
        ("slow_node_check", {"traces": "relative"}, "bad_trace: "),
        ("slow_node_check", {"traces": "s3://bucket/run"}, "bad_trace: "),
        ("slow_node_check", {"traces": "/nonexistent"}, "bad_trace: "),
        ("slow_node_check", {"traces": "/dev/zero"}, "bad_trace: "),
        ("slow_node_check", {"traces": "/a\0b"}, "bad_trace: "),
        ("slow_node_check", {"traces": str(SLOW), "scheduler": "tcp://evil:1"}, "bad_argument: scheduler is reserved"),
        ("slow_node_check", {"traces": str(SLOW), "engine": "auto"}, "bad_argument: unknown argument 'engine'"),
        ("diagnose", {"traces": "relative"}, "bad_trace: "),
        ("diagnose", {"scheduler": "tcp://evil:1"}, "bad_argument: scheduler is reserved"),
        ("compare_runs", {"before": "relative", "after": str(SLOW)}, "bad_trace: "),
    ],
)
async def test_a_client_reaches_no_other_host_and_no_odd_file(tool: str, arguments: dict[str, Any], start: str) -> None:
    result, text = await call(tool, arguments)
    assert result.is_error
    assert text.startswith(start), text
    assert "\n" not in text


@pytest.mark.anyio
@pytest.mark.usefixtures("_own_state")
async def test_the_tools_of_ranks_are_a_set_and_hide_what_clients_may_not_say() -> None:
    with App().closing() as app:
        async with Client(McpServer(app, chosen=("ranks",)).server, mode="auto") as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert tools.keys() == {"cluster_topology", "collective_live", "hang", "slow_node_check", "compare_runs"}
    for tool in tools.values():
        assert not {"scheduler", "jobs"} & tool.input_schema["properties"].keys()
        assert ("engine" in tool.input_schema["properties"]) == (tool.name in ("collective_live", "hang"))


# --- the sources ------------------------------------------------------------------------------------------------------


def test_tools_of_ranks_are_told_by_what_they_take() -> None:
    assert {tool.name for tool in registry().all() if tool.reads == "ranks"} == {"slow_node_check", "compare_runs"}


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    tool = slow_node_check.TOOL
    with pytest.raises(ToolError) as refused:
        open_job(tool, slow_node_check.Params(traces=str(tmp_path)), None)
    assert refused.value.code is ErrorCode.BAD_TRACE
