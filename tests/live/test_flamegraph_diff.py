"""flamegraph_diff on recordings of a real program in two versions: the function that was made slower is named first,
and two runs of one version show no difference. What each version costs, the program says by its own clock.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from running import HERE, Running

from whystall.agent_server.app import App
from whystall.agent_server.inputs.record_params import RecordParams
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import ToolResult

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sampling the kernel needs root")

HZ = 499
CPU_MS = 8000  # with 3000 a change of 4 % of the samples is shown in half of the runs only


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))


class Recorded:
    """Recordings of the program's versions, each made once, and the program's own account of it."""

    def __init__(self, program: Path, place: Path) -> None:
        self._program, self._place = program, place
        self._made: dict[str, tuple[Path, dict[str, Any]]] = {}

    def of(self, version: str, run: int = 1) -> tuple[Path, dict[str, Any]]:
        """The recording of a run of `version`, and its log."""
        name = f"{version}{run}"
        if name not in self._made:
            self._made[name] = self._record(version, self._place / name)
        return self._made[name]

    def _record(self, version: str, out: Path) -> tuple[Path, dict[str, Any]]:
        with Running(self._program, version, CPU_MS, wrap=lambda argv: argv[1:]) as running:
            begun = False

            def progress(done: float, total: float, message: str) -> None:
                nonlocal begun
                if not begun:
                    begun = True
                    running.go()

            params = RecordParams(pid=running.pid, duration=60, samples=True, hz=HZ)
            anyio.run(lambda: App().record(params, out, progress=progress))
            return out, running.until("end")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    place = tmp_path_factory.mktemp("versions")
    program = place / "two_versions"
    options = ["-O1", "-fno-omit-frame-pointer"]
    subprocess.run(["clang", *options, "-o", str(program), str(HERE / "two_versions.c")], check=True)
    return Recorded(program, place)


def diff(before: Path, after: Path, **arguments: Any) -> ToolResult[Any]:
    told = {"before": str(before), "after": str(after), **arguments}
    return anyio.run(lambda: App().run_tool("flamegraph_diff", told))


def per_round(log: dict[str, Any], part: str) -> float:
    return float(log[f"{part}_ns"] / log["rounds"])


def slower(recorded: Recorded, version: str, part: str) -> float:
    """How many times as long `part` takes in `version`, against what did not change: by the program's own clock."""
    (_, before), (_, after) = recorded.of("plain"), recorded.of(version)
    audit = per_round(after, "audit") / per_round(before, "audit")
    return per_round(after, part) / per_round(before, part) / audit


def test_two_runs_of_one_version_show_no_difference(recorded: Recorded) -> None:
    result = diff(recorded.of("plain")[0], recorded.of("plain", 2)[0])
    assert result.data.verdict == "alike"
    assert [finding.kind for finding in result.findings] == ["profile.alike"]
    assert [row for row in result.data.rows if row.role == "proven"] == []


@pytest.mark.parametrize(
    ("version", "part", "name", "what", "callee"),
    [
        ("encode", "encode", "encode", "own", ""),
        ("digest", "store", "digest", "own", ""),
        ("calls", "encode", "encode", "calls", "digest"),
    ],
)
def test_the_slower_function_is_named_first(
    recorded: Recorded, version: str, part: str, name: str, what: str, callee: str
) -> None:
    assert slower(recorded, version, part) > 1.1
    result = diff(recorded.of("plain")[0], recorded.of(version)[0])
    first, *others = [row for row in result.data.rows if row.role == "proven"]
    assert (result.data.verdict, first.name, first.what, first.callee) == ("differs", name, what, callee)
    assert others == []
    assert first.direction == "grew"
    assert first.low_pct > 0
    assert "main" in first.path
    finding = result.findings[0]
    assert (finding.kind, finding.attributes["name"], finding.polarity.value) == ("profile.change", name, "abnormal")
    if what == "own":
        true = 2.0
        assert first.relative == pytest.approx(true, rel=0.4)


def test_the_other_way_round_it_shrank(recorded: Recorded) -> None:
    result = diff(recorded.of("encode")[0], recorded.of("plain")[0])
    first = result.data.rows[0]
    assert (first.name, first.direction, first.role) == ("encode", "shrank", "proven")
    assert result.findings[0].polarity.value == "normal"


def test_an_event_that_is_not_there_is_refused(recorded: Recorded) -> None:
    before, after = recorded.of("plain")[0], recorded.of("plain", 2)[0]
    with pytest.raises(ToolError) as error:
        diff(before, after, event="nothing-of-the-kind")
    assert error.value.code is ErrorCode.BAD_ARGUMENT
