"""cpu_profile against programs that know what their CPU time went into: by their own clock, not by our reading.

A share is compared within four standard errors of as many samples as there were: the chance that an honest profiler
misses that is one in 15,000.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from cgroups import Cgroup
from running import HERE, Running

from whystall.agent_server.app import App
from whystall.tools.contract.result import Status, ToolResult

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sampling the kernel needs root")

HZ = 499
Burner = Callable[..., Running]


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("burner") / "cpu_burner"
    options = ["-O1", "-fno-omit-frame-pointer", "-pthread"]
    subprocess.run(["clang", *options, "-o", str(made), str(HERE / "cpu_burner.c")], check=True)
    return made


@pytest.fixture
def burner(program: Path) -> Burner:
    """Starts the program in a mode, for so many milliseconds of CPU time; it works when told to go."""
    return lambda mode, ms, wrap=list: Running(program, mode, ms, wrap=lambda argv: wrap(argv[1:]))


def look(running: Running, duration: float = 30, **arguments: Any) -> ToolResult[Any]:
    """Profile a waiting program from before its work until it exits."""
    begun = False

    def progress(done: float, total: float, message: str) -> None:
        nonlocal begun
        if not begun:
            begun = True
            running.go()

    arguments = {"pid": running.pid, "hz": HZ, "top": 200, **arguments, "duration": duration}
    return anyio.run(lambda: App().run_tool("cpu_profile", arguments, progress=progress))


def agrees(seen_pct: float, true_share: float, samples: int, slack: float = 0.0) -> bool:
    """Whether a measured share is the true one within chance; `slack`: what the program's log leaves open."""
    error = 4 * math.sqrt(max(true_share * (1 - true_share), 1 / samples) / samples)
    return abs(seen_pct / 100 - true_share) <= error + slack


def own(result: ToolResult[Any], name: str) -> float:
    return sum(row.self_pct for row in result.data.frames if row.name == name)


def check_split(result: ToolResult[Any], log: dict[str, Any]) -> None:
    """By what was seen in each of the two and in what interrupted it: a busy machine works on top of anybody."""
    rows = {row.name: row for row in result.data.frames if row.name in ("heavy", "light")}
    both = rows["heavy"].total_pct + rows["light"].total_pct
    count = rows["heavy"].samples + rows["light"].samples
    share = log["heavy_ns"] / (log["heavy_ns"] + log["light_ns"])
    assert agrees(100 * rows["heavy"].total_pct / both, share, count)
    assert both >= 80
    for row in rows.values():
        assert row.kind == "native"
        assert row.code == "cpu_burner"
        assert row.path[-1] == "split"
        assert row.low_pct <= row.total_pct <= row.high_pct


def test_two_functions_share_the_time_as_the_program_says_and_keep_their_names_when_it_is_gone(
    burner: Burner, program: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "cpu_burner"
    copy.write_bytes(program.read_bytes())
    copy.chmod(0o755)
    with Running(copy, "split", 2000, wrap=lambda argv: argv[1:]) as running:
        copy.unlink()
        result = look(running)
        log = running.until("end")
    check_split(result, log)
    assert [spot.code for spot in result.coverage.not_seen] == ["target_exited"]
    taken = result.data.threads[0]
    expected = log["all_ns"] / 1e9 * HZ
    assert abs(taken.samples - expected) <= 4 * math.sqrt(expected)
    finding = result.findings[0]
    assert (finding.kind, finding.attributes["name"]) == ("profile.frame", "heavy")
    assert finding.polarity.value == "normal"
    folded = next(a for a in result.artifacts if a.uri.endswith("cpu.folded"))
    lines = [line.rpartition(" ") for line in Path(folded.path).read_text().splitlines()]
    heavy = sum(float(weight) for stack, _, weight in lines if stack.endswith(";split;heavy"))
    assert heavy / sum(float(weight) for _, _, weight in lines) == pytest.approx(own(result, "heavy") / 100, rel=0.03)


def test_which_thread_had_how_much(burner: Burner) -> None:
    with burner("threads", 500) as running:
        result = look(running)
        log = running.until("end")
    rows = {row.comm: row for row in result.data.threads}
    for number, took in enumerate(log["ns"]):
        row, expected = rows[f"third-{number}"], took / 1e9 * HZ
        assert abs(row.samples - expected) <= 4 * math.sqrt(expected)
        assert row.frame == "heavy"
        assert row.pid == running.pid != row.tid


def test_a_numpy_loop_by_library() -> None:
    with Running("numpy_loop.py", "--seconds", 2, wait=True) as running:
        result = look(running)
        log = running.until("end")
    by_module: dict[str, float] = {}
    for row in result.data.frames:
        by_module[row.code] = by_module.get(row.code, 0.0) + row.self_pct
    blas = sum(pct for module, pct in by_module.items() if "openblas" in module)
    ufuncs = sum(pct for module, pct in by_module.items() if "_multiarray_umath" in module or "libm.so" in module)
    assert agrees(blas, log["products_ns"] / log["all_ns"], result.data.samples, 0.02)
    assert agrees(ufuncs, log["sines_ns"] / log["all_ns"], result.data.samples, 0.02)


def test_a_system_call_is_seen_down_to_where_it_works(burner: Burner) -> None:
    with burner("kernel", 1500) as running:
        result = look(running)
        log = running.until("end")
    kernel = next(kind for kind in result.data.kinds if kind.kind == "kernel")
    assert agrees(kernel.self_pct, log["read_ns"] / log["all_ns"], result.data.samples, 0.03)
    busiest = result.data.frames[0]
    assert busiest.kind == "kernel"
    assert any("sys_read" in name for name in busiest.path)
    assert busiest.path[-1] != busiest.name
    # the timer's own frames are in no stack
    assert not any("hrtimer" in row.name or "perf_" in row.name for row in result.data.frames if row.self_pct > 5)


@pytest.mark.parametrize("children", [True, False])
def test_a_child_is_followed_on_request(burner: Burner, children: bool) -> None:
    with burner("fork", 1000) as running:
        result = look(running, children=children)
        log = running.until("end")
    child = running.of("child")[0]["pid"]
    if children:
        assert [row.pid for row in result.data.threads if row.samples > HZ / 2] == [child]
        check_split(result, log)
    else:
        assert child not in {row.pid for row in result.data.threads}
        assert result.data.samples < HZ / 4


def test_a_cgroup_and_nobody_else(burner: Burner) -> None:
    with Cgroup("cpu") as group:
        with burner("split", 1000, wrap=group.command) as inside, burner("split", 1000) as outside:
            outside.go()
            result = look(inside, pid=None, cgroup=group.name)
            log = inside.until("end")
        assert {row.pid for row in result.data.threads} == {inside.pid}
        check_split(result, log)


def test_the_whole_host_includes_it_and_not_the_observer(burner: Burner) -> None:
    with burner("split", 1000) as running:
        result = look(running, pid=None, duration=2)
        running.until("end")
    rows = {row.pid: row for row in result.data.threads}
    assert rows[running.pid].samples > HZ / 2
    assert os.getpid() not in rows
    assert result.status is Status.OK


def test_who_never_ran_was_not_on_a_cpu() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        while "(sleep) S" not in Path(f"/proc/{sleeper.pid}/stat").read_text():
            time.sleep(0.01)
        result = anyio.run(lambda: App().run_tool("cpu_profile", {"pid": sleeper.pid, "duration": 0.5}))
    finally:
        sleeper.kill()
        sleeper.wait()
    assert result.status is Status.NO_DATA
    assert result.data.verdict == "not_on_cpu"
    assert not result.findings
    assert result.coverage.collectors[0].proven


def test_without_privilege_it_samples_and_reports_what_it_could_not_read(tmp_path: Path) -> None:
    code = (
        "import os, shutil, tempfile, anyio\n"
        "from whystall.agent_server.app import App\n"
        "def look(): return anyio.run(lambda: App().run_tool('cpu_profile', {'pid': os.getppid(), 'duration': 0.1}))\n"
        "look()\n"  # what is imported late may lie where only root can read it
        "os.environ['WHYSTALL_HOME'] = tempfile.mkdtemp()\n"
        "os.chown(os.environ['WHYSTALL_HOME'], 65534, 65534)\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "print(look().model_dump_json())\n"
        "shutil.rmtree(os.environ['WHYSTALL_HOME'])\n"
    )
    environment = {**os.environ, "WHYSTALL_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)
    assert result["status"] == "partial", done.stderr
    (collector,) = result["coverage"]["collectors"]
    assert (collector["engine"], collector["why"].split(":")[1].strip()) == ("procfs", "no_privilege")
    assert {"sampled", "not_permitted", "python_frames"} <= {spot["code"] for spot in result["coverage"]["not_seen"]}


def test_a_window_between_two_ticks_says_nothing(burner: Burner) -> None:
    with burner("split", 2000) as running:
        running.go()
        arguments = {"pid": running.pid, "duration": 0.1, "hz": 1}
        result = anyio.run(lambda: App().run_tool("cpu_profile", arguments))
    if result.data.samples == 0:  # the timer may happen to tick in the window's setup
        assert result.data.verdict == "few_ticks"
    assert result.status is Status.PARTIAL
    assert "not_proven" in [spot.code for spot in result.coverage.not_seen]
