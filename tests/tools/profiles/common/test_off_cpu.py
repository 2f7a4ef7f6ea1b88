"""Waits as stacks: all that was waited, each wait once, and its frames in order."""

from __future__ import annotations

import polars as pl
import pytest

from tests.recordings import PID, Scene
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.host.offcputime import Params, judge
from whystall.tools.profiles.common.off_cpu import stacks_of_waits
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.model import NO_TIME
from whystall.tools.stacks.tree import Part, call_tree
from whystall.tools.stacks.waits import wait_stack

KERNEL = ("schedule", "folio_wait_bit", "ksys_read")
USER = ("read@plt", "load (data/loader.py:88)", "main (train.py:12)")


def scene() -> Recording:
    """Two reads that are told one by one, ten that are too short for that, a wait that goes on, and another thread."""
    made = Scene(window_s=5.0)
    made.wait(0.5, 100, "read", "/data/x", state="D", stack=KERNEL)
    made.wait(1.0, 300, "read", "/data/x", state="D", stack=KERNEL)
    for at in range(10):
        made.wait(2.0 + at / 100, 0.4, "read", "/data/x", state="D", stack=KERNEL)
    made.wait(3.0, 2000, "futex", tid=PID + 1, still=True)
    return made.build()


def test_all_that_was_waited_is_there_once() -> None:
    found = stacks_of_waits(scene())
    assert found.events.row(0)[1:3] == ("off-cpu", "ns")
    assert found.samples["weight"].sum() == pytest.approx(400e6 + 4e6 + 2000e6)
    timed = found.samples.filter(pl.col("at_ns") != NO_TIME)
    assert sorted(timed.select("at_ns", "span_ns").iter_rows()) == [
        (500_000_000, 100_000_000),
        (1_000_000_000, 300_000_000),
        (3_000_000_000, 2_000_000_000),
    ]
    rest = found.samples.filter(pl.col("at_ns") == NO_TIME)
    assert rest["weight"].to_list() == [pytest.approx(4e6)]
    assert rest["span_ns"].to_list() == [0]


def test_threads_are_told_apart() -> None:
    found = stacks_of_waits(scene())
    by_thread = found.samples.join(found.threads, on="thread").group_by("tid").agg(pl.col("weight").sum())
    assert dict(by_thread.iter_rows()) == {PID: pytest.approx(404e6), PID + 1: pytest.approx(2000e6)}


def test_the_same_stacks_as_the_folded_artifact() -> None:
    """Two ways to the same numbers: the artifact of offcputime is made from sums, this from single waits."""
    recording = scene()
    content = judge(recording, Params(duration=5)).artifacts[0].text
    folded = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in content.splitlines()}
    tree = call_tree(Part(stacks_of_waits(recording)), roots="comm")
    mine = {
        ";".join(tree.label(above) for above in tree.path(node)): tree.own[0, node] / 1e3
        for node in range(len(tree))
        if tree.own[0, node]
    }
    assert mine == pytest.approx(folded)
    assert f"train;[read /data/x];{';'.join(reversed(KERNEL))}" in mine


def test_frames_from_the_outermost_inward() -> None:
    frames = list(wait_stack(USER, "read", "/data/x", KERNEL))
    assert [frame.text for frame in frames] == [*reversed(USER), "[read /data/x]", *reversed(KERNEL)]
    assert [frame.kind for frame in frames] == ["python", "python", "native", *["kernel"] * 4]
    assert frames[1][1:4] == ("load", "data/loader.py", 88)
    assert frames[3][1:4] == ("[read /data/x]", "/data/x", 0)


@pytest.mark.parametrize("text", ["f (x)", "operator()(int)", "f (a:b)", "f (x.py:99999999999)", "(x.py:3)"])
def test_only_a_frame_with_file_and_line_is_python(text: str) -> None:
    (frame,) = wait_stack([text], "", "", [])
    assert (frame.name, frame.kind) == (text, "native")


def test_a_recording_without_waits() -> None:
    with pytest.raises(ToolError) as caught:
        stacks_of_waits(Scene().build(without=["switches"]))
    assert caught.value.code is ErrorCode.MISSING_COLLECTOR
    with pytest.raises(ToolError) as caught:
        stacks_of_waits(Scene().build())
    assert caught.value.code is ErrorCode.BAD_TRACE
