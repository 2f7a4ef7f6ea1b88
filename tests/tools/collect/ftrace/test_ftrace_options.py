"""What may be asked of a capture, checked before anything is touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from whystall.tools.collect.ftrace import in_process
from whystall.tools.collect.ftrace.options import CpuLoss, Recorded, RecordOptions
from whystall.tools.collect.ftrace.recorder import check, record, stopping_on_signals, streams
from whystall.tools.contract.errors import ErrorCode, ToolError


@pytest.mark.parametrize(
    "options",
    [
        RecordOptions(engine="ftrace"),
        RecordOptions(mode="pipe"),
        RecordOptions(groups=("sched", "nonsense")),
        RecordOptions(cpus=(8191,)),
        RecordOptions(pids=(0,)),
        RecordOptions(pids=(-1,)),
        RecordOptions(pids=(4194305,)),
        RecordOptions(pids=tuple(range(1, 1026))),
        RecordOptions(children=True),
        RecordOptions(in_namespace=True),
        RecordOptions(pids=(1,), namespace_of=1),
        RecordOptions(pids=(1,), in_namespace=True, namespace_of=0),
        RecordOptions(keep=3),
        RecordOptions(rotate_bytes=-1),
        RecordOptions(min_free_bytes=-1),
        RecordOptions(duration_s=float("nan")),
        RecordOptions(mode="ring", rotate_bytes=1 << 20),
    ],
)
def test_nonsense_is_refused_before_a_file_is_made(tmp_path: Path, options: RecordOptions) -> None:
    with pytest.raises(ToolError) as caught:
        record(options, tmp_path / "t")
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "stream"),
    [
        (RecordOptions(duration_s=10), False),
        (RecordOptions(duration_s=10.1), True),
        (RecordOptions(duration_s=0), True),
        (RecordOptions(duration_s=-1), True),
        (RecordOptions(duration_s=3, rotate_bytes=1 << 20), True),
        (RecordOptions(duration_s=3, mode="stream"), True),
        (RecordOptions(mode="ring"), False),
    ],
)
def test_long_captures_write_while_they_record(options: RecordOptions, stream: bool) -> None:
    check(options)
    assert streams(options) is stream


def test_the_first_signal_is_a_wish_and_the_second_an_order() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stopping_on_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_losses_add_up() -> None:
    losses = (CpuLoss(0, 5, 1), CpuLoss(1, 0, 2))
    assert Recorded((), 0, 0, losses, 0, 0, "asked", "mono", (0, 1), "tracefs").lost == 8


def test_stopping_what_was_never_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        in_process.ftrace_record_stop(tmp_path / "t")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert list(tmp_path.iterdir()) == []
