"""flamegraph_diff: which functions make two profiles differ - before and after, or a normal and an abnormal rank."""

from __future__ import annotations

from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.profiles.flamegraph_diff.data import DiffData, Params
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.recorded import BEFORE, NOW


def judge(recording: Recording, params: Params) -> Judgement[DiffData]:
    """Compare the profile ``samples`` with the profile ``samples_before``.

    Raises `ToolError`: bad_trace if one of them is empty, bad_argument if they measured different things.
    """
    from whystall.tools.profiles.flamegraph_diff.judge import judged

    return judged(recording, params)


TOOL = Tool(
    name="flamegraph_diff",
    title="Two profiles compared",
    description=(
        "Which functions make two profiles differ (before and after, a normal and an abnormal rank), stack samples "
        "or accelerator traces: what grew or vanished, where it arises, whether chance could have made it."
    ),
    params=Params,
    data=DiffData,
    needs=lambda params: [Need(NOW), Need(BEFORE)],
    judge=judge,
    kinds=frozenset({"profile.change", "profile.alike"}),
    cost=2.0,
    reads="stacks",
)
