"""What doctor says beside each tool is what a window of the tool then does, on hosts of every kind."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.app import App
from whystall.agent_server.inputs.stacks import observes
from whystall.bpf.privileges import NEEDED

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changes what a host shows, and who asks")

PROGRAM = Path(__file__).with_name("doctor_agreement.py")
NOBODY = 65534
READING = ("dac_read_search",)  # the interpreter may lie where others cannot look
ALL = tuple(name.removeprefix("CAP_").lower() for name in NEEDED)
HIDDEN_BTF = "mount -t tmpfs none /sys/kernel/btf"
FILTERED = Path(__file__).with_name("without_bpf.py")
# One tool of each set of collectors: more would say the same again.
SOME = ("biolatency", "fileslower", "cpu_profile", "ftrace_capture", "page_cache", "interrupts", "host_snapshot")
SOME += ("collective_live",)
FEW = ("fileslower", "cpu_profile", "ftrace_capture")


def without(capabilities: Sequence[str]) -> list[str]:
    """A user who has these, and no other."""
    have = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    who = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return [*who, f"--inh-caps={have}", f"--ambient-caps={have}", f"--bounding-set={have}"]


def hiding(command: str) -> list[str]:
    """Mounts of its own, with `command` run in them first."""
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", f'{command} && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("way", "tools", "engines", "without_ebpf"),
    [
        pytest.param([], SOME, {"ebpf", "tracefs", "procfs"}, None, id="root"),
        pytest.param(without(ALL), SOME, {"ebpf", "procfs"}, None, id="capabilities-only", marks=pytest.mark.thorough),
        pytest.param(without(["bpf", *READING]), FEW, {"procfs"}, "not permitted", id="bpf-without-perfmon"),
        pytest.param(without(READING), SOME, {"procfs"}, "not permitted", id="unprivileged"),
        pytest.param(hiding(HIDDEN_BTF), SOME, {"tracefs", "procfs"}, "BTF", id="hidden-btf"),
        pytest.param(["unshare", "-Ur"], FEW, {"procfs"}, "not permitted", id="user-namespace"),
        pytest.param([sys.executable, str(FILTERED)], FEW, {"tracefs", "procfs"}, "not permitted", id="seccomp"),
        pytest.param(["unshare", "-pf", "--mount-proc"], FEW, {"procfs"}, "PID namespace", id="pid-namespace"),
    ],
)
def test_each_tool_runs_on_the_engine_that_doctor_names(
    way: list[str], tools: Sequence[str], engines: set[str], without_ebpf: str | None, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o111)
    told = agreement(way, tools, state)
    assert engines <= set(told["engines"])
    assert (without_ebpf is None) == ("ebpf" in told["engines"])
    assert without_ebpf is None or without_ebpf.lower() in told["refused"]["ebpf"].lower()
    assert told["done"].keys() == set(tools)
    for tool, did in told["done"].items():
        said, collectors = told["tools"][tool], did.get("collectors", {})
        judged = next((name for name in collectors if name != "proc"), "proc")
        used = collectors.get(judged, "none")
        assert said == used, (tool, did)
        assert ("ebpf" in told["why"][tool]) == (said != "ebpf" and tool != "host_snapshot")


def agreement(way: Sequence[str], tools: Sequence[str], state: Path) -> Any:
    """What the program beside us says and does, run in this `way`."""
    done = subprocess.run(
        [*way, sys.executable, str(PROGRAM), *tools],
        env={**os.environ, "WHYSTALL_HOME": str(state), "WHYSTALL_CONFIG": os.devnull},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_command_for_least_privilege_does_what_it_says(tmp_path: Path) -> None:
    """What doctor tells an unprivileged user to paste is pasted, `sudo` being what we are already."""
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o111)
    whystall = str(Path(sys.executable).with_name("whystall"))
    env = {**os.environ, "WHYSTALL_HOME": str(state), "HOME": str(state), "WHYSTALL_CONFIG": os.devnull}

    def doctor(command: Sequence[str]) -> Any:
        done = subprocess.run([*command, "--json"], env=env, capture_output=True, text=True, timeout=120, check=False)
        return json.loads(done.stdout)

    before = doctor([*without(READING), whystall, "doctor"])
    check = next(one for one in before["checks"] if one["name"] == "capabilities")
    words = shlex.split(check["fix"].replace('"$HOME"', str(state)))
    assert words[0] == "sudo"
    after = doctor(words[1:])
    states = {one["name"]: one["state"] for one in after["checks"]}
    assert states["privilege"] == states["capabilities"] == states["sampling"] == states["kernel symbols"] == "ok"
    assert "ebpf" in after["engines"]


def test_every_tool_is_of_some_set_of_collectors_that_is_tried() -> None:
    """A new collector needs a tool of its own in `SOME`, unless only the engine ``procfs`` serves it."""
    tools = {tool.name: {n.collector for n in tool.needs(tool.params())} for tool in App().tools() if observes(tool)}
    tried = set().union(*(tools[name] for name in SOME))
    counted = {
        *("objects", "memory_use", "job_processes", "device_log", "hardware", "gpu_state", "card_state"),
        *("versions", "serving"),
    }
    assert set().union(*tools.values()) - tried <= {"switches", "run_queue", *counted}


def test_headers_of_another_kernel_are_told_and_no_engine_trusts_them(tmp_path: Path) -> None:
    """Beside hidden types, so that BCC would be next."""
    headers = tmp_path / "headers"
    for name, text in (("generated/utsrelease.h", '#define UTS_RELEASE "4.19.0-1-amd64"\n'), ("linux/kconfig.h", "")):
        path = headers / "include" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    state = tmp_path / "state"
    state.mkdir()
    told = agreement([*hiding(HIDDEN_BTF), "env", f"BCC_KERNEL_SOURCE={headers}"], FEW[:1], state)
    assert "4.19.0-1-amd64" in told["refused"]["bcc"]
    assert told["tools"]["fileslower"] == told["done"]["fileslower"]["collectors"]["syscalls"] == "procfs"
    assert told["why"]["fileslower"].keys() == {"ebpf", "bcc"}
