"""A real step of PyTorch on the CPU: its operators take what the profiler's own account says, its code what it logged.

Truth is `torch_step.py`: the table of `key_averages()`, made from the same events by other code, and the program's own
clock around a range it marks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whystall.tools.profiles.common.open_stacks import open_stacks
from whystall.tools.profiles.flame_graph.tool import Params, judge
from whystall.tools.stacks.recorded import recording_of
from whystall.tools.stacks.tree import CallTree, Part, call_tree

PROGRAM = Path(__file__).parent / "workloads" / "torch_step.py"
BLOCK = "prepare batch"
traces = pytest.mark.parametrize("trace", ["ops", "stacks"])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("torch")
    subprocess.run([sys.executable, str(PROGRAM), str(out)], check=True, timeout=300, capture_output=True)
    return out


def truth(job: Path, trace: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job / "truth.json").read_text())[trace]
    return found


def tree_of(job: Path, trace: str) -> CallTree:
    return call_tree(Part(open_stacks(job / f"{trace}.json")))


def by_label(tree: CallTree, *, own: bool) -> dict[str, float]:
    weights = (tree.frame_own if own else tree.frame_total)[0]
    return dict(zip(tree.labels, weights.tolist(), strict=True))


@traces
def test_operators_take_what_the_profiler_says(job: Path, trace: str) -> None:
    """Self time per operator, to the nanosecond the trace is written with per call."""
    own = by_label(tree_of(job, trace), own=True)
    table = {
        name: (count, 1e3 * us)
        for name, (count, us) in truth(job, trace)["table"].items()
        if name.startswith(("aten::", "autograd::", "torch::")) or name.endswith("Backward0")
    }
    assert len(table) > 30
    for name, (count, ns) in table.items():
        # a call has two ends, and so has each of those it calls
        assert own[name] == pytest.approx(ns, abs=10 * count), name


def test_without_stacks_the_whole_table_is_met(job: Path) -> None:
    own = by_label(tree_of(job, "ops"), own=True)
    table = truth(job, "ops")["table"]
    assert own.keys() == table.keys()
    assert sum(own.values()) == pytest.approx(1e3 * sum(us for _, us in table.values()), rel=1e-6)


@traces
def test_the_range_takes_what_the_program_logged(job: Path, trace: str) -> None:
    """Less than the program's clocks around it say, more than those inside of it."""
    said = truth(job, trace)
    total = by_label(tree_of(job, trace), own=False)[BLOCK]
    assert said["slept_ns"] * 0.999 <= total <= sum(said["blocks"]) * 1.001


def test_sleep_stands_beneath_the_line_that_sleeps(job: Path) -> None:
    tree = tree_of(job, "stacks")
    sleeping = [
        node for node in np.flatnonzero(tree.own[0]).tolist() if tree.label(node).startswith("<built-in function sleep")
    ]
    assert len(sleeping) == 1
    path = [tree.label(node) for node in tree.path(sleeping[0])]
    assert path[-3:-1][0] == BLOCK
    function, _, place = path[-2].rstrip(")").partition(" (")
    file, _, line = place.partition(":")
    assert (function, file) == ("prepare", PROGRAM.name)
    assert "def prepare" in PROGRAM.read_text().splitlines()[int(line) - 1]
    # within the wait as the program measured it, and nearly all of it
    slept = truth(job, "stacks")["slept_ns"]
    assert 0.9 * slept <= tree.total[0, sleeping[0]] <= slept


@traces
def test_the_tool_ranks_it_first(job: Path, trace: str) -> None:
    data = judge(recording_of(open_stacks(job / f"{trace}.json")), Params()).data
    assert (data.event, data.unit, data.samples, data.devices) == ("host", "ns", None, [])
    assert data.verdict == "concentrated"
    assert data.frames[0].name == {"ops": BLOCK, "stacks": "<built-in function sleep>"}[trace]
    assert BLOCK in [data.frames[0].name, *data.frames[0].path]
