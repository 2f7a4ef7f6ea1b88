"""From a log to a ticket: ``whystall run crash_analyse`` and ``whystall diagnose --log``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PANIC = """\
[   50.000001] BUG: kernel NULL pointer dereference, address: 0000000000000008
[   50.000003] RIP: 0010:demo_take+0x10/0x20
[   50.000004] Call Trace:
[   50.000005]  demo_poll+0x1/0x2
[   50.000006] Kernel panic - not syncing: Fatal exception
"""
KILL = "[    9.000003] Out of memory: Killed process 51 (loader) total-vm:2048kB, anon-rss:1024kB, file-rss:0kB\n"
MEMORY = "<2>[  100.000006] EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#2_DIMM#0 (channel:2 slot:0)\n"
PCIE = (
    "<2>[  100.1] pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0\n"
)
HUNG = """\
<3>[ 1992.224966] INFO: task python3:5612 blocked for more than 120 seconds.
<3>[ 1992.224970] Call Trace:
<3>[ 1992.224971]  __schedule+0x2ee/0x900
<3>[ 1992.224972]  schedule+0x4f/0xc0
<3>[ 1992.224975]  nfs4_proc_getattr+0x7d/0x120 [nfsv4]
"""
DRIVER_PANIC = """\
[    9.000001] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:12:00 UTC 2025
[ 8712.104512] BUG: kernel NULL pointer dereference, address: 0000000000000058
[ 8712.104535] CPU: 34 PID: 99 Comm: python3 Tainted: P           OE     5.15.0-91-generic #101-Ubuntu
[ 8712.104544] RIP: 0010:os_accounting_take+0x9c/0x260 [nvidia]
[ 8712.104650] Call Trace:
[ 8712.104655]  nvidia_ioctl+0x85/0x130 [nvidia]
[ 8712.350000] Kernel panic - not syncing: Fatal exception
"""
XID = """\
[  10.000001] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022
[ 812.000001] NVRM: Xid (PCI:0000:3b:00): 119, pid=42, name=python3, Timeout waiting for RPC from GSP!
[ 812.500001] NVRM: Xid (PCI:0000:3b:00): 45, pid=42, name=python3, Ch 00000008
"""
APPLICATION = """\
[ 7000.000201] NVRM: Xid (PCI:0000:18:00): 31, pid=99, name=python3, Ch 00000008, MMU Fault: ENGINE GRAPHICS faulted
[ 7000.000301] NVRM: Xid (PCI:0000:18:00): 45, pid=99, name=python3, Ch 00000010
"""
CONTAINED = "[ 7000.1] NVRM: Xid (PCI:0000:18:00): 94, pid=88, name=python, Contained: SM (0x1). RST: No, D-RST: No\n"
ILLEGAL = """\
PyTorch version: 2.2.0
E0112 11:22:33.1 44 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -4) local_rank: 1 (pid: 12)
  time      : 2026-01-12_11:22:33
  host      : gpu-7
  rank      : 1 (local_rank: 1)
  exitcode  : -4 (pid: 12)
  traceback : Signal 4 (SIGILL) received by PID 12
"""
SIGKILL = ILLEGAL.replace("-4", "-9").replace("Signal 4 (SIGILL)", "Signal 9 (SIGKILL)")
ECC = """\
[rank5]: Traceback (most recent call last):
[rank5]:   File "/srv/train.py", line 90, in main
[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered
"""
WATCHDOG = """\
[rank0]:[E112 11:32:33.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: OpType=SEND
terminate called after throwing an instance of 'c10::DistBackendError'
E0112 11:32:34.1 44 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -6) local_rank: 0 (pid: 11)
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 11)
"""
RANK = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/srv/train.py", line 41, in step
[rank3]: ValueError: bad batch
"""


@pytest.mark.parametrize(
    ("text", "cause", "severity", "component", "fix", "line"),
    [
        (DRIVER_PANIC, "kernel_crash", "critical", "kernel", "nvidia_accounting_570", 2),
        (XID, "gpu_fault", "major", "accelerator-fault", "nvidia_gsp_525", 2),
        (KILL, "oom_kill", "critical", "memory", None, 1),
        (ILLEGAL, "failed_program", "critical", "program", "torch_sigill_2_2", 2),
        pytest.param(PANIC, "kernel_crash", "critical", "kernel", None, 1, marks=pytest.mark.thorough),
        pytest.param(RANK, "failed_program", "critical", "program", None, 1, marks=pytest.mark.thorough),
        pytest.param(SIGKILL, "killed_process", "critical", "process-state", None, 2, marks=pytest.mark.thorough),
        pytest.param(APPLICATION, "failed_program", "minor", "program", None, 1, marks=pytest.mark.thorough),
        pytest.param(CONTAINED, "gpu_fault", "minor", "accelerator-fault", None, 1, marks=pytest.mark.thorough),
        pytest.param(ECC, "gpu_fault", "critical", "accelerator-fault", None, 1, marks=pytest.mark.thorough),
        pytest.param(MEMORY, "hardware_error", "critical", "device", None, 1, marks=pytest.mark.thorough),
        pytest.param(PCIE, "hardware_error", "critical", "device", None, 1, marks=pytest.mark.thorough),
        pytest.param(HUNG, "hung_task", "major", "process-state", None, 1, marks=pytest.mark.thorough),
    ],
    ids=[
        "driver",
        "xid",
        "kill",
        "illegal",
        "panic",
        "rank",
        "sigkill",
        "application",
        "contained",
        "ecc",
        "memory",
        "pcie",
        "hung",
    ],
)
def test_a_log_becomes_a_ticket(
    text: str, cause: str, severity: str, component: str, fix: str | None, line: int, tmp_path: Path, whystall: Run
) -> None:
    log = tmp_path / "console.log"
    log.write_text(text, "utf-8")
    found = json.loads(whystall("diagnose", "--log", str(log), "--ticket", "--json").stdout)
    assert (found["verdict"], found["cause"], found["severity"]) == ("likely", cause, severity)
    assert [row["defect"] for row in found["known_fixes"] if row["standing"] == "relevant"] == ([fix] if fix else [])
    (first,) = [one for one in found["findings"] if one["id"] == found["chain"][0]]
    assert (first["metrics"]["line"], first["attributes"]["log"]) == (line, str(log))
    ticket = json.loads(whystall("tickets", "show", str(found["ticket"]), "--json").stdout)
    assert (ticket["severity"], ticket["component"]) == (severity, component)
    again = json.loads(whystall("diagnose", "--log", str(log), "--ticket", "--json").stdout)
    assert again["ticket"] == found["ticket"]


def test_errors_of_different_gpus_and_hosts_are_different_tickets(tmp_path: Path, whystall: Run) -> None:
    tickets = []
    errors = (("n1", "18", 79), ("n1", "3b", 79), ("n2", "18", 79), ("n1", "18", 48), ("n1", "18", 79))
    for host, device, code in errors:
        log = tmp_path / f"{len(tickets)}.log"
        log.write_text(f"Jan 12 11:22:30 {host} kernel: [ 7.1] NVRM: Xid (PCI:0000:{device}:00): {code}, pid=1, x\n")
        tickets.append(json.loads(whystall("diagnose", "--log", str(log), "--ticket", "--json").stdout)["ticket"])
    assert tickets[4] == tickets[0]
    assert len(set(tickets)) == 4


def test_ranks_that_only_reacted_accuse_nobody(tmp_path: Path, whystall: Run) -> None:
    log = tmp_path / "job.log"
    log.write_text(WATCHDOG, "utf-8")
    found = json.loads(whystall("diagnose", "--log", str(log), "--ticket", "--json").stdout)
    assert (found["verdict"], found["cause"], found["severity"]) == ("inconclusive", "collective_hang", "major")
    assert (found["victim"], found["culprit"], found["missing"]) == (None, None, ["first_failure_unlogged"])
    text = whystall("tickets", "show", str(found["ticket"]), "--lang", "zh").stdout
    assert "最先失败者的日志" in text


def test_a_log_without_a_crash_makes_no_verdict_and_no_ticket(tmp_path: Path, whystall: Run) -> None:
    log = tmp_path / "console.log"
    log.write_text("[    1.000000] Linux version 6.1.0\n", "utf-8")
    found = json.loads(whystall("diagnose", "--log", str(log), "--json").stdout)
    assert (found["verdict"], found["cause"], found["findings"]) == ("inconclusive", None, [])


def test_several_logs_and_both_languages(tmp_path: Path, whystall: Run) -> None:
    one, two = tmp_path / "rank3.log", tmp_path / "dmesg"
    one.write_text(RANK, "utf-8")
    two.write_text(PANIC, "utf-8")
    for lang, words in (("en", "failed first"), ("zh", "最先失败")):
        text = whystall("run", "crash_analyse", "--log", str(one), "--log", str(two), "--lang", lang).stdout
        assert words in text
        assert "NULL pointer dereference in demo_take" in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "crash_analyse"), "bad_argument"),
        (("run", "crash_analyse", "--log", "/nowhere/x.log"), "io_error"),
        (("diagnose", "--log", "/nowhere/x.log", "--pid", "1"), "bad_argument"),
    ],
)
def test_faults_are_one_line(words: tuple[str, ...], code: str, whystall: Run) -> None:
    done = whystall(*words)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"error: {code}: ")
    assert done.stderr.count("\n") == 1
