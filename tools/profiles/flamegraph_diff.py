"""flamegraph_diff: which functions make two profiles differ - before and after, or a normal and an abnormal rank."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.tools.contract.params import Params as Base
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.profiles.flamegraph_diff_data import DiffData
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.recorded import BEFORE, NOW

_Source = Annotated[str | None, Field(min_length=1, max_length=4096)]
_Rank = Annotated[int | None, Field(ge=0, le=1_000_000)]


class Params(Base):
    """Parameters of flamegraph_diff."""

    before: Annotated[_Source, Field(description="the normal or earlier profile: a file or directory")] = None
    after: Annotated[_Source, Field(description="the abnormal or later profile")] = None
    before_rank: Annotated[_Rank, Field(description="rank, where `before` holds several")] = None
    after_rank: Annotated[_Rank, Field(description="rank, where `after` holds several")] = None
    step: Annotated[int | None, Field(ge=0, le=2**31 - 1, description="only this step of an accelerator's profile")] = (
        None
    )
    event: Annotated[str, Field(max_length=200, description="which event, where the profiles counted several")] = ""
    min_pct: Annotated[float, Field(ge=0.01, le=50, description="a smaller change of a share is none, points")] = 1.0
    top: Annotated[int, Field(ge=1, le=200, description="rows per table")] = 10


def judge(recording: Recording, params: Params) -> Judgement[DiffData]:
    """What makes the profile ``samples`` differ from the profile ``samples_before``.

    Raises `ToolError`: bad_trace when one of them is empty, bad_argument when they measured different things.
    """
    from whystall.tools.profiles.flamegraph_diff_judge import judged

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
