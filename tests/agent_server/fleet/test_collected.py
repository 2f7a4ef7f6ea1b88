"""Answers of a fleet that are stored, and judged later without its hosts."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from collective_hosts import windows
from collective_windows import Job as Loop
from dask_workers import cluster
from fleet_servers import TOKEN, RecordedHost, application, closed_port, scene, serving, settings
from hung_hosts import FIRST_PID, hung_host

from whystall.agent_server.app import App
from whystall.agent_server.fleet import collected
from whystall.agent_server.fleet.answers import Answer, Located
from whystall.agent_server.fleet.ask import FleetParams, ask, judge
from whystall.agent_server.fleet.merge import FleetResult, merge
from whystall.agent_server.fleet.reading import read_all
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.command_tree import build
from whystall.agent_server.interfaces.mcp import jobs
from whystall.agent_server.job_lookup.models import Job, Resolution
from whystall.agent_server.presentation.pages import judged
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import parse_params
from whystall.tools.ranks.traces import dask_cluster, parallel
from whystall.tools.ranks.traces.hosts import calls_of, ranks_of
from whystall.tools.recording.packed import pack, unpack

HOSTS = {f"node{n}": (2 * n, 2 * n + 1) for n in range(4)}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "hang": {"duration": 2},
    "collective_live": {"duration": 4},
    "slow_node_check": {"live": True, "duration": 4},
}
TOOLS = ["hang", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("collective_live", "slow_node_check"))]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@pytest.fixture(params=["directory", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "place") if request.param == "directory" else f"memory://fleet{tmp_path}"


@functools.cache
def answers(tool: str) -> list[Answer]:
    """What hosts answered that were called at 100 s, of a job that rank 3 holds back; the last one is dead."""
    found = []
    if tool == "hang":
        for host, ranks in HOSTS.items():
            recording = hung_host(host, ranks, 8, late=(3,))
            result = judged(App().tool(tool), recording, App().tool(tool).params(duration=2, top=200), "en")
            reply = json.loads(result.model_dump_json())
            found.append(Answer(host, "answered", reply=reply, began=100.25, ended=102.5, identity=True))
    else:
        part = {"collective_live": calls_of, "slow_node_check": ranks_of}[tool]
        for host, recording in windows(Loop(ranks=8, late_ms={3: 30}, steps=30), HOSTS).items():
            content = pack(part(recording))
            found.append(Answer(host, "answered", content=content, began=100.25, ended=105.1, identity=True))
    place = Located(FIRST_PID, 0, {FIRST_PID: 0, FIRST_PID + 1: 1}, "slurm:42")
    found[0] = Answer(**{**vars(found[0]), "located": place, "seconds": 4.9, "bytes": 1234})
    return [*found, Answer("node9", "unreachable", "no connection")]


def stored(place: str, tool: str, given: list[Answer]) -> None:
    collected.check(place)
    collected.store(place, tool, ARGUMENTS[tool], given)


def loaded(place: str) -> tuple[collected.Collected, list[Answer]]:
    index = collected.index_at(place)
    return index, collected.load(place, index, index.arguments)


def later(place: str, tool: str, **arguments: Any) -> FleetResult:
    return judge(FleetParams(tool=tool, arguments=arguments), place)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_judgement_is_that_of_the_hosts(place: str, tool: str) -> None:
    given = answers(tool)
    live = merge(tool, given, ARGUMENTS[tool])
    stored(place, tool, given)
    assert live.suspect is not None
    assert (live.suspect.rank, live.suspect.host) == (3, "node1")
    assert later(place, tool) == live
    index, _ = loaded(place)
    assert (index.tool, index.arguments, len(index.hosts)) == (tool, ARGUMENTS[tool], 5)


def test_the_file_of_a_host_is_a_recording(tmp_path: Path) -> None:
    stored(str(tmp_path / "place"), "collective_live", answers("collective_live"))
    names = sorted(path.name for path in (tmp_path / "place").iterdir())
    assert names == [*(f"0000{n}-node{n}.zip" for n in range(4)), "fleet.json"]
    recording = unpack((tmp_path / "place" / names[1]).read_bytes(), COLLECTORS)
    assert recording.manifest.host == "node1"
    assert (tmp_path / "place").stat().st_mode & 0o777 == 0o700


# --- what is read may be anything -----------------------------------------------------------------------------------


def damaged(place: str, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change a file of a place."""
    with fsspec.open(f"{place}/{name}", "rb") as file:
        content = file.read()
    with fsspec.open(f"{place}/{name}", "wb") as file:
        file.write(change(content))


CHANGES: list[Callable[[bytes], bytes]] = [
    lambda content: content[: len(content) // 2],
    lambda content: b"",
    lambda content: b"x" * 1000,
    lambda content: b"[" * 100_000,
    lambda content: b'{"data": ' * 40 + b"1" + b"}" * 40,
]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_damaged_file_is_a_failure_of_its_host(place: str, tool: str) -> None:
    given = answers(tool)
    stored(place, tool, given)
    without = merge(tool, [*given[:2], *given[3:]], ARGUMENTS[tool])
    for change in CHANGES if tool == "hang" else CHANGES[:1]:
        damaged(place, f"00002-node2.{'json' if tool == 'hang' else 'zip'}", change)
        result = later(place, tool)
        assert {one.status: one.hosts for one in result.missing} == {"unreachable": "node9", "invalid": "node2"}
        assert (result.joint, result.suspect, result.disputed) == (without.joint, without.suspect, without.disputed)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_of_another_host_is_not_used(tmp_path: Path, tool: str) -> None:
    place = tmp_path / "place"
    stored(str(place), tool, answers(tool))
    first, _, third, *_ = sorted(path for path in place.iterdir() if path.name != "fleet.json")
    third.write_bytes(first.read_bytes())
    assert {one.status: one.hosts for one in later(str(place), tool).missing} == {
        "unreachable": "node9",
        "wrong_host": "node2",
    }


def test_only_bounded_regular_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    stored(str(place), "hang", answers("hang"))
    (tmp_path / "secret").write_text("{}")
    for number, name in enumerate(sorted(path.name for path in place.iterdir())[:4]):
        (place / name).unlink()
        if number == 0:
            (place / name).symlink_to(tmp_path / "secret")
        elif number == 1:
            os.mkfifo(place / name)
        elif number == 2:
            (place / name).write_bytes(b" " * 3000)
    monkeypatch.setattr(collected, "_FILE_LIMIT", 2000)
    _, found = loaded(str(place))
    assert [one.status for one in found] == ["invalid"] * 4 + ["unreachable"]
    for one, holding in zip(found, ("cannot be read", "not a regular", "too large", "No such file"), strict=False):
        assert holding in one.detail


def test_host_names_choose_no_path(place: str) -> None:
    given = answers("hang")
    names = ["../../etc/passwd", "a\nb\x1b[31m", "节点", "x" * 500]
    odd = [Answer(**{**vars(one), "host": name, "identity": False}) for name, one in zip(names, given, strict=False)]
    stored(place, "hang", [*odd, given[-1]])
    index, found = loaded(place)
    files = [row.file for row in index.hosts]
    assert files == [
        "00000-.._.._etc_passwd.json",
        "00001-a_b__31m.json",
        "00002-__.json",
        f"00003-{'x' * 64}.json",
        "",
    ]
    assert [one.status for one in found] == ["answered"] * 4 + ["unreachable"]
    assert not any("\n" in one.host or "\x1b" in one.host for one in found)


def changed_index(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((place / "fleet.json").read_text())
    change(content)
    (place / "fleet.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.update(hosts=None),
        lambda index: index.update(schema_version="2"),
        lambda index: index.update(tool=["hang"]),
        lambda index: index["hosts"][0].update(file="../../../etc/passwd"),
        lambda index: index["hosts"][0].update(file="00000-a.zip\n"),
        lambda index: index["hosts"][0].update(status="\x1b[31m"),
        lambda index: index["hosts"][0].update(host=None),
        lambda index: index["hosts"][0].update(ended=float("inf")),
        lambda index: index["hosts"][0].update(began=float("nan")),
        lambda index: index["hosts"][0].update(seconds=-1),
        lambda index: index["hosts"][0].update(located={"pid": "x"}),
        lambda index: index.pop("hosts"),
    ],
)
def test_an_index_that_is_none_is_an_error_of_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    place = tmp_path / "place"
    stored(str(place), "hang", answers("hang"))
    changed_index(place, change)
    with pytest.raises(ToolError) as caught:
        later(str(place), "hang")
    assert caught.value.code is ErrorCode.BAD_RECORDING
    assert caught.value.message.isprintable()


def test_texts_of_an_index_are_inert(tmp_path: Path) -> None:
    stored(str(tmp_path / "place"), "hang", answers("hang"))
    located = {"pid": 7, "ranks": {"7": 0}, "job": "a\x1b"}
    odd = {"detail": "a\nb", "host": "node3\x1b", "reply": {"data": {}}, "located": located}
    changed_index(tmp_path / "place", lambda index: index["hosts"][3].update(odd))
    _, found = loaded(str(tmp_path / "place"))
    assert found[3].located is not None
    assert all(text.isprintable() for text in (found[3].detail, found[3].host, found[3].located.job))
    assert found[3].reply != {"data": {}}


# --- read by other processes ----------------------------------------------------------------------------------------

HOST_TOOL = "fileslower"


@functools.cache
def of_hosts() -> list[Answer]:
    """What hosts answered to a tool that judges each by itself; node1 is slow."""
    made, tool = [], App().tool(HOST_TOOL)
    for number in range(3):
        recording = scene(slow=number == 1).build()
        recording.manifest.host = f"node{number}"
        reply = json.loads(judged(tool, recording, tool.params(), "en").model_dump_json())
        made.append(Answer(f"node{number}", "answered", reply=reply, identity=True))
    return made


def given_to(tool: str) -> list[Answer]:
    return of_hosts() if tool == HOST_TOOL else answers(tool)


def with_one_damaged(place: Path, tool: str) -> FleetResult:
    """Store answers, of which one is damaged, and return the judgement of this process."""
    collected.store(str(place), tool, ARGUMENTS.get(tool, {}), given_to(tool))
    next(place.glob("00000-*")).write_bytes(b"x")
    result = later(str(place), tool)
    assert (result.verdict, result.suspect and result.suspect.host) == ("abnormal", "node1")
    assert [one.hosts for one in result.missing if one.status == "invalid"] == ["node0"]
    return result


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


@pytest.mark.thorough
@pytest.mark.parametrize("tool", [HOST_TOOL, *ARGUMENTS])
def test_workers_of_a_cluster_give_the_same_answer(
    tmp_path: Path, scheduler: str, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = with_one_damaged(tmp_path / "place", tool)
    monkeypatch.chdir(tmp_path)  # workers have another directory
    assert judge(FleetParams(tool=tool), "place", scheduler) == here
    assert judge(FleetParams(tool=tool), f"local://{tmp_path}/place", scheduler).joint == here.joint


@pytest.mark.thorough
@pytest.mark.parametrize("tool", [HOST_TOOL, "slow_node_check"])
def test_processes_of_this_machine_give_the_same_answer(
    tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = with_one_damaged(tmp_path / "place", tool)
    monkeypatch.setattr(parallel, "_SMALL", 0)
    assert later(str(tmp_path / "place"), tool) == here
    assert read_all(tool, ARGUMENTS.get(tool, {}), given_to(tool))[1].part is not None


@pytest.mark.thorough
def test_a_worker_that_cannot_reach_the_place_is_reported_by_host(tmp_path: Path, scheduler: str) -> None:
    place = f"memory://fleet{tmp_path}"
    stored(place, "hang", answers("hang"))
    result = judge(FleetParams(tool="hang"), place, scheduler)
    assert (result.verdict, result.suspect) == ("unknown", None)
    assert {one.status: (one.hosts, one.count) for one in result.missing} == {
        "invalid": ("node[0-3]", 4),
        "unreachable": ("node9", 1),
    }


class Killed(dict[str, Any]):
    """Arguments that end the process that loads them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


@pytest.mark.thorough
def test_a_process_that_dies_costs_the_answer_of_one_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_SMALL", 0)
    given = answers("hang")[:2]
    killer = Answer(**{**vars(given[1]), "reply": Killed()})
    first, second = read_all("hang", {}, [given[0], killer])
    assert (first.status, second.status) == ("answered", "invalid")
    assert "its reader ended with status 9" in second.detail


def test_a_scheduler_that_does_not_answer_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "_PATIENCE", "0.2s")
    stored(str(tmp_path / "place"), "hang", answers("hang"))
    with closed_port() as url:
        address = url.replace("http://", "tcp://").removesuffix("/mcp")
        words = ["fleet", "run", "hang", "--from", str(tmp_path / "place"), "--scheduler", address]
        with pytest.raises(ToolError) as caught:
            build(words)(words, prog_name="whystall", standalone_mode=False)
    assert (caught.value.code, caught.value.message.isprintable()) == (ErrorCode.IO_ERROR, True)
    words = ["fleet", "run", "hang", "--scheduler", address]
    with pytest.raises(ToolError, match="for stored answers"):
        build(words)(words, prog_name="whystall", standalone_mode=False)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["scheduler", "jobs"])
async def test_no_client_chooses_the_processes_that_read(name: str) -> None:
    """Over MCP the arguments are those of `FleetParams`."""
    arguments = {"traces": "/x", name: "tcp://evil:8786" if name == "scheduler" else 8}
    with pytest.raises(ToolError, match=f"{name} is no argument"):
        await ask(
            FleetParams(tool="slow_node_check", arguments=arguments), settings({"node1": "http://127.0.0.1:1/mcp"})
        )
    with pytest.raises(ToolError, match=name):
        parse_params(FleetParams, {"tool": "hang", name: arguments[name]})


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(id="run:x", kind="run", name="x", pid=FIRST_PID, program="x", processes=1, pids=[FIRST_PID], workers=[1])

    async def find(_wanted: Any) -> Resolution:
        return Resolution(status="found", pid=FIRST_PID, job=job)

    monkeypatch.setattr(jobs, "find", find)


@pytest.mark.anyio
@pytest.mark.usefixtures("found")
async def test_what_is_asked_is_stored_with_the_hosts_that_did_not_answer(place: str) -> None:
    apps = {f"node{n}": RecordedHost(hung_host(f"node{n}", (2 * n, 2 * n + 1), 6, late=(3,))) for n in range(3)}
    asked = FleetParams(tool="hang", arguments={"duration": 60}, job="llama")  # patience
    with serving({name: application(app) for name, app in apps.items()}) as urls, closed_port() as dead:
        known = settings({**urls, "dead": dead})
        live = await ask(asked, known, collect=place)
        with pytest.raises(ToolError) as caught:
            await ask(asked, known, collect=place)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert (live.asked, live.answered, live.verdict) == (4, 3, "abnormal")
    assert later(place, "hang") == live
    assert later(place, "hang", duration=60) == live
    index, _ = loaded(place)
    assert TOKEN not in index.model_dump_json()


def test_the_command_judges_without_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(str(tmp_path / "place"), "hang", answers("hang"))
    words = ["fleet", "run", "hang", "--from", str(tmp_path / "place"), "--json"]
    build(words)(words, prog_name="whystall", standalone_mode=False)
    console.deliver()
    assert json.loads(capsys.readouterr().out)["suspect"]["rank"] == 3
    with pytest.raises(ToolError) as caught:
        build(words)([*words, "--collect", "x"], prog_name="whystall", standalone_mode=False)
    assert "exclude each other" in caught.value.message


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "place")
    stored(place, "hang", answers("hang"))
    for params, holding in (
        ({"tool": "collective_live"}, "are of hang, not of collective_live"),
        ({"tool": "nonsense"}, "cannot be asked"),
        ({"tool": "hang", "arguments": {"duration": 5}}, "duration was chosen"),
        ({"tool": "hang", "arguments": {"pid": 5}}, "pid was chosen"),
        ({"tool": "hang", "arguments": {"top": 0}}, "top"),
        ({"tool": "hang", "hosts": "node1"}, "of the hosts that were asked"),
    ):
        with pytest.raises(ToolError) as caught:
            judge(FleetParams.model_validate(params), place)
        assert (caught.value.code, holding in caught.value.message) == (ErrorCode.BAD_ARGUMENT, True)
    for wrong in (str(tmp_path / "none"), "memory://none", "\0"):
        with pytest.raises(ToolError) as caught:
            later(wrong, "hang")
        assert caught.value.code is ErrorCode.BAD_RECORDING
    for wrong in ("nonsense://user:secret@host/x", "s3://bucket/x"):
        monkeypatch.setitem(sys.modules, "s3fs", None)
        with pytest.raises(ToolError) as caught:
            collected.check(wrong)
        assert caught.value.message.isprintable()
        assert "secret" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ToolError) as caught:
        collected.check("memory://x")
    assert caught.value.message == "this needs the library fsspec, which is not installed"
