"""Known fixes from a log to a ticket: ``whystall run known_fix`` and ``whystall diagnose --log``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
HUNG = """\
[    0.000000] Linux version 6.1.0-27-amd64 (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 SMP Debian 6.1.115-1 (2024-11-01)
[  363.100000] INFO: task python3:4242 blocked for more than 120 seconds.
[  363.100001]       Not tainted 6.1.0-27-amd64 #1 Debian 6.1.115-1
[  363.100003] task:python3         state:D stack:0     pid:4242  ppid:1      flags:0x00004002
[  363.100004] Call Trace:
[  363.100007]  schedule+0x5a/0xd0
[  363.100008]  io_ring_exit_work+0x121/0x5a0
[  363.100009]  io_uring_del_tctx_node+0x12/0x34
"""
XID = """\
[   10.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022
[  363.100000] NVRM: Xid (PCI:0000:3b:00): 119, pid=4242, name=python3, Timeout waiting for RPC from GSP!
"""
NCCL = "node01:4242:4242 [0] NCCL INFO NCCL version 2.25.1+cuda12.4\n"


def test_a_crash_log_becomes_a_ticket_with_the_upgrade(tmp_path: Path, whystall: Run) -> None:
    log = tmp_path / "dmesg.log"
    log.write_text(HUNG, "utf-8")
    found = json.loads(whystall("diagnose", "--log", str(log), "--ticket", "--json").stdout)
    (row,) = found["known_fixes"]
    assert (row["defect"], row["version"], row["certain"]) == ("linux_io_uring_6_1", "6.1.115", False)
    ticket = whystall("tickets", "show", str(found["ticket"])).stdout
    assert "kernel `6.1.115` may have a known defect" in ticket
    assert "Upgrade kernel to 6.1.119 or newer [https://github.com/amazonlinux/amazon-linux-2023/issues/840" in ticket


@pytest.mark.parametrize(
    ("text", "more", "relevant"),
    [
        (XID, (), "nvidia_gsp_525"),
        (NCCL, ("--signature", "in ncclCommAbort ()"), "nccl_abort_2_25"),
        # the version is affected, and the symptom is another one
        (NCCL, ("--signature", "RuntimeError: out of memory"), None),
        (HUNG.replace("6.1.115", "6.1.119"), (), None),
        (HUNG.replace("io_", "xo_"), (), None),
    ],
    ids=["xid", "function", "other symptom", "fixed", "other function"],
)
def test_only_a_defect_that_the_log_shows_is_relevant(
    text: str, more: tuple[str, ...], relevant: str | None, tmp_path: Path, whystall: Run
) -> None:
    log = tmp_path / "some.log"
    log.write_text(text, "utf-8")
    data = json.loads(whystall("run", "known_fix", "--log", str(log), "--json", *more).stdout)["data"]
    assert [row["defect"] for row in data["relevant"]] == ([relevant] if relevant else [])


def test_both_languages_and_what_was_not_seen(tmp_path: Path, whystall: Run) -> None:
    log = tmp_path / "xid.log"
    log.write_text(XID, "utf-8")
    for lang, words, unseen in (
        ("en", "Upgrade nvidia_driver to", "No version was found of: "),
        ("zh", "升级到", "未发现"),
    ):
        text = whystall("run", "known_fix", "--log", str(log), "--lang", lang).stdout
        assert words in text
        assert unseen in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--log", "/nowhere/x.log"), "io_error"),
        (("--xid", "x"), "bad_argument"),
        (("--signature", ""), "bad_argument"),
    ],
)
def test_faults_are_one_line(words: tuple[str, ...], code: str, whystall: Run) -> None:
    done = whystall("run", "known_fix", *words)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"error: {code}: ")
    assert done.stderr.count("\n") == 1


def test_an_unknown_cause_is_an_error_of_one_line_with_the_valid_ones(whystall: Run) -> None:
    done = whystall("run", "known_fix", "--cause", "collective_hng")
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert "unknown cause 'collective_hng'" in line
    assert "collective_hang" in line


def test_the_firmware_in_a_kernel_log_and_its_assert_name_the_upgrade(tmp_path: Path, whystall: Run) -> None:
    log = tmp_path / "dmesg.log"
    log.write_text("[    3.100000] mlx5_core 0000:3b:00.0: firmware version: 22.30.1004\n", "utf-8")
    done = whystall("run", "known_fix", "--log", str(log), "--signature", "firmware assert 0x8274", "--json")
    (row,) = json.loads(done.stdout)["data"]["relevant"]
    assert (row["defect"], row["version"], row["fixed"]) == ("connectx6dx_vport_assert", "22.30.1004", "22.31.1014")
