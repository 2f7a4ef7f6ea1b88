"""flame_graph: shares that are counted by hand, bounds only where there were samples, launchers of device work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.profiles import profile_of
from tests.recordings import Scene
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.registry import Judgement
from whystall.tools.profiles.common.accelerator import stacks_of_profile
from whystall.tools.profiles.flame_graph.data import REASONS, Data
from whystall.tools.profiles.flame_graph.tool import TOOL, Params, judge
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import NO_STACK, StackProfile
from whystall.tools.stacks.recorded import recording_of
from whystall.tools.stacks.tree import CallTree

Frame = tuple[str, str, int, str]


def sampled(*stacks: tuple[float, str], unit: str = "samples", period: float = 0.0, comm: str = "") -> StackProfile:
    """Weights of stacks ``a;b;c``; frames `name(file:line)` are Python."""
    made = Builder()
    event = made.event("cpu", unit, period)
    for weight, stack in stacks:
        frames = []
        for name in stack.split(";"):
            label, _, place = name.rstrip(")").partition("(")
            file, _, line = place.partition(":")
            frames.append(made.frame(label, file, int(line or 0), "python" if file else "native"))
        made.sample(made.stack(frames), event, weight, thread=made.thread(1, 1, comm))
    return made.profile("folded")


def judged(profile: StackProfile, **params: Any) -> Judgement[Data]:
    return judge(recording_of(profile), Params(**params))


def test_shares_of_frames_themselves_and_with_what_they_call() -> None:
    data = judged(sampled((600, "main;work;inner"), (300, "main;work"), (100, "main;io"))).data
    own = {row.name: row.self_pct for row in data.frames}
    assert own == {"inner": 60, "work": 30, "io": 10}
    assert [row.name for row in data.frames] == ["inner", "work", "io"]
    total = {row.name: row.total_pct for row in data.inclusive}
    assert total == {"main": 100, "work": 90, "inner": 60, "io": 10}
    assert data.frames[0].path == ["main", "work"]
    assert (data.samples, data.weight, data.stacks) == (1000, 1000, 4)


def test_recursion_counts_once() -> None:
    data = judged(sampled((70, "main;f;f;f"), (30, "main;f"))).data
    assert {row.name: row.total_pct for row in data.inclusive} == {"f": 100}
    assert data.frames[0].self_pct == 100


def test_bounds_hold_the_share() -> None:
    row = judged(sampled((70, "a"), (30, "b"))).data.frames[0]
    # Wilson's interval of 70 in 100
    assert row.self_low_pct == pytest.approx(60.4, abs=0.1)
    assert row.self_high_pct == pytest.approx(78.1, abs=0.1)
    assert (row.low_pct, row.high_pct, row.samples) == (row.self_low_pct, row.self_high_pct, 70)


def test_a_period_tells_how_many_samples_there_were() -> None:
    data = judged(sampled((70e7, "a"), (30e7, "b"), unit="ns", period=1e7)).data
    assert data.samples == 100
    assert data.frames[0].self_low_pct == pytest.approx(60.4, abs=0.1)


def test_durations_have_no_bounds() -> None:
    found = judged(sampled((70, "a"), (30, "b"), unit="ns"))
    row = found.data.frames[0]
    assert (row.self_pct, row.low_pct, row.self_low_pct, row.samples) == (70, None, None, None)
    assert set(found.findings[0].metrics) == {"self_pct", "total_pct"}


def test_a_chain_of_calls_is_one_row() -> None:
    """What only calls one other says nothing: the innermost stands for all; a frame of two places is none of these."""
    data = judged(sampled((40, "boot;main;loop;f;x"), (40, "boot;main;loop;g;x"), (20, "boot;main;h;h"))).data
    assert {row.name: row.total_pct for row in data.inclusive} == {"main": 100, "loop": 80, "x": 80, "h": 20}
    data = judged(sampled((60, "main;f;a"), (30, "main;g;f;b"), (10, "main;g"))).data
    assert {row.name: row.total_pct for row in data.inclusive} == {"main": 100, "f": 90, "a": 60, "g": 40, "b": 30}


def test_findings_tell_and_do_not_accuse() -> None:
    found = judged(sampled((90, "main;save(/job/train.py:212)"), (10, "main")))
    first = found.findings[0]
    assert first.kind == "profile.frame"
    assert first.polarity is Polarity.NORMAL
    assert first.attributes == {
        "name": "save",
        "code": "train.py:212",
        "path": "main",
        "event": "cpu",
        "frame_kind": "python",
    }
    assert TOOL.kinds == {finding.kind for finding in found.findings}


def test_threads_of_one_command_stand_beneath_its_name() -> None:
    found = judged(sampled((5, "f"), comm="python3"))
    assert isinstance(found.basis, CallTree)
    assert found.basis.label(0) == "python3"
    assert [row.name for row in found.data.frames] == ["f"]
    assert found.artifacts[0].text == "python3;f 5\n"


@pytest.mark.parametrize(
    ("stacks", "verdict"),
    [
        (((800, "a"), (200, "b")), "concentrated"),
        (((500, "a"), (500, "b")), "spread"),
        # 52 of 100 may well be less than half
        (((52, "a"), (48, "b")), "spread"),
    ],
)
def test_the_verdict_is_sure(stacks: tuple[tuple[float, str], ...], verdict: str) -> None:
    assert judged(sampled(*stacks)).data.verdict == verdict


def test_what_makes_it_doubtful() -> None:
    assert judged(sampled((9, "a"))).data.reasons == ["few_samples"]
    made = Builder()
    made.sample(NO_STACK, made.event("cpu"), 600)
    made.sample(made.stack([made.frame("a")]), made.event("cpu"), 400)
    assert judged(made.profile("x")).data.reasons == ["no_stacks"]
    assert {"few_samples", "no_stacks", "launch_unknown"} == REASONS


STEP = (
    (0, 1000, "python", "model/net.py(20): forward", 7, 7, -1, -1, -1, -1),
    (10, 900, "python", "torch/nn/functional.py(99): linear", 7, 7, -1, -1, -1, -1),
    (50, 200, "operator", "aten::addmm", 7, 7, -1, -1, -1, -1),
    (60, 80, "launch", "cudaLaunchKernel", 7, 7, -1, -1, 1, -1),
    (300, 400, "operator", "aten::mul", 7, 7, -1, -1, -1, -1),
    (310, 320, "launch", "cudaLaunchKernel", 7, 7, -1, -1, 2, -1),
    (100, 400, "kernel", "gemm", 7, 7, 0, 7, 1, -1),
    (400, 500, "kernel", "gemm", 7, 7, 0, 7, 2, -1),
    (900, 1000, "kernel", "tail", 7, 7, 0, 7, 77, -1),
)


def test_device_work_by_who_launches_it() -> None:
    data = judged(stacks_of_profile(profile_of(*STEP), idle=True)).data
    gemm = data.devices[0]
    assert (gemm.name, gemm.weight, gemm.count) == ("GPU:gemm", 400, 2)
    assert [(one.operator, one.code, one.pct) for one in gemm.launched_by] == [
        ("aten::addmm", "forward (net.py:20)", 75),
        ("aten::mul", "forward (net.py:20)", 25),
    ]
    assert [(one.operator, one.code) for one in data.devices[1].launched_by] == [("", "")]
    assert data.idle_pct == pytest.approx(100 * 400 / 900)
    assert {row.kind: row.self_pct for row in data.kinds} == pytest.approx({"device": 500 / 9, "idle": 400 / 9})
    assert data.reasons == ["launch_unknown"]


def test_half_idle_is_said_first() -> None:
    rows = [row for row in STEP if row[3] != "tail"]
    late = (2000, 2100, "kernel", "gemm", 7, 7, 0, 7, 2, -1)
    data = judged(stacks_of_profile(profile_of(*rows, late), idle=True)).data
    assert data.verdict == "idle"
    assert judged(stacks_of_profile(profile_of(*rows, late))).data.idle_pct is None


def test_the_host_of_the_same_profile() -> None:
    data = judged(stacks_of_profile(profile_of(*STEP), event="host")).data
    assert data.devices == []
    assert data.event == "host"
    assert data.weight == 1000


def test_an_event_must_be_chosen_among_several() -> None:
    made = Builder()
    for name in ("instructions", "branches"):
        made.sample(made.stack([made.frame("f")]), made.event(name, "count"), 5)
    recording = recording_of(made.profile("perf_script"))
    with pytest.raises(ToolError) as caught:
        judge(recording, Params())
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert "branches" in caught.value.remedy
    assert judge(recording, Params(event="branches")).data.event == "branches"


def test_a_recording_without_samples_is_no_answer() -> None:
    found = judge(Scene().build(), Params())
    assert (found.seen, found.data.verdict, found.findings) == (0, "no_samples", [])


@pytest.mark.parametrize("values", [{"rank": -1}, {"step": True}, {"top": 0}, {"event": "x" * 257}, {"pid": 3}])
def test_parameters_are_bounded(values: dict[str, Any]) -> None:
    with pytest.raises(ToolError) as caught:
        parse_params(Params, values)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_frames_that_would_break_the_folded_text() -> None:
    made = Builder()
    names = ["a;b", "c\nd", "<script>", "x 7"]
    made.sample(made.stack([made.frame(name) for name in names]), made.event("cpu"), 3)
    text = judged(made.profile("x")).artifacts[0].text
    assert text == "a:b;c\\x0ad;<script>;x 7 3\n"


def test_of_too_many_stacks_the_heaviest_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.tools.profiles.common.folded._STACKS", 2)
    artifact = judged(sampled((5, "a"), (1, "b"), (9, "c"), (2, "d"))).artifacts[0]
    assert artifact.text == "a 5\nc 9\n"
    assert "the heaviest 2 of 4" in artifact.title


def test_weights_that_are_no_samples_get_no_bounds_of_samples() -> None:
    """Folded stacks do not tell a unit: nanoseconds are not six thousand million samples."""
    builder = Builder()
    event = builder.event("samples")
    for name, weight in (("a", 2_907_000_000), ("b", 3_153_606_000)):
        builder.sample(builder.stack([builder.frame(name)]), event, weight)
    data = judge(recording_of(builder.profile("folded")), Params()).data
    assert data.samples is None
    assert [(row.name, row.low_pct, row.samples) for row in data.frames] == [("b", None, None), ("a", None, None)]
