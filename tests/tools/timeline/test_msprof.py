"""``PROF_*`` directories of msprof, built from its documentation and source (no recorded one was at hand)."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from ascend_job import BEGIN, PID, QUEUE, RAW_BEGIN, database, prof_directory, timeline

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.ascend import msprof
from whystall.tools.timeline.profile import Profile


def _export(directory: Path, name: str, events: object, place: str = "mindstudio_profiler_output") -> None:
    (directory / place).mkdir(exist_ok=True)
    (directory / place / name).write_text(json.dumps(events))


def _kernels(profile: Profile) -> list[tuple[str, int, int]]:
    frame = profile.activities.filter(kind="kernel")
    return frame.select("name", pl.col("start_ns") - BEGIN, "tid").rows()


EXPECTED = [("aclnnMul_Mul", 860_000, -1), ("aclnnMm_MatMulCommon_MatMulV2", 940_000, QUEUE)]


def test_a_timeline_with_its_clock(tmp_path: Path) -> None:
    directory = prof_directory(tmp_path)
    _export(directory, "msprof_20250109000001.json", timeline(python=False))
    _export(directory, "msprof_tx_20250109000001.json", [])
    profile = msprof.read(directory)
    assert _kernels(profile) == EXPECTED
    assert (profile.source, profile.rank, profile.clock) == ("msprof", -1, "real")
    assert [(b.host_clock, b.profile_ns, b.host_ns) for b in profile.bridges] == [("mono_raw", BEGIN, RAW_BEGIN)]
    assert set(profile.activities.filter(kind="launch")["pid"]) == {PID}
    assert profile.steps.is_empty()


def test_times_as_numbers_are_exact_too(tmp_path: Path) -> None:
    """Some versions print them without quotes; a float would be off by up to 125 ns."""
    directory = prof_directory(tmp_path)
    (directory / "mindstudio_profiler_output").mkdir()
    text = json.dumps(timeline(python=False))
    for event in timeline(python=False):
        if "ts" in event:
            text = text.replace(f'"ts": "{event["ts"]}"', f'"ts": {event["ts"]}')
    (directory / "mindstudio_profiler_output" / "msprof_1.json").write_text(text)
    assert '"ts": 1736' in text
    assert _kernels(msprof.read(directory)) == EXPECTED


def test_slices_of_one_export_are_one_timeline(tmp_path: Path) -> None:
    directory, events = prof_directory(tmp_path), timeline(python=False)
    middle = len(events) // 2
    _export(directory, "msprof_slice_0_20250109000001.json", events[:middle])
    _export(directory, "msprof_slice_1_20250109000001.json", events[middle:])
    assert _kernels(msprof.read(directory)) == EXPECTED


def test_the_newest_export_counts(tmp_path: Path) -> None:
    directory = prof_directory(tmp_path)
    _export(directory, "msprof_20250109000009.json", timeline(python=False))
    _export(directory, "msprof_20250109000001.json", [])
    assert _kernels(msprof.read(directory)) == EXPECTED


def test_the_place_of_exports_before_cann_7(tmp_path: Path) -> None:
    directory = prof_directory(tmp_path)
    _export(directory, "msprof_0_1_20250109000001.json", timeline(python=False), "timeline")
    assert _kernels(msprof.read(directory)) == EXPECTED


def test_a_database_gives_the_same(tmp_path: Path) -> None:
    directory = prof_directory(tmp_path)
    database(directory / "msprof_20250109000001.db", python=False)
    profile = msprof.read(directory)
    assert _kernels(profile) == EXPECTED
    assert (profile.source, len(profile.bridges)) == ("msprof", 1)


def test_raw_data_is_reported_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="--export=on") as caught:
        msprof.read(prof_directory(tmp_path))
    assert caught.value.code is ErrorCode.BAD_TRACE
