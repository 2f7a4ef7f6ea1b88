"""Every observing tool as a user who has the five capabilities and nothing else; that each of them is needed; and what
is said where there is less still: no capability, no type information, headers of another kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from lesser import NOBODY, as_nobody

from whystall.agent_server.app import App
from whystall.agent_server.inputs.stacks import observes
from whystall.bpf.privileges import NEEDED

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming somebody with less needs root")

WORKLOADS = Path(__file__).with_name("workloads")
COUNTED = frozenset(
    {
        *("proc", "residency", "objects", "memory_use", "job_processes", "device_log", "hardware", "gpu_state"),
        *("card_state", "versions", "serving"),
    }
)
"""Collectors that no engine but /proc has."""
Said = dict[str, dict[str, Any]]
Ask = Callable[..., Said]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others can reach; those of pytest cannot be."""
    with tempfile.TemporaryDirectory(prefix="whystall-test-") as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.fixture
def file(place: Path) -> Path:
    """Of root, in a directory of root that nobody else may enter."""
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    return closed / "checkpoint.bin"


@pytest.fixture
def pid(file: Path) -> Iterator[int]:
    """A process of root that writes, syncs, works and naps."""
    command = [sys.executable, str(WORKLOADS / "watched.py"), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture
def ask(place: Path, pid: int) -> Ask:
    """Runs tools on the process with some capabilities; what each said, by its name."""
    state, held = place / "state", place / "held"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)

    def asked(
        capabilities: Collection[str],
        tools: Sequence[str],
        engine: str = "auto",
        mounts: Sequence[str] = (),
        **environment: str,
    ) -> Said:
        program = [sys.executable, str(WORKLOADS / "asking.py"), str(pid), "0.6", engine, *tools]
        done = subprocess.run(
            [*as_nobody(capabilities, mounts=mounts, held=held), *program],
            env={"PATH": os.environ["PATH"], "HOME": str(state), "WHYSTALL_HOME": str(state), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == len(tools), done.stderr
        return {line["tool"]: line for line in lines}

    return asked


def engines(said: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["engine"] for entry in said["result"]["coverage"]["collectors"]}


def blind(said: dict[str, Any]) -> set[str]:
    return {spot["code"] for spot in said["result"]["coverage"]["not_seen"]}


def test_with_the_five_every_tool_sees_what_root_sees(ask: Ask, file: Path) -> None:
    tools = [tool.name for tool in App().tools() if observes(tool)]
    said = ask(NEEDED, tools)
    uprobes = said.pop("collective_live")  # Linux since 6.16 requires more for them
    assert "error" not in uprobes or "CAP_SYS_ADMIN" in uprobes["message"]
    assert not {name: line for name, line in said.items() if "error" in line}
    used = {name: engines(line) for name, line in said.items()}
    assert not {
        name: found for name, found in used.items() if {found[each] for each in found.keys() - COUNTED} - {"ebpf"}
    }
    # nothing is said to be hidden but what is cached of files that somebody else owns, which CAP_FOWNER would show
    hidden = {name for name, line in said.items() if blind(line) & {"kernel_symbols", "not_permitted"}}
    assert hidden <= {"page_cache"}
    assert str(file) in json.dumps(said["page_cache"])  # the file of a wait is told of long ones only
    assert "fsync" in json.dumps(said["offcputime"]["result"]["data"])
    assert "[kernel+" not in json.dumps(said["offcputime"])
    assert "work_in_python" in json.dumps(said["cpu_profile"])


@pytest.mark.thorough
@pytest.mark.parametrize("lacking", NEEDED)
def test_each_of_the_five_is_needed(lacking: str, ask: Ask) -> None:
    """And what is lost without it is said, never passed over."""
    said = ask(NEEDED.keys() - {lacking}, ["fileslower", "cpu_profile", "host_snapshot", "offcputime"])
    match lacking:
        case "CAP_BPF" | "CAP_PERFMON":
            sampled = said["fileslower"]["result"]
            assert engines(said["fileslower"]) == {"syscalls": "procfs"}
            assert "no_privilege" in sampled["coverage"]["collectors"][0]["why"]
            assert sampled["status"] == "partial"
            assert engines(said["cpu_profile"]) == {"samples": "procfs"}
            assert "sampled" in blind(said["cpu_profile"])
        case "CAP_SYS_PTRACE" | "CAP_DAC_READ_SEARCH":
            assert engines(said["fileslower"]) == {"syscalls": "ebpf"}
            assert "not_permitted" in blind(said["host_snapshot"])
            assert "work_in_python" not in json.dumps(said["cpu_profile"])
            assert blind(said["cpu_profile"]) & {"user_symbols", "python_frames"}
        case "CAP_SYSLOG":
            assert ("kernel_symbols" in blind(said["offcputime"])) == _addresses_are_hidden()
            assert engines(said["offcputime"]) == {"switches": "ebpf"}


def test_who_has_nothing_gets_an_answer_or_one_line(ask: Ask) -> None:
    """Sampled, and said so; or refused with the remedy. Nothing is called healthy for not having been seen."""
    said = ask((), ["fileslower", "offcputime", "cpu_profile", "ftrace_capture"])
    for name in ("fileslower", "offcputime", "cpu_profile"):
        assert set(engines(said[name]).values()) == {"procfs"}
        assert said[name]["result"]["status"] == "partial"
        assert {"sampled", "not_permitted"} & blind(said[name])
    assert {"sampled", "not_permitted"} <= blind(said["fileslower"]) & blind(said["offcputime"])
    refused = said["ftrace_capture"]
    assert refused["error"] == "no_privilege"
    assert refused["remedy"]
    assert "\n" not in refused["message"] + refused["remedy"]


def test_without_type_information_a_lesser_engine_answers_and_says_why(ask: Ask) -> None:
    said = ask(NEEDED, ["fileslower", "cpu_profile"], mounts=["mount -t tmpfs whystall-test /sys/kernel/btf"])
    (collector,) = said["fileslower"]["result"]["coverage"]["collectors"]
    assert collector["engine"] in ("bcc", "procfs")
    assert "BTF" in collector["why"]
    assert said["fileslower"]["result"]["status"] in ("ok", "partial")
    (samples,) = said["cpu_profile"]["result"]["coverage"]["collectors"]
    assert samples["engine"] == "procfs"
    assert "BTF" in samples["why"]


@pytest.mark.skipif(not Path("/usr/lib/python3/dist-packages/bcc").exists(), reason="no BCC here")
def test_headers_of_another_kernel_are_refused(ask: Ask, place: Path) -> None:
    """BCC compiled against them counts nothing, without a word."""
    generated, linux = place / "headers/include/generated", place / "headers/include/linux"
    generated.mkdir(parents=True)
    linux.mkdir()
    (linux / "kconfig.h").touch()
    (generated / "utsrelease.h").write_text('#define UTS_RELEASE "5.4.0-of-another"\n')
    said = ask(NEEDED, ["fileslower"], "bcc", BCC_KERNEL_SOURCE=str(place / "headers"))["fileslower"]
    assert "result" not in said
    assert "5.4.0-of-another" in said["message"]
    assert os.uname().release in said["message"] + said["remedy"]


def _addresses_are_hidden() -> bool:
    """From whoever lacks CAP_SYSLOG (kallsyms_show_value)."""
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    return paranoid > 1 or int(Path("/proc/sys/kernel/kptr_restrict").read_text()) > 0
