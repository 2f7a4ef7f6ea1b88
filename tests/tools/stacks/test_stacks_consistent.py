"""Tables of stack samples that do not fit together are refused."""

from __future__ import annotations

import polars as pl
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.consistent import fault
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import recording_of, stacks_of


def profile() -> StackProfile:
    made = Builder()
    outer, inner = made.frame("main"), made.frame("work", "w.py", 3, "python")
    event = made.event("cpu-clock")
    made.sample(made.stack([outer, inner]), event, 2.0, at_ns=5, thread=made.thread(1, 1, "a"))
    made.sample(made.stack([outer]), event)
    return made.profile("test")


def test_what_was_built_is_sound() -> None:
    assert fault(profile().tables) == ""
    assert stacks_of(recording_of(profile())).samples.height == 2


@pytest.mark.parametrize(
    ("table", "column", "value", "text"),
    [
        ("samples", "stack", 2, "stacks that are not there"),
        ("samples", "stack", -2, "stacks that are not there"),
        ("samples", "thread", 1, "threads that are not there"),
        ("samples", "event", -1, "events that are not there"),
        ("samples", "weight", float("nan"), "not finite"),
        ("samples", "weight", float("inf"), "not finite"),
        ("samples", "weight", -0.5, "negative"),
        ("samples", "at_ns", -2, "negative times"),
        ("samples", "span_ns", -1, "negative times"),
        ("stacks", "parent", 1, "before their parents"),
        ("stacks", "frame", 2, "frames that are not there"),
        ("stacks", "stack", 0, "not numbered"),
        ("frames", "kind", "script", "no known kind"),
        ("frames", "line", -3, "no line"),
        ("events", "period", float("inf"), "no numbers"),
    ],
)
def test_what_does_not_fit_is_refused(table: str, column: str, value: object, text: str) -> None:
    recording = recording_of(profile())
    name = f"samples.{table}"
    frame = recording.table(name)
    broken = frame.with_columns(pl.lit(value).cast(frame.schema[column]).alias(column))
    damaged = Recording.in_memory(recording.manifest, {**recording.tables(), name: broken})
    with pytest.raises(ToolError, match=text) as caught:
        stacks_of(damaged)
    assert caught.value.code is ErrorCode.BAD_RECORDING
