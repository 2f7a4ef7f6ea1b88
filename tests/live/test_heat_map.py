"""heat_map watches the simulator, whose own log says when it wrote its checkpoints."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import anyio
import pytest
from running import SIMULATOR, Running
from slow_disk import SlowDisk

from whystall.agent_server.app import App
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.result import ToolResult

SECONDS = 11.0
HALF = ("--step-ms", 50, "--size-mib", 25)  # of step and checkpoint: as many periods in half of the time


def mapped(pid: int, **more: Any) -> ToolResult[Any]:
    with App().closing() as app:
        return anyio.run(lambda: app.run_tool("heat_map", {"pid": pid, "duration": SECONDS, **more}))


def test_the_checkpoint_stall_has_its_true_period_and_place() -> None:
    with (
        SlowDisk(write_mib_s=60) as disk,
        Running(SIMULATOR, "--directory", disk.path, *HALF, wrap=disk.command) as program,
    ):
        program.until("checkpoint")
        for _ in range(3):  # others on this machine may make the program itself uneven: then once more
            before = len(program.of("checkpoint"))
            result = mapped(program.pid)
            log = program.of("checkpoint")[before:]
            starts = [line["start_mono_ns"] / 1e9 for line in log]
            periods = [later - earlier for earlier, later in pairwise(starts)]
            even = statistics.pstdev(periods) <= 0.1 * statistics.mean(periods)
            stalls = [row for row in result.data.periods if row.what == "quiet" and row.band_ms > 300]
            assert all(row.period_s == pytest.approx(statistics.median(periods), rel=0.15) for row in stalls)
            if even or stalls:
                break
    if even:
        assert len(stalls) == 1
    for row in stalls:
        assert row.band_ms == pytest.approx(1e3 * statistics.median(line["total_s"] for line in log), rel=0.15)
        assert row.basis == "switches"
        assert (row.waits[0].syscall, row.waits[0].path.endswith("/chk_*.bin")) == ("fsync", True)
        assert result.data.verdict == "stall"
        assert any(one.kind == "profile.period" and one.polarity is Polarity.ABNORMAL for one in result.findings)
    assert {one.media_type for one in result.artifacts} == {"text/html", "image/svg+xml"}


def test_a_background_writer_stalls_nobody() -> None:
    with (
        SlowDisk(write_mib_s=60) as disk,
        Running(SIMULATOR, "--directory", disk.path, *HALF, "--background", wrap=disk.command) as program,
    ):
        program.until("checkpoint")
        result = mapped(program.pid)
    assert [row for row in result.data.periods if row.what == "quiet" and row.band_ms > 100] == []
