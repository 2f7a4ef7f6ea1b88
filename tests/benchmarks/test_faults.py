"""The benchmark of real faults: its scenarios, score, clean-up, and that nothing gives the cause away."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernels import boot as kernel_boot
from kernels import image, stock

from benchmarks.faults import needs, readings, report
from benchmarks.faults import run as run_module
from benchmarks.faults.answer import Answer, AnswerError, run_diagnoser
from benchmarks.faults.case import PARTS, WORKLOADS, Case
from benchmarks.faults.injectors import injectors
from benchmarks.faults.log import Log, Span
from benchmarks.faults.results import Result, Results
from benchmarks.faults.rights import command_prefix, hidden_directories
from benchmarks.faults.run import chosen, run
from benchmarks.faults.scenario import Rights, Scenario, drawn, load
from benchmarks.faults.score import score, wilson
from benchmarks.faults.source import Place, install, marks, stripped
from benchmarks.faults.undo import Journal, journal, start_time, undo_abandoned
from whystall.knowledge_base.causes import load_causes

ROOT = Path(__file__).parents[2]
SCENARIOS = load()
IDS = [scenario.id for scenario in SCENARIOS]
TELLING = re.compile(
    r"(?<!de)fault|inject|scenario|benchmark|baseline|expected|contention|deadlock|starv|throttl|bottleneck|quadratic|hog"
    r"|stall|stuck|slow|blocked|leak|regress|oracle",
    re.IGNORECASE,
)
"""Words that would reveal a case in its files, processes or settings."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)
def test_a_scenario_refers_to_what_exists(scenario: Scenario) -> None:
    expected = scenario.expected
    assert set(expected.causes) | set(expected.also) | set(expected.tempting) <= set(load_causes())
    assert bool(expected.causes) != scenario.control
    assert scenario.processes[-1].role == "job" or any(p.role == "job" for p in scenario.processes)
    known = {**readings.LOGGED, **readings.COUNTERS, **readings.LEVELS}
    assert {check.reading for check in scenario.oracle} <= set(known)
    assert {one.use for one in scenario.inject} <= set(injectors())
    places = set()
    for process in scenario.processes:
        for file in (WORKLOADS / process.program, PARTS / process.part):
            places |= {f"{file.name}#{mark}" for mark in marks(file.read_text(), file.name)}
    named = set(expected.scope.get("code", [])) | {m for text in scenario.account.values() for m in text.split()}
    assert named <= places
    assert set(scenario.needs) <= set(needs.CHECKS)


def test_a_fault_is_proved_by_the_log_and_by_something_else() -> None:
    for scenario in SCENARIOS:
        if not scenario.control:
            assert len(scenario.oracle) >= 2, scenario.id
            assert any(check.reading in readings.LOGGED for check in scenario.oracle), scenario.id


@pytest.mark.parametrize("path", sorted([*WORKLOADS.glob("*.py"), *PARTS.glob("*.py")]), ids=lambda p: p.name)
def test_an_installed_program_does_not_reveal_its_case(path: Path) -> None:
    text = path.read_text()
    bare = stripped(text)
    assert len(bare.splitlines()) == len(text.splitlines())
    ast.parse(bare)
    assert TELLING.search(f"{path.name} {bare}") is None


def test_comments_and_docstrings_are_removed_and_lines_stay() -> None:
    source = '"""Why.\n\nMore.\n"""\n\n\ndef save(x):\n    """Do."""\n    y = "# kept"  # mark: here\n    return x, y\n'
    assert marks(source, "a.py") == {"here": Place("a.py", 9, "save")}
    bare = stripped(source).splitlines()
    assert bare[:8] == ["", "", "", "", "", "", "def save(x):", ""]
    assert bare[8] == '    y = "# kept"'


def test_settings_do_not_reveal_the_case() -> None:
    for scenario in SCENARIOS:
        visible = [
            (p.role, p.program, list(p.settings), list(p.changed), p.environment, drawn(p.settings, Fixed()))
            for p in scenario.processes
        ]
        assert TELLING.search(json.dumps([scenario.id, *visible])) is None, scenario.id


class Fixed:
    """Draws the first of what is possible."""

    def randint(self, low: int, _high: int) -> int:
        return low

    def uniform(self, low: float, _high: float) -> float:
        return low

    def choice(self, values: list[object]) -> object:
        return values[0]


@pytest.fixture
def case(request: pytest.FixtureRequest) -> object:
    scenario = next(one for one in SCENARIOS if one.id == "p08")
    with journal() as undo:
        made = Case(scenario, 1, undo)
        try:
            yield made
        finally:
            undo.undo_all()
            made.reap()


def test_processes_of_a_running_case_do_not_reveal_it(case: Case) -> None:
    case.start()
    case.change("job", {})
    names = [str(path) for path in case.directory.rglob("*")]
    process = Path(f"/proc/{case.pids['job']}")
    seen = [(process / name).read_bytes().decode() for name in ("cmdline", "environ", "comm")]
    config = (case.directory / "job/config.json").read_text()
    assert TELLING.search("\n".join([*names, *seen, config]).replace(str(ROOT), "")) is None
    assert case.scenario.title not in config


def answered(**values: object) -> Answer:
    return Answer.model_validate({"verdict": "confirmed", "causes": ["child_process_per_step"], **values})


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({}, "right"),
        ({"verdict": "inconclusive"}, "weak"),
        ({"verdict": "inconclusive", "causes": []}, "abstained"),
        ({"causes": ["cpu_contention", "child_process_per_step"]}, "wrong"),
        ({"verdict": "healthy", "causes": []}, "false_healthy"),
        ({"verdict": "idle", "causes": []}, "false_healthy"),
    ],
)
def test_outcomes_of_a_fault(case: Case, values: dict[str, object], outcome: str) -> None:
    judged = score(case, answered(**values), {})
    assert judged.outcome == outcome
    assert judged.top3 is ("child_process_per_step" in answered(**values).causes)
    assert judged.tempted is (outcome == "wrong")


def test_the_scope_is_right_at_the_line_or_in_its_function(case: Case) -> None:
    case.places["report_command.py#run"] = Place("callbacks.py", 17, "export")
    lines = ["export (callbacks.py:17)", "x <- /a/callbacks.export (/a/callbacks.py:16)", "export (train.py:17)"]
    hits = [score(case, answered(scope={"code": [line]}), {}).scope["code"] for line in lines]
    assert hits == [True, True, False]


def test_only_an_asserted_cause_is_a_false_alarm(case: Case) -> None:
    case.scenario = next(one for one in SCENARIOS if one.id == "c01")
    assert score(case, answered(causes=["cpu_contention"]), {}).outcome == "false_alarm"
    assert score(case, answered(verdict="healthy", causes=[]), {}).outcome == "quiet"


def test_a_suffering_control_is_not_healthy(case: Case) -> None:
    case.scenario = next(one for one in SCENARIOS if one.id == "c17")
    assert score(case, answered(verdict="healthy", causes=[]), {}).outcome == "false_healthy"
    assert score(case, answered(verdict="inconclusive", causes=["cpu_contention"]), {}).outcome == "quiet"


def test_rights_of_a_diagnoser() -> None:
    assert command_prefix(Rights()) == []
    assert command_prefix(Rights(capabilities="none"))[:2] == ["setpriv", "--bounding-set=-all"]
    assert "--clear-groups" in command_prefix(Rights(user="nobody"))
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # with mode 0700
        private = Path(name)
        assert hidden_directories([private / "lib/python", Path("/usr")]) == {private: private / "lib/python"}


def test_wilson_interval() -> None:
    low, high = wilson(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)  # Brown, Cai, DasGupta 2001
    assert wilson(0, 0) == (0.0, 1.0)


def test_log_spans(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"event": "step", "at": 2.0, "s": 1.0}\n{"event": "step", "at": 5.0, "s": 2.0}\n{"event": "st')
    log = Log(path)
    assert log.share_pct("step", Span(1.5, 5.5)) == pytest.approx(100 * 2.5 / 4)
    assert log.durations("step", Span(3, 6)) == [2.0]
    assert log.silent_s("step", Span(0, 9)) == 4.0


KILLED = """
import os, subprocess, sys, time
from benchmarks.faults.undo import journal, start_time
with journal() as undo:
    os.mkdir(sys.argv[1])
    undo.add("remove_tree", sys.argv[1])
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    undo.add("kill_group", child.pid, start_time(child.pid))
    print(child.pid, flush=True)
    time.sleep(600)
"""


def test_changes_of_a_killed_runner_are_undone(tmp_path: Path) -> None:
    place = tmp_path / "place"
    runner = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(place)], stdout=subprocess.PIPE, text=True, cwd=ROOT, process_group=0
    )
    assert runner.stdout is not None
    child = int(runner.stdout.readline())
    assert place.exists()
    os.killpg(runner.pid, signal.SIGKILL)
    runner.wait()
    runner.stdout.close()
    deadline = time.monotonic() + 10
    while (place.exists() or start_time(child) is not None) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not place.exists()
    assert start_time(child) is None


def test_the_journal_of_a_running_case_is_not_run_by_another_runner(tmp_path: Path) -> None:
    with journal() as undo:
        (tmp_path / "kept").mkdir()
        undo.add("remove_tree", str(tmp_path / "kept"))
        undo_abandoned()
        assert (tmp_path / "kept").exists()
    assert not (tmp_path / "kept").exists()


def test_a_reused_pid_is_not_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    undo = Journal(tmp_path / "journal")
    undo.add("kill_group", other.pid, 1)
    assert undo.undo_all() == []
    assert other.poll() is None
    other.kill()
    other.wait()


def result(**values: object) -> Result:
    fields = {"scenario": "p01", "title": "t", "group": "g", "control": False, "repeat": 0, "diagnoser": "rules"}
    return Result.model_validate({**fields, "commit": "abc", "seed": 1, "expected": ["x"], **values})


def test_a_stopped_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "results"
    Results(path).add(result())
    with path.open("a") as file:
        file.write('{"scenario": "p0')  # killed while writing
    again = Results(path)
    assert again.has("p01", 0, "rules", "abc")
    assert not again.has("p01", 1, "rules", "abc")
    assert not again.has("p01", 0, "rules", "def")
    again.add(result(repeat=1))
    assert len(Results(path).of({"p01"}, {"rules"}, 2, "abc")) == 2


def test_an_interrupted_case_runs_again_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def observe(scenario: Scenario, repeat: int, _: int, diagnosers: dict[str, list[str]], *__: object) -> object:
        ran.append(list(diagnosers))
        for name in diagnosers:
            if len(ran) == 2 and name == "b":
                raise SystemExit
            yield result(scenario=scenario.id, repeat=repeat, diagnoser=name)

    monkeypatch.setattr(run_module, "observe", observe)
    wanted, two = [one for one in SCENARIOS if one.id == "p01"], {"a": "true", "b": "true"}
    with pytest.raises(SystemExit):
        run(wanted, two, 2, 1, Results(tmp_path / "r"), "abc")
    assert len(Results(tmp_path / "r").of({"p01"}, {"a", "b"}, 2, "abc")) == 2  # the first case only
    found = run(wanted, two, 2, 1, Results(tmp_path / "r"), "abc")
    found = run(wanted, {**two, "c": "true"}, 2, 1, Results(tmp_path / "r"), "abc")
    assert ran == [["a", "b"], ["a", "b"], ["a", "b"], ["c"], ["c"]]
    assert sorted((one.repeat, one.diagnoser) for one in found) == [(n, name) for n in (0, 1) for name in "abc"]


def test_a_void_case_is_injected_again_for_those_it_was_void_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def observe(scenario: Scenario, repeat: int, _: int, diagnosers: dict[str, list[str]], *__: object) -> object:
        ran.append(list(diagnosers))
        for name in diagnosers:
            # the fault ends before the second diagnoser, then never holds for the third
            ended = (len(ran) == 1 and name != "a") or name == "c"
            yield result(scenario=scenario.id, repeat=repeat, diagnoser=name, void="Void: did not last" * ended)

    monkeypatch.setattr(run_module, "observe", observe)
    wanted = [one for one in SCENARIOS if one.id == "p01"]
    found = run(wanted, {"a": "true", "b": "true", "c": "true"}, 1, 1, Results(tmp_path / "r"), "abc")
    assert ran == [["a", "b", "c"], ["b", "c"], ["c"]]
    assert [(one.diagnoser, bool(one.void)) for one in found] == [("a", False), ("b", False), ("c", True)]


def test_a_case_whose_kernel_feature_is_missing_runs_in_a_guest_or_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boot(kernel: object, command: str, shared: Path, *_: object, **__: object) -> object:
        booted.append(command)
        Results(shared / "results.jsonl").add(result(scenario="v01", kernel="6.1.0-50-amd64", answer=None))
        return SimpleNamespace(code=0)

    booted: list[str] = []
    monkeypatch.setattr(needs, "has", lambda _: False)
    monkeypatch.setattr(stock, "fetch", lambda _: None)
    monkeypatch.setattr(image, "environment", lambda: ["env"])
    monkeypatch.setattr(kernel_boot, "boot", boot)
    results = Results(tmp_path / "r")
    wanted = [one for one in SCENARIOS if one.id == "v01"]
    (void,) = run(wanted, {"rules": "true"}, 1, 1, results, "abc")
    assert void.void.endswith("has no netem")
    (ran,) = run(wanted, {"rules": "true"}, 1, 1, results, "abc", "6.1")
    assert (ran.void, ran.emulated, ran.kernel) == ("", True, "6.1.0-50-amd64")
    assert "6.1.0-50-amd64, emulated: 1 cases" in report.page([ran])
    run(wanted, {"rules": "true"}, 1, 1, results, "abc", "6.1")
    assert len(booted) == 1


def test_a_run_without_cases_fails(tmp_path: Path) -> None:
    assert chosen(SCENARIOS, "zz") == []
    assert run([], {"rules": "true"}, 1, 1, Results(tmp_path / "r")) == []


def test_the_error_of_a_failed_diagnoser_is_kept() -> None:
    with pytest.raises(AnswerError, match="exit status 3"):
        run_diagnoser(["sh", "-c", "exit 3"], 1, "slow", 5)
    with pytest.raises(AnswerError, match="not an answer"):
        run_diagnoser(["echo"], 1, "slow", 5)


def test_what_a_diagnoser_started_ends_with_it(tmp_path: Path) -> None:
    """A child in a session of its own at the limit, and one whose parent ended in both cases."""
    orphan = f"(sleep 600 > /dev/null 2>&1 & echo $! >> {tmp_path}/pids) &"
    for script, why in ((f"setsid sh -c 'echo $$ >> {tmp_path}/pids; sleep 600'", "within"), ("sleep 0.2", "exit")):
        (tmp_path / "pids").write_text("")
        with pytest.raises(AnswerError, match=why):
            run_diagnoser(["sh", "-c", f"{orphan} {script}; exit 3"], 1, "slow", 0.6)
        pids = [int(text) for text in (tmp_path / "pids").read_text().split()]
        assert len(pids) == (2 if why == "within" else 1)
        deadline = time.monotonic() + 5
        while any(start_time(pid) is not None for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_install_returns_the_marks_of_what_it_writes(tmp_path: Path) -> None:
    found = install(WORKLOADS / "train.py", tmp_path / "train.py")
    text = (tmp_path / "train.py").read_text().splitlines()
    assert "self._ready.get()" in text[found["take"].line - 1]
