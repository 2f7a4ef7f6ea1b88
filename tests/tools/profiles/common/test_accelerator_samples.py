"""Public profiles, read here with nothing but `json`: the same work, beneath the same operators."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whystall.tools.contract.text import clean
from whystall.tools.profiles.common.accelerator import stacks_of_profile
from whystall.tools.profiles.common.open_stacks import open_stacks
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import CallTree, Part, call_tree
from whystall.tools.timeline.profile_reading.build import NAME_LIMIT
from whystall.tools.timeline.profiles import open_profile

DATA = Path(__file__).parents[5] / "shared" / "data"
KINETO = ("timesformer_h100.json.gz", "collective_args.json.gz")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
pytestmark = [pytest.mark.skipif(not DATA.is_dir(), reason="no public samples here"), pytest.mark.thorough]


@cache
def events(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / "kineto" / name) as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def ns(us: float | str) -> int:
    return int(Decimal(str(us)) * 1000)


def nearest(tree: CallTree, node: int, kind: str) -> str:
    """The nearest frame of a kind above a node."""
    for above in reversed(tree.path(node)):
        if tree.frames["kind"][int(tree.frame[above])] == kind:
            return tree.label(above)
    return ""


def by_operator(profile: StackProfile) -> Counter[tuple[str, str]]:
    """Time of device work by (nearest operator, name)."""
    tree = call_tree(Part(profile))
    found: Counter[tuple[str, str]] = Counter()
    for node in np.flatnonzero(tree.own[0]).tolist():
        found[nearest(tree, node, "operator"), tree.label(node)] += round(float(tree.own[0, node]))
    return found


@pytest.mark.parametrize("name", KINETO)
def test_all_device_time_is_there_once(name: str) -> None:
    truth = sum(ns(event["dur"]) for event in events(name) if event["cat"] in DEVICE)
    profile = open_stacks(DATA / "kineto" / name)
    assert profile.samples["weight"].sum() == truth
    assert profile.samples["weight"].sum() > 100e6


@pytest.mark.parametrize("name", KINETO)
def test_every_kernel_stands_beneath_the_operator_that_launched_it(name: str) -> None:
    """Beneath the shortest operator of the launching thread that holds the launch."""
    calls = {e["args"]["correlation"]: e for e in events(name) if e["cat"] in ("cuda_runtime", "cuda_driver")}
    operators: dict[Any, list[tuple[int, int, str]]] = {}
    for event in events(name):
        if event["cat"] == "cpu_op":
            start = ns(event["ts"])
            operators.setdefault(event["tid"], []).append((start, start + ns(event["dur"]), event["name"]))
    truth: Counter[tuple[str, str]] = Counter()
    for event in events(name):
        if event["cat"] not in DEVICE:
            continue
        call = calls[event["args"]["correlation"]]
        at = ns(call["ts"])
        around = [(end - start, what) for start, end, what in operators[call["tid"]] if start <= at < end]
        truth[min(around)[1] if around else "", "GPU:" + clean(event["name"], NAME_LIMIT)] += ns(event["dur"])
    assert by_operator(open_stacks(DATA / "kineto" / name)) == truth
    assert len(truth) > 20


def test_the_line_of_the_program_that_launches() -> None:
    """As the trace has it: the softmax of the attention is launched by one line of the model."""
    tree = call_tree(Part(open_stacks(DATA / "kineto" / KINETO[0])))
    lines = {
        label
        for node in np.flatnonzero(tree.own[0]).tolist()
        if "SoftMaxForward" in tree.label(node)
        for label in [tree.label(above) for above in tree.path(node)]
        if "modeling_timesformer.py" in label
    }
    assert "forward (modeling_timesformer.py:200)" in lines


def test_gaps_and_work_make_the_time_of_the_only_stream() -> None:
    rows = [event for event in events(KINETO[0]) if event["cat"] in DEVICE]
    assert len({event["args"]["stream"] for event in rows}) == 1
    begin = min(ns(event["ts"]) for event in rows)
    end = max(ns(event["ts"]) + ns(event["dur"]) for event in rows)
    profile = open_stacks(DATA / "kineto" / KINETO[0], idle=True)
    assert profile.samples["weight"].sum() == end - begin


@pytest.mark.parametrize("form", ["text", "db"])
@pytest.mark.parametrize("rank", [0, 1])
def test_ascend_time_is_that_of_the_profile(form: str, rank: int) -> None:
    profile = open_profile(DATA / "ascend" / form, rank)
    work = profile.activities.filter(profile.activities["kind"].is_in(["kernel", "memcpy", "memset", "collective"]))
    found = stacks_of_profile(profile)
    assert found.samples["weight"].sum() == (work["end_ns"] - work["start_ns"]).sum()
    assert found.frames.filter(kind="device")["name"].str.starts_with("NPU:").all()


def test_text_and_database_of_ascend_launch_the_same_work_from_the_same_operators() -> None:
    """Two runs of one program: how often each operator has the device work is the same, times are not."""
    counts = []
    for form in ("text", "db"):
        profile = open_stacks(DATA / "ascend" / form, rank=0)
        tree = call_tree(Part(profile))
        placed = {
            (nearest(tree, node, "operator"), tree.label(node))
            for node in np.flatnonzero(tree.own[0]).tolist()
            if nearest(tree, node, "operator")
        }
        counts.append(placed)
    assert len(counts[0]) > 50
    assert len(counts[0] ^ counts[1]) < len(counts[0]) / 10


def test_what_the_queue_launches_stands_beneath_the_line_that_wanted_it() -> None:
    """In the sample all launches are made by the queue's thread, which knows no Python."""
    tree = call_tree(Part(open_stacks(DATA / "ascend" / "text", rank=0)))
    on_python = sum(
        float(tree.own[0, node]) for node in np.flatnonzero(tree.own[0]).tolist() if nearest(tree, node, "python")
    )
    backward = sum(
        float(tree.own[0, node])
        for node in np.flatnonzero(tree.own[0]).tolist()
        if "autograd::engine" in tree.label(tree.path(node)[0])
    )
    # the rest is launched from within the runtime and says no operator
    assert on_python + backward > 0.98 * float(tree.sums[0])
    assert on_python > 0
