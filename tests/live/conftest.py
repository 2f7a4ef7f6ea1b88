"""Places that live tests make and take away again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from whystall.agent_server.watch import history
from whystall.tools.collect import slice_history
from whystall.tools.history import grid

BESIDE = (
    "test_bpf_session",
    "test_doctor_agrees",
    "test_doors_ftrace",
    "test_doors_live",
    "test_ftrace_bpf",
    "test_ftrace_capture",
    "test_ftrace_engine",
    "test_ftrace_read",
    "test_least_privilege",
)
"""Modules whose tests may run side by side: they judge by what a program logged of itself and by the kernel's own
accounts, or say which engine answered and what it could not see, whatever else the machine does. All others go one by
one: each would be the other's noise, or they make the same control groups. Single tests are marked ``beside``.
"""
THOROUGH = (
    "test_accelerator_calls",
    "test_adding_collector",
    "test_bpf_lifecycle",
    "test_cache_demo",
    "test_calibration",
    "test_collectives",
    "test_compared_paths",
    "test_containers",
    "test_convert_disk_full",
    "test_cpu_profile",
    "test_device_wait",
    "test_diagnose",
    "test_diagnose_cache",
    "test_diagnose_llm",
    "test_dispatcher",
    "test_flamegraph_diff",
    "test_fleet_hang",
    "test_fleet_path",
    "test_fleet_slurm",
    "test_fleet_torchrun",
    "test_ftrace_in_process",
    "test_hang",
    "test_heat_map",
    "test_history",
    "test_host_snapshot",
    "test_hostile_names",
    "test_hybrid_faults",
    "test_hybrid_io_advise",
    "test_inference_latency",
    "test_kineto_alignment",
    "test_kubectl",
    "test_memory_growth",
    "test_objects",
    "test_own_priority",
    "test_page_cache",
    "test_page_cache_pages",
    "test_page_cache_stalls",
    "test_path_history",
    "test_profile_push",
    "test_procfs_engine",
    "test_python_frames",
    "test_python_lines",
    "test_recording_disk_full",
    "test_run_queue_truth",
    "test_service_unit",
    "test_slow_disk",
    "test_tools",
    "test_wait_tools",
    "test_watch",
    "test_wake_contexts",
    "test_workloads",
)
"""Such modules that run every third day: see the Makefile."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `BESIDE` and `THOROUGH`."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.stem in (*BESIDE, *THOROUGH):
            item.add_marker(pytest.mark.beside)
            if item.path.stem in THOROUGH:
                item.add_marker(pytest.mark.thorough)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system of a size as mount(8) writes it: ``64k``, ``2m``."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with ExitStack() as undo:

        def mounted(size: str) -> Path:
            place = tmp_path / "disk"
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "whystall-test", str(place)], check=True)
            undo.callback(subprocess.run, ["umount", str(place)], check=True)
            return place

        yield mounted


@pytest.fixture(scope="module")
def ext4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Path]]:
    """Makes an ext4 of so many MiB on a loop device: where the tests run may be tmpfs, which has no page cache."""
    with ExitStack() as undo:

        def mounted(mib: int) -> Path:
            image, place = tmp_path_factory.mktemp("image") / "disk.img", tmp_path_factory.mktemp("disk")
            with image.open("wb") as file:
                file.truncate(mib << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)], check=True)
            subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
            undo.callback(subprocess.run, ["umount", str(place)], check=True)
            return place

        yield mounted


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[str]:
    """A block device of 16 MiB in a file."""
    backing = tmp_path / "whystall-loop.img"
    backing.write_bytes(bytes(16 << 20))
    made = subprocess.run(["losetup", "-f", "--show", str(backing)], capture_output=True, text=True, check=True)
    name = made.stdout.strip()
    try:
        yield name
    finally:
        subprocess.run(["losetup", "-d", name], check=True)


@pytest.fixture
def small_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history in parts of half a second, so that a program need not run for minutes."""
    part_ns = 500_000_000
    monkeypatch.setattr(slice_history, "PART_NS", part_ns)
    monkeypatch.setattr(slice_history, "_MINUTE_NS", part_ns * slice_history.PARTS)
    monkeypatch.setattr(grid, "PART_NS", part_ns)
    monkeypatch.setattr(history, "_LATE_NS", 3_000_000_000)
