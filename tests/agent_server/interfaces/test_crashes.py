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
XID = """\
[  10.000001] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023
[ 812.000001] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
"""
RANK = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/srv/train.py", line 41, in step
[rank3]: ValueError: bad batch
"""


@pytest.mark.parametrize(
    ("text", "cause", "severity", "component"),
    [
        (PANIC, "kernel_crash", "critical", "kernel"),
        (XID, "gpu_fault", "critical", "accelerator-fault"),
        pytest.param(KILL, "oom_kill", "critical", "memory", marks=pytest.mark.thorough),
        pytest.param(RANK, "failed_program", "critical", "program", marks=pytest.mark.thorough),
        pytest.param(MEMORY, "hardware_error", "critical", "device", marks=pytest.mark.thorough),
        pytest.param(PCIE, "hardware_error", "critical", "device", marks=pytest.mark.thorough),
        pytest.param(HUNG, "hung_task", "major", "process-state", marks=pytest.mark.thorough),
    ],
    ids=["panic", "xid", "kill", "rank", "memory", "pcie", "hung"],
)
def test_a_log_becomes_a_ticket(
    text: str, cause: str, severity: str, component: str, tmp_path: Path, whystall: Run
) -> None:
    log = tmp_path / "console.log"
    log.write_text(text, "utf-8")
    found = json.loads(whystall("diagnose", "--log", str(log), "--ticket", "--json").stdout)
    assert (found["verdict"], found["cause"], found["severity"]) == ("likely", cause, severity)
    ticket = json.loads(whystall("tickets", "show", str(found["ticket"]), "--json").stdout)
    assert (ticket["severity"], ticket["component"]) == (severity, component)
    again = json.loads(whystall("diagnose", "--log", str(log), "--ticket", "--json").stdout)
    assert again["ticket"] == found["ticket"]


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
