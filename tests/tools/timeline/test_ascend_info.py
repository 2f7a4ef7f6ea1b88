"""How an Ascend profile's clock relates to the host's, from the small files beside it.

The profilers compute: instant = mono_raw + (wall clock - mono_raw when collection began).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ascend_job import BEGIN, MONO_BEGIN, RAW_BEGIN, host_files, profiler_info, text_directory

from whystall.tools.timeline.ascend.info import Info, info_of
from whystall.tools.timeline.profile import ClockBridge

SECOND = 1_000_000_000


def _info(directory: Path, content: dict[str, Any], name: str = "profiler_info_3.json") -> Info:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(content))
    return info_of(directory)


def test_start_info_is_an_exact_bridge_to_mono_raw(tmp_path: Path) -> None:
    info = info_of(text_directory(tmp_path))
    assert info.rank == 3
    assert info.bridges[0] == ClockBridge(profile_ns=BEGIN, host_clock="mono_raw", host_ns=RAW_BEGIN)


def test_both_ends_known_give_two_points_on_mono(tmp_path: Path) -> None:
    """The wall clock gained 40 us in two seconds: mono did too, the profile (at the rate of mono_raw) did not."""
    directory = text_directory(tmp_path, prof=False)
    host_files(directory / "PROF_1_2_A" / "host", slew_ns=40_000)
    mono = [bridge for bridge in info_of(directory).bridges if bridge.host_clock == "mono"]
    assert mono == [
        ClockBridge(profile_ns=BEGIN, host_clock="mono", host_ns=MONO_BEGIN),
        ClockBridge(profile_ns=BEGIN + 2 * SECOND, host_clock="mono", host_ns=MONO_BEGIN + 2 * SECOND + 40_000),
    ]


def test_without_the_directory_of_cann_the_end_of_the_profile_bridges_to_mono(tmp_path: Path) -> None:
    info = info_of(text_directory(tmp_path, prof=False))
    assert info.bridges == (ClockBridge(BEGIN + 2 * SECOND, "mono", MONO_BEGIN + 2 * SECOND),)


def test_without_a_device_the_same_numbers_mean_mono_raw(tmp_path: Path) -> None:
    """torch_npu then adds wall minus mono to what it counted in mono_raw."""
    info = _info(tmp_path / "a_ascend_pt", profiler_info(activities=("CPU",)))
    assert info.cpu_only
    assert info.bridges == (ClockBridge(BEGIN + 2 * SECOND, "mono_raw", MONO_BEGIN + 2 * SECOND),)


def test_the_older_form_of_profiler_info(tmp_path: Path) -> None:
    start = {"clockMonotonicRaw": str(RAW_BEGIN), "collectionTimeBegin": f"{BEGIN // 1000}.123"}
    info = _info(tmp_path, {"start_info": start, "rank_id": "7"}, "profiler_info.json")
    assert info == Info(7, (ClockBridge(BEGIN + 123, "mono_raw", RAW_BEGIN),), False)


def test_the_rank_may_stand_in_the_name_alone(tmp_path: Path) -> None:
    assert _info(tmp_path, {}, "profiler_info_11.json").rank == 11


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", "null", '{"start_info": 5, "end_info": [], "config": 1}', "\x00\xff"]
)
def test_damaged_files_are_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "profiler_info.json").write_text(content, encoding="latin-1")
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "start_info").write_text(content, encoding="latin-1")
    assert info_of(tmp_path) == Info()


@pytest.mark.parametrize(
    ("begin", "raw"), [("", "5"), ("x", "5"), ("1701069323851824", "-5"), ("0", "5"), ("1e400", "5"), ("17", None)]
)
def test_numbers_that_are_none_are_no_bridge(tmp_path: Path, begin: str, raw: str | None) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "start_info").write_text(json.dumps({"collectionTimeBegin": begin, "clockMonotonicRaw": raw}))
    assert info_of(tmp_path).bridges == ()
