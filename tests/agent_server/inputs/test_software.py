"""Versions that logs state: every form, hostile input, and logs of other hosts."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from version_recordings import versions_recorded

from whystall.agent_server.inputs.logs import held_by, read_all
from whystall.agent_server.inputs.software import with_logs
from whystall.tools.host.known_fix.case import versions_of


def stated(path: Path) -> list[tuple[str, str]]:
    """The versions that the log states."""
    return [row[:2] for row in read_all([str(path)]).versions]


STATED = {
    "node01:9:9 [0] NCCL INFO NCCL version 2.21.5+cuda12.4": ("nccl", "2.21.5"),
    "PyTorch version: 2.7.0+cu126": ("torch", "2.7.0+cu126"),
    "INFO 07-14 08:51:00 [api_server.py:1] vLLM API server version 0.25.0": ("vllm", "0.25.0"),
    "Nvidia driver version: 550.163.01": ("nvidia_driver", "550.163.01"),
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed": ("nvidia_driver", "525.60.13"),
    "[    0.000000] Linux version 6.6.57 (a@b) #1 SMP": ("kernel", "6.6.57"),
    "NCCL version main": None,
    "my program version 1.2.3": None,
}


@pytest.mark.parametrize(("line", "expected"), STATED.items(), ids=lambda one: str(one)[:20])
def test_lines_that_state_a_version(line: str, expected: tuple[str, str] | None, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"before\n{line}\nafter\n", "utf-8")
    assert stated(log) == ([expected] if expected else [])


def test_packed_binary_and_truncated_logs(tmp_path: Path) -> None:
    line = b"NCCL version 2.21.5+cuda12.4\n"
    packed, cut, binary = tmp_path / "a.gz", tmp_path / "b.gz", tmp_path / "c.bin"
    packed.write_bytes(gzip.compress(line))
    cut.write_bytes(gzip.compress(os.urandom(5000) + line)[:2000])
    binary.write_bytes(b"\0\xff" * 50_000 + b"\n" + line + b"\xfe" * 9000)
    assert stated(packed) == [("nccl", "2.21.5")]
    assert stated(tmp_path) == [("nccl", "2.21.5")]
    assert stated(binary) == [("nccl", "2.21.5")]


def test_a_log_that_states_versions_without_end_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"NCCL version 2.{one}.0\n" for one in range(5000)), "utf-8")
    assert len(stated(log)) == 16


@pytest.mark.parametrize(("host", "kept"), [("n1", True), ("elsewhere", False)])
def test_versions_of_this_host_do_not_count_for_another_one(host: str, kept: bool, tmp_path: Path) -> None:
    rows = [("nvidia_driver", "550.54.15", "driver", -1, False)]
    here = versions_recorded(*rows)
    log = tmp_path / "kern.log"
    log.write_text(
        f"Jan 12 03:04:05 {host} kernel: [   90.000001] Out of memory: Killed process 102 (python3) total-vm:2kB\n",
        "utf-8",
    )
    found = versions_of(with_logs(here, [str(log)]))
    assert ("nvidia_driver" in found) is kept


def test_what_a_log_states_counts_instead_of_what_this_host_has(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("NCCL version 2.21.5+cuda12.4\n", "utf-8")
    rows = [("nccl", "2.27.3", "package", 7, False), ("torch", "2.7.0", "package", 7, False)]
    here = versions_recorded(*rows)
    found = versions_of(with_logs(here, [str(log)]))
    assert [one.version for one in found["nccl"]] == ["2.21.5"]
    assert [one.version for one in found["torch"]] == ["2.7.0"]


def test_what_a_recording_of_logs_holds_is_used(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text("[ 1.0] NVRM: Xid (PCI:0000:3b:00): 119, pid=42, name=python3, Timeout waiting for RPC from GSP!\n")
    both = with_logs(versions_recorded(("nvidia_driver", "525.60.13", "driver", -1, False)), [str(log)])
    held = held_by(both)
    assert [one.table("device_log.events")["code"].to_list() for one in held.devices] == [[119]]
    assert ("nvidia_driver", "525.60.13") in [row[:2] for row in held.versions]
