"""Tools over stack samples at both doors: files of several formats, two profiles, recordings, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import recording_of

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TICK_NS = 10_000_000


@pytest.fixture(autouse=True)
def _own_state(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(state))


def folded(path: Path, **stacks: int) -> Path:
    """A file of folded stacks; ``a__b`` is b called by a."""
    path.write_text("".join(f"{name.replace('__', ';')} {count}\n" for name, count in stacks.items()))
    return path


def ticks(busy: Callable[[int], bool], seconds: int = 30, slow: int = 1) -> StackProfile:
    """A thread that is seen 100 times a second where `busy` says so, in a step that is `slow` times as long."""
    made = Builder()
    main = made.frame("<module>", "/srv/train.py", 30, "python")
    work, step = made.frame("work", "/srv/train.py", 4, "python"), made.frame("step", "/srv/train.py", 12, "python")
    thread, event = made.thread(7, 7, "train"), made.event("cpu-clock", "ns", TICK_NS)
    for tick in range(100 * seconds):
        if busy(tick):
            inner = step if tick * 7919 % 10 < 3 * slow else work
            made.sample(made.stack([main, inner]), event, TICK_NS, at_ns=tick * TICK_NS, thread=thread)
    return made.profile("ebpf", clock="mono")


def recorded(path: Path, profile: StackProfile) -> Path:
    """A recording of a host that holds samples."""
    made = recording_of(profile, name=path.name)
    made.manifest.host = "node7"
    made.manifest.window_ns = made.manifest.requested_ns = 30_000_000_000
    made.save(path)
    return path


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(done: subprocess.CompletedProcess[str], code: str) -> str:
    """The one line of an error with `code` and a remedy."""
    assert done.stderr.startswith(f"error: {code}: "), done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "; " in done.stderr
    assert done.returncode == (2 if code == "bad_argument" else 1)
    assert done.stdout == ""
    return done.stderr


async def called(tool: str, arguments: dict[str, Any]) -> Any:
    with App().closing() as app:
        async with Client(McpServer(app).server, mode="auto") as client:
            return await client.call_tool(tool, arguments)


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


def artifacts(found: dict[str, Any]) -> dict[str, Path]:
    """Pictures and files of an answer by the end of their name."""
    return {Path(one["path"]).name.partition("-")[2]: Path(one["path"]) for one in found["artifacts"]}


@pytest.mark.thorough
@pytest.mark.anyio
async def test_a_flame_graph_of_folded_stacks(tmp_path: Path, whystall: Run) -> None:
    path = folded(tmp_path / "x.folded", main__a=300, main__b=600, main__b__c=100)
    found = answer(whystall("run", "flame_graph", "--from", str(path), "--json"))
    assert [row["name"] for row in found["data"]["frames"][:2]] == ["b", "a"]
    assert found["data"]["frames"][0]["self_pct"] == pytest.approx(60)
    pictures = artifacts(found)
    assert {path.suffix for path in pictures.values()} >= {".html", ".svg"}
    for lang in ("en", "zh"):
        told = whystall("run", "flame_graph", "--from", str(path), "--lang", lang).stdout
        assert "x.folded" in told.splitlines()[0]
        assert "60 %" in told
    result = await called("flame_graph", {"recording": str(path)})
    assert not result.is_error, text_of(result)
    assert result.structured_content["data"] == found["data"]
    assert len(text_of(result)) <= 6000
    assert "b: 70 %" in text_of(result), "the ranked frames are in the text"
    assert ".svg" in text_of(result), "the picture is an artifact"


@pytest.mark.anyio
async def test_a_recording_serves_profile_map_and_flame_graph(tmp_path: Path, whystall: Run) -> None:
    stalls = recorded(tmp_path / "rec", ticks(lambda tick: tick % 500 < 400))
    profile = answer(whystall("run", "cpu_profile", "--from", str(stalls), "--json"))
    rows = {row["name"]: row for row in profile["data"]["frames"]}
    assert rows["work"]["self_pct"] == pytest.approx(70, abs=3)
    assert rows["work"]["low_pct"] < 70 < rows["work"]["high_pct"]
    assert rows["work"]["code"].endswith("train.py:4")
    assert profile["coverage"]["host"] == "node7", "the recording's own coverage is kept"
    heat = answer(whystall("run", "heat_map", "--from", str(stalls), "--json"))
    (quiet,) = [row for row in heat["data"]["periods"] if row["what"] == "quiet"][:1]
    assert quiet["period_s"] == pytest.approx(5, rel=0.02)
    assert quiet["band_ms"] == pytest.approx(1000, rel=0.1)
    assert heat["data"]["verdict"] == "stall"
    assert [path.suffix for path in artifacts(heat).values()].count(".html") == 1
    for lang, said in (("en", "every 5 s"), ("zh", "每隔 5 s")):
        told = whystall("run", "heat_map", "--from", str(stalls), "--lang", lang).stdout
        assert said in told
    flames = answer(whystall("run", "flame_graph", "--from", str(stalls), "--json"))
    assert flames["data"]["event"] == "cpu-clock"
    for tool in ("cpu_profile", "heat_map", "flame_graph"):
        result = await called(tool, {"recording": str(stalls), "top": 5})
        assert not result.is_error, text_of(result)
        assert 0 < len(text_of(result)) <= 6000


@pytest.mark.thorough
@pytest.mark.anyio
async def test_what_grew_is_named_first_and_the_same_twice_is_no_difference(tmp_path: Path, whystall: Run) -> None:
    before = recorded(tmp_path / "before", ticks(lambda tick: True))
    same = recorded(tmp_path / "same", ticks(lambda tick: tick > 3))
    slower = recorded(tmp_path / "slower", ticks(lambda tick: True, slow=2))
    words = ("run", "flamegraph_diff", "--before", str(before))
    found = answer(whystall(*words, "--after", str(slower), "--json"))
    assert found["data"]["verdict"] == "differs"
    changed = [one for one in found["findings"] if one["kind"] == "profile.change"]
    assert changed[0]["attributes"]["name"] == "step"
    assert changed[0]["attributes"]["direction"] == "grew"
    assert changed[0]["metrics"]["change_pct"] == pytest.approx(30, abs=3)
    assert found["coverage"]["recording"] == "before -> slower"
    none = answer(whystall(*words, "--after", str(same), "--json"))
    assert none["data"]["verdict"] == "alike"
    assert [one["kind"] for one in none["findings"]] == ["profile.alike"]
    for lang, said in (("en", "grew"), ("zh", "占比上升")):
        told = whystall(*words, "--after", str(slower), "--lang", lang).stdout
        assert said in told
        assert "step" in told
        assert f"whystall run critical_path --from {slower} --before {before}" in told
    result = await called("flamegraph_diff", {"before": str(before), "after": str(slower)})
    assert not result.is_error, text_of(result)
    assert result.structured_content["data"] == found["data"]
    assert "grew" in text_of(result)


def test_a_profile_of_ranks_is_opened_by_rank(tmp_path: Path, whystall: Run) -> None:
    """Both sides may be ranks of one directory of traces, a normal and an abnormal one."""
    for rank, slow in ((0, 1), (1, 2)):
        (tmp_path / f"rank{rank}.json").write_text(kineto(rank, slow))
    words = ("run", "flamegraph_diff", "--before", str(tmp_path), "--before-rank", "0", "--after", str(tmp_path))
    found = answer(whystall(*words, "--after-rank", "1", "--json"))
    assert found["data"]["event"] == "device"
    assert any("gemm" in row["name"] for row in found["data"]["rows"])
    assert whystall("run", "flame_graph", "--from", str(tmp_path), "--rank", "1").returncode == 0
    several = refused(whystall("run", "flame_graph", "--from", str(tmp_path)), "bad_argument")
    assert "rank" in several


def kineto(rank: int, slow: int) -> str:
    """A trace in which an operator launches two kernels, over and over; one takes `slow` times as long on `rank`."""
    events: list[dict[str, Any]] = []
    for at in range(200):
        start = at * 1000
        events.append(_event("cpu_op", "aten::mm", 1, start, 90))
        for order, (name, took) in enumerate((("gemm", 300 * slow), ("copy", 200))):
            link = 10 * at + order
            events.append(_event("cuda_runtime", "cudaLaunchKernel", 1, start + 10 + 20 * order, 5, correlation=link))
            begin = start + 100 + (300 * slow if order else 0)
            events.append(_event("kernel", name, 7, begin, took, pid=0, correlation=link, device=0, stream=7))
    about = {"rank": rank, "world_size": 2, "backend": "nccl"}
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}], "distributedInfo": about}
    return json.dumps({**head, "baseTimeNanoseconds": 0, "traceEvents": events})


def _event(cat: str, name: str, tid: int, at: float, took: float, pid: int = 4, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": at, "dur": took, "args": args}


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (("flame_graph",), "bad_argument", ("needs stack samples", "folded")),
        (("flame_graph", "--from", "nope"), "io_error", ("nope",)),
        (("flame_graph", "--from", "/dev/zero"), "bad_trace", ("not a regular file",)),
        (("flame_graph", "--from", "EMPTY"), "bad_trace", ("empty",)),
        (("flame_graph", "--from", "ODD"), "bad_trace", ("no stack samples",)),
        (("flame_graph", "--from", "NEGATIVE"), "bad_trace", ("NEGATIVE",)),
        (("flame_graph", "--from", "GOOD", "--rank", "2"), "bad_argument", ("has no rank",)),
        (("flame_graph", "--from", "GOOD", "--event", "cycles"), "bad_argument", ("no event cycles",)),
        (("cpu_profile", "--from", "EMPTY"), "bad_trace", ("empty",)),
        (("heat_map", "--from", "GOOD"), "bad_trace", ("no times of its samples",)),
        (("flamegraph_diff",), "bad_argument", ("before and after",)),
        (("flamegraph_diff", "--before", "GOOD"), "bad_argument", ("needs after",)),
        (("flamegraph_diff", "--before", "EMPTY", "--after", "GOOD"), "bad_trace", ("EMPTY", "empty")),
        (("flamegraph_diff", "--before", "GOOD", "--after", "EMPTY"), "bad_trace", ("EMPTY", "empty")),
        (("flamegraph_diff", "--before", "GOOD", "--after", "BYTES"), "bad_argument", ("bytes",)),
        (("cpu_profile", "--from", "WITHOUT"), "missing_collector", ("--samples",)),
        (("heat_map", "--from", "WITHOUT"), "missing_collector", ("--samples",)),
    ],
)
@pytest.mark.thorough
def test_bad_input_is_one_line_and_leaves_nothing(
    words: tuple[str, ...], code: str, parts: tuple[str, ...], tmp_path: Path, whystall: Run, recording: Path
) -> None:
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "ODD").write_text("no stacks\nat all\n")
    (tmp_path / "NEGATIVE").write_text("main;a -3\nmain;b nan\nmain;c -inf\n")
    folded(tmp_path / "GOOD", main__a=30, main__b=70)
    made = Builder()
    made.sample(made.stack([made.frame("malloc")]), made.event("alloc_space", "bytes"), 4096.0)
    recorded(tmp_path / "BYTES", made.profile("pprof"))
    (tmp_path / "WITHOUT").symlink_to(recording)
    state = {"WHYSTALL_HOME": str(tmp_path / "home")}
    line = refused(whystall("run", *words, cwd=tmp_path, env=state), code)
    assert all(part in line for part in parts), line
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.suffix in (".html", ".svg")]
    as_json = whystall("run", *words, "--json", cwd=tmp_path, env=state)
    assert json.loads(as_json.stdout or as_json.stderr)["error"]["code"] == code


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("flame_graph", {}, "bad_argument"),
        ("flame_graph", {"recording": "relative.folded"}, "bad_recording"),
        ("flame_graph", {"recording": "/dev/zero"}, "bad_recording"),
        ("flame_graph", {"recording": "/a\0b"}, "bad_recording"),
        ("flame_graph", {"recording": "/etc/passwd"}, "bad_trace"),
        ("flamegraph_diff", {"before": "relative", "after": "/etc/passwd"}, "bad_trace"),
        ("flamegraph_diff", {"before": "/etc/passwd", "after": "/dev/zero"}, "bad_trace"),
        ("flamegraph_diff", {"recording": "/etc/passwd"}, "bad_argument"),
        ("cpu_profile", {"recording": "/nonexistent/x.folded"}, "bad_recording"),
        ("heat_map", {"hz": 0}, "bad_argument"),
    ],
)
async def test_a_client_gets_an_error_with_code_and_remedy(tool: str, arguments: dict[str, Any], code: str) -> None:
    result = await called(tool, arguments)
    text = text_of(result)
    assert result.is_error
    assert text.startswith(f"{code}: "), text
    assert "\n" not in text
    assert text.endswith(")")
    assert "root:" not in text, "no line of a refused file is told"


@pytest.mark.thorough
@pytest.mark.anyio
async def test_names_of_strangers_are_inert_everywhere(tmp_path: Path, whystall: Run) -> None:
    """Markup, separators and control characters in names: shown as text, in every answer and picture."""
    made = Builder()
    names = ("<script>alert(1)</script>", "a;b", "two\nlines", "\x1b[2Jred", "# IGNORE ALL", '"><img src=x onerror=y>')
    outer, event = made.frame("main"), made.event("cpu-clock", "ns", TICK_NS)
    for order, name in enumerate(names):
        stack = made.stack([outer, made.frame(name, f"/x/{name}", 3, "python")])
        for at in range(40):
            made.sample(stack, event, TICK_NS, at_ns=(order * 40 + at) * TICK_NS, thread=made.thread(7, 7, name))
    path = recorded(tmp_path / "rec", made.profile("ebpf", clock="mono"))
    for tool in ("cpu_profile", "flame_graph", "heat_map"):
        found = answer(whystall("run", tool, "--from", str(path), "--json"))
        pictures = [one for one in artifacts(found).values() if one.suffix in (".html", ".svg")]
        assert pictures, tool
        for picture in pictures:
            page = picture.read_text("utf-8")
            assert "<script>alert(1)" not in page
            assert "<img src=x" not in page
        text = text_of(await called(tool, {"recording": str(path)}))
        for told in (text, whystall("run", tool, "--from", str(path)).stdout):
            assert "\x1b" not in told
            assert not any(line.startswith("# IGNORE") for line in told.splitlines())
    for line in artifacts(answer(whystall("run", "cpu_profile", "--from", str(path), "--json")))["cpu.folded"].open():
        assert line.rpartition(" ")[0].count(";") <= 2, "a separator in a name makes no frame"


def test_a_rate_without_samples_says_nothing(tmp_path: Path, whystall: Run) -> None:
    line = refused(whystall("record", "--duration", "0.2", "--hz", "99", "--out", str(tmp_path / "a")), "bad_argument")
    assert "samples" in line
    assert not (tmp_path / "a").exists()
