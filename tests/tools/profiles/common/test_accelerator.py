"""A device's work stands beneath the stack that launched it, and every nanosecond of it is there once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from tests.profiles import profile_of
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BLIND_SPOTS
from whystall.tools.profiles.common.accelerator import stacks_of_profile
from whystall.tools.stacks.model import NO_STACK, StackProfile
from whystall.tools.timeline.profile import OWNERS, Profile

Activity = tuple[Any, ...]


def host(
    start: int, end: int, kind: str, name: str, *, tid: int = 7, correlation: int = -1, step: int = -1
) -> Activity:
    return (start, end, kind, name, 7, tid, -1, -1, correlation, step)


def work(
    start: int, end: int, name: str, correlation: int, *, kind: str = "kernel", stream: int = 7, step: int = -1
) -> Activity:
    return (start, end, kind, name, 7, 7, 0, stream, correlation, step)


def weights(profile: StackProfile) -> dict[str, float]:
    """Weight by stack, frames by name."""
    names = dict(profile.frames.select("frame", "name").iter_rows())
    found: Counter[str] = Counter()
    for stack, weight in profile.samples.select("stack", "weight").iter_rows():
        found[";".join(reversed(list(_path(profile, stack, names))))] += weight
    return dict(found)


def _path(profile: StackProfile, stack: int, names: dict[int, str]) -> Any:
    while stack != NO_STACK:
        _, parent, frame = profile.stacks.row(stack)
        yield names[frame]
        stack = parent


STEP = (
    host(0, 1000, "annotation", "ProfilerStep#3"),
    host(0, 900, "python", "/job/train.py(41): train_step"),
    host(100, 300, "operator", "aten::mm"),
    host(200, 220, "launch", "cudaLaunchKernel", correlation=11),
    host(400, 600, "operator", "aten::softmax"),
    host(450, 460, "launch", "cudaLaunchKernel", correlation=12),
    host(900, 990, "sync", "cudaDeviceSynchronize", correlation=13),
    work(500, 700, "gemm<float, 128>", 11),
    work(800, 850, "softmax_warp", 12),
)
MM = "ProfilerStep;train_step;aten::mm;cudaLaunchKernel"
SOFTMAX = "ProfilerStep;train_step;aten::softmax;cudaLaunchKernel"


def test_a_kernel_stands_beneath_its_launch() -> None:
    found = stacks_of_profile(profile_of(*STEP))
    assert weights(found) == {f"{MM};GPU:gemm<float, 128>": 200, f"{SOFTMAX};GPU:softmax_warp": 50}
    assert found.events.row(0) == (0, "device", "ns", 0.0)
    assert sorted(found.samples.select("at_ns", "span_ns").iter_rows()) == [(500, 200), (800, 50)]
    assert found.threads.filter(thread=found.samples["thread"][0]).row(0)[1:3] == (7, 7)
    assert found.source == "kineto"
    assert found.clock == "mono"
    assert found.notes == ()


def test_frames_say_what_they_are() -> None:
    frames = {name: tuple(rest) for _, name, *rest in stacks_of_profile(profile_of(*STEP)).frames.iter_rows()}
    assert frames["train_step"] == ("/job/train.py", 41, "python")
    assert frames["aten::mm"] == ("", 0, "operator")
    assert frames["ProfilerStep"] == ("", 0, "annotation")
    assert frames["cudaLaunchKernel"] == ("", 0, "launch")
    assert frames["GPU:gemm<float, 128>"] == ("", 0, "device")


def test_the_host_by_what_its_threads_were_in() -> None:
    found = stacks_of_profile(profile_of(*STEP), event="host")
    assert weights(found) == {
        "ProfilerStep": 10,
        "ProfilerStep;cudaDeviceSynchronize": 90,
        "ProfilerStep;train_step": 500,
        "ProfilerStep;train_step;aten::mm": 180,
        MM: 20,
        "ProfilerStep;train_step;aten::softmax": 190,
        SOFTMAX: 10,
    }
    assert sum(weights(found).values()) == 1000
    assert found.events.row(0)[1:3] == ("host", "ns")


def test_without_a_device_it_is_the_operator_flame_graph() -> None:
    found = stacks_of_profile(profile_of(*[one for one in STEP if one[6] < 0]))
    assert found.events["name"][0] == "host"


def test_the_thread_of_backward_keeps_its_own_stack() -> None:
    found = stacks_of_profile(
        profile_of(
            host(0, 1000, "python", "train.py(9): backward"),
            host(100, 300, "operator", "AddmmBackward0", tid=8),
            host(200, 210, "launch", "cudaLaunchKernel", tid=8, correlation=5),
            work(400, 500, "gemm", 5),
        )
    )
    assert weights(found) == {"AddmmBackward0;cudaLaunchKernel;GPU:gemm": 100}


def test_work_without_a_launch_is_kept_and_told() -> None:
    profile = profile_of(*STEP, work(900, 1000, "lost", 99), work(1000, 1100, "lost", -1))
    found = stacks_of_profile(profile)
    assert weights(found)["[launch not in the profile];GPU:lost"] == 200
    assert ("launch_unknown", "2 of 4") in found.notes
    assert ("launch_unknown", "2 of 4") in stacks_of_profile(profile, idle=True).notes  # gaps are launched by nobody
    assert {code for code, _ in found.notes} <= BLIND_SPOTS


def test_many_kernels_of_one_launch() -> None:
    """A graph is launched once."""
    found = stacks_of_profile(
        profile_of(
            host(0, 10, "operator", "replay"),
            host(1, 5, "launch", "cudaGraphLaunch", correlation=4),
            work(20, 30, "a", 4),
            work(30, 50, "b", 4),
        )
    )
    assert weights(found) == {"replay;cudaGraphLaunch;GPU:a": 10, "replay;cudaGraphLaunch;GPU:b": 20}


def test_streams_at_once_count_each() -> None:
    found = stacks_of_profile(profile_of(*STEP, work(500, 700, "copy", 12, kind="memcpy", stream=9)))
    assert sum(weights(found).values()) == 450


def test_a_gap_stands_beneath_who_ended_it() -> None:
    found = stacks_of_profile(profile_of(*STEP), idle=True)
    assert weights(found) == {
        f"{MM};GPU:gemm<float, 128>": 200,
        f"{SOFTMAX};GPU:softmax_warp": 50,
        f"{SOFTMAX};GPU:[idle]": 100,
    }
    gap = found.frames.filter(pl.col("kind") == "idle")
    assert gap["name"].to_list() == ["GPU:[idle]"]
    assert (700, 100) in found.samples.select("at_ns", "span_ns").rows()


def test_a_device_is_idle_when_none_of_its_streams_works() -> None:
    """The second stream covers half of the gap of the first; another device has gaps of its own."""
    other = (0, 100, "kernel", "x", 7, 7, 1, 7, 12, -1), (300, 400, "kernel", "x", 7, 7, 1, 7, 12, -1)
    found = stacks_of_profile(profile_of(*STEP, work(600, 750, "long", 11, stream=9), *other), idle=True)
    gaps = {stack: weight for stack, weight in weights(found).items() if "idle" in stack}
    assert gaps == {f"{SOFTMAX};GPU:[idle]": 50 + 200}


def test_device_and_gaps_are_all_of_the_time_of_one_stream() -> None:
    rows = [work(at, at + 7, "k", 11) for at in range(1000, 2000, 10)]
    found = stacks_of_profile(profile_of(*STEP[:7], *rows), idle=True)
    assert sum(weights(found).values()) == 1997 - 1000


TWO_STEPS = (
    host(0, 100, "annotation", "ProfilerStep#0"),
    host(10, 60, "operator", "a", step=0),
    host(20, 30, "launch", "cudaLaunchKernel", correlation=1, step=0),
    host(100, 200, "annotation", "ProfilerStep#1"),
    host(150, 180, "operator", "b", step=1),
    host(160, 170, "launch", "cudaLaunchKernel", correlation=2, step=1),
    # runs in the next step, but was launched in this one
    work(120, 190, "first", 1, step=0),
    work(220, 260, "second", 2, step=1),
)
STEPS = ((0, 100, 0, 7, 7), (100, 200, 1, 7, 7))


def test_work_belongs_to_the_step_of_its_launch() -> None:
    profile = profile_of(*TWO_STEPS, steps=STEPS)
    first = weights(stacks_of_profile(profile, step=0, idle=True))
    second = weights(stacks_of_profile(profile, step=1, idle=True))
    assert first == {"ProfilerStep;a;cudaLaunchKernel;GPU:first": 70}
    assert second == {
        "ProfilerStep;b;cudaLaunchKernel;GPU:second": 40,
        "ProfilerStep;b;cudaLaunchKernel;GPU:[idle]": 30,
    }
    assert weights(stacks_of_profile(profile, idle=True)) == {**first, **second}


def test_host_time_is_cut_at_the_step() -> None:
    long = host(50, 150, "operator", "over", tid=9)
    profile = profile_of(*TWO_STEPS, long, steps=STEPS)
    for step, own in ((0, "a"), (1, "b")):
        found = weights(stacks_of_profile(profile, step=step, event="host"))
        assert found["over"] == 50
        assert sum(found.values()) == 150
        assert any(own in stack for stack in found)


def test_of_a_queue_the_operator_that_wanted_it_counts() -> None:
    """Ascend launches from another thread; the profiler tells for which operator."""
    profile = profile_of(
        host(0, 100, "python", "train.py(5): step"),
        host(10, 50, "operator", "aten::mul"),
        host(200, 300, "other", "Dequeue@Muls", tid=8),
        host(210, 290, "launch", "Node@launch", tid=8, correlation=6),
        host(310, 320, "launch", "Node@launch", tid=8, correlation=8),
        work(400, 500, "aclnnMuls", 6),
        work(500, 510, "unowned", 8),
    )
    owners = pl.DataFrame([(6, 10, 7, 7)], schema=OWNERS, orient="row")
    found = stacks_of_profile(replace(profile, owners=owners, source="ascend_text"))
    assert weights(found) == {"step;aten::mul;NPU:aclnnMuls": 100, "Node@launch;NPU:unowned": 10}


@pytest.mark.parametrize(
    ("kind", "name", "frame"),
    [
        ("python", "<built-in method mm of type object at 0x7f8a11>", "<built-in method mm of type object>"),
        ("python", "nn.Module: Linear_3", "nn.Module: Linear_3"),
        ("python", "a(b).py(3): f(x): g", "f(x): g"),
        ("annotation", "ProfilerStep#41", "ProfilerStep"),
        ("operator", "ProfilerStep#41", "ProfilerStep"),
        ("annotation", "step#41", "step#41"),
        ("other", "Dequeue@x", "Dequeue@x"),
    ],
)
def test_names_that_differ_from_run_to_run_become_one(kind: str, name: str, frame: str) -> None:
    found = stacks_of_profile(profile_of(host(0, 10, kind, name)))
    assert weights(found) == {frame: 10}


def test_collectives_of_ascend_are_told_by_what_they_are() -> None:
    profile = profile_of(
        host(0, 10, "launch", "HcclAllreduce", correlation=3),
        work(20, 30, "hcom_allReduce__586_0_1@10.0.0.1", 3, kind="collective"),
        work(30, 50, "hcom_allReduce__586_7_1", 3, kind="collective"),
    )
    found = stacks_of_profile(replace(profile, source="ascend_db"))
    assert weights(found) == {"HcclAllreduce;NPU:hcom_allReduce": 30}


def test_operators_that_overlap_are_told() -> None:
    found = stacks_of_profile(
        profile_of(host(0, 100_000, "operator", "a"), host(50_000, 200_000, "operator", "async")), event="host"
    )
    assert weights(found) == {"a": 50_000, "a;async": 50_000, "async": 100_000}
    assert ("odd_nesting", "1 of 2") in found.notes
    assert {code for code, _ in found.notes} <= BLIND_SPOTS


def error(profile: Profile, **options: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        stacks_of_profile(profile, **options)
    return caught.value


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({"event": "cpu"}, "no event 'cpu'", "device (ns), host (ns)"),
        ({"step": 9}, "no step 9", "there are: 0, 1"),
        ({"event": "host", "idle": True}, "gaps are those of a device", "leave idle out"),
    ],
)
def test_what_is_not_there_is_refused(options: dict[str, Any], message: str, remedy: str) -> None:
    found = error(profile_of(*TWO_STEPS, steps=STEPS), **options)
    assert found.code is ErrorCode.BAD_ARGUMENT
    assert message in found.message
    assert remedy in found.remedy


def test_a_profile_without_a_device_has_no_gaps_and_no_device_event() -> None:
    bare = profile_of(host(0, 10, "operator", "a"))
    assert "no gaps of one" in error(bare, idle=True).message
    assert "host (ns)" in error(bare, event="device").remedy
    assert "it has no steps" in error(bare, step=1).remedy


def test_a_step_without_device_work_is_told() -> None:
    profile = profile_of(
        *TWO_STEPS, host(200, 300, "annotation", "ProfilerStep#2"), steps=(*STEPS, (200, 300, 2, 7, 7))
    )
    assert "nothing of the device in step 2" in error(profile, step=2).message


def test_a_profile_of_collectives_alone_tells_no_work() -> None:
    assert error(profile_of()).code is ErrorCode.BAD_TRACE
