"""Results of host_bound as text: findings, tables and remedies, in both languages within the budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import PID, Scene
from sched_scenes import DISPATCH, GREEDY, WORK, machine, times

from whystall.agent_server.presentation.texts import TEXT_LIMIT, result_text
from whystall.knowledge_base.models import Lang
from whystall.tools.contract.result import ToolResult
from whystall.tools.host.host_bound import tool as host_bound
from whystall.tools.host.host_bound.data import Data
from whystall.tools.recording.judging import judge


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def crowded(comm: str) -> Scene:
    """A neighbour, and a quota of a cgroup with an odd name that hardly bound."""
    cpus, scene = machine(mask="0")
    cpus.thread(GREEDY, comm)
    scene.process(GREEDY, comm, cpu=40).process(PID, "python", cpu=20)
    for at in times():
        cpus.wake(DISPATCH, at, 0).run(0, GREEDY, at - 50, at + 600, "R").run(0, DISPATCH, at + 600, at + 600 + WORK)
    return cpus.fill(scene)


def answer(comm: str) -> ToolResult[Data]:
    return judge(host_bound.TOOL, crowded(comm).build(without=["profile"]), host_bound.Params())


@pytest.mark.parametrize(
    ("lang", "first"),
    [
        (
            "en",
            f'1. Pin "dispatch ({DISPATCH})" to CPU 1, which others leave alone: taskset -cp 1 {DISPATCH}',
        ),
        (
            "zh",
            f'1. 把 "dispatch ({DISPATCH})" 绑定到其他线程不用的 CPU 1：'
            f"taskset -cp 1 {DISPATCH} (最多可挽回观测窗口的 30 %)",
        ),
    ],
)
def test_remedies_are_shown_with_their_command(lang: Lang, first: str) -> None:
    text = result_text(answer("greedy"), lang)
    lines = text.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("1. "))
    assert lines[at].startswith(first)
    assert f"taskset -acp 1 {GREEDY}" in lines[at + 1]
    assert "pin_cores" not in text  # codes are for programs
    assert len(text) <= TEXT_LIMIT
    assert "dispatchers (1/1)" in text
    assert "greedy (900)" in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_reasons_are_words_and_names_stay_names(lang: Lang) -> None:
    text = result_text(answer("no_cpu: {who} \x1b[1m"), lang)
    assert "\x1b" not in text
    assert ("another thread had its CPU" if lang == "en" else "另一个线程占用了它的 CPU") in text
    assert "{who}" in text  # the neighbour is called so
    assert "dispatch" in text


def test_a_tool_without_remedies_has_no_such_list() -> None:
    from whystall.tools.host import offcputime

    text = result_text(judge(offcputime.TOOL, crowded("greedy").build(), offcputime.Params()), "en")
    assert "What to do" not in text
