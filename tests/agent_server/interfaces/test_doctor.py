"""doctor against this host, and against hosts that lack things."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.doctor import examine, stacks
from whystall.agent_server.doctor.report_model import Health, State
from whystall.agent_server.doctor.view import View
from whystall.bpf import python_find, python_offsets
from whystall.bpf.errors import BpfError

Run = Callable[..., Any]
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
# A user without rights, but for reading: the interpreter may lie where others cannot look.
_READS = "-all,+dac_read_search"
WITHOUT_RIGHTS = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(f"--inh-caps={_READS}", f"--ambient-caps={_READS}", f"--bounding-set={_READS}"),
)


def test_json_is_typed_and_names_an_engine_for_every_tool(whystall: Run) -> None:
    done = whystall("doctor", "--json")
    health = Health.model_validate_json(done.stdout)
    assert done.returncode == (0 if health.engines else 1)
    assert "procfs" in health.engines
    assert health.tools["host_snapshot"] == "procfs"
    assert {*health.tools.values(), *health.collectors.values()} <= {*health.engines, "none", "traces"}
    assert health.tools["slow_node_check"] == health.tools["compare_runs"] == "traces"
    assert health.collectors["proc"] == "procfs"
    listed = json.loads(whystall("tools", "--json").stdout)
    assert set(health.tools) == {tool["name"] for tool in listed}


def test_every_fault_says_what_it_means_and_how_to_mend_it(whystall: Run) -> None:
    text = whystall("doctor").stdout
    for check in examine().checks:
        assert check.name in text
        if check.state is not State.OK:
            assert check.means
            assert check.fix


def test_it_tells_the_truth_about_this_host() -> None:
    checks = {check.name: check for check in examine().checks}
    assert platform.release() in checks["kernel"].found
    assert (checks["btf"].state is State.OK) == Path("/sys/kernel/btf/vmlinux").exists()
    on = Path("/proc/sys/kernel/task_delayacct").read_text().strip() == "1"
    assert (checks["delay accounting"].state is State.OK) == on


def test_a_damaged_database_is_found_and_left_alone(whystall: Run, tmp_path: Path) -> None:
    database = tmp_path / "knowledge.db"
    database.write_bytes(b"this is no database" * 100)
    done = whystall("doctor", "--json", env={"WHYSTALL_HOME": str(tmp_path)})
    check = next(c for c in json.loads(done.stdout)["checks"] if c["name"] == "database")
    assert check["state"] == "missing"
    assert str(database) in check["found"]
    assert database.read_bytes().startswith(b"this is no database")


def test_without_capabilities_only_the_procfs_engine_is_named(env: dict[str, str]) -> None:
    bare = list(WITHOUT_RIGHTS) if os.geteuid() == 0 else []
    done = subprocess.run([*bare, WHYSTALL, "doctor", "--json"], env=env, capture_output=True, text=True, timeout=60)
    health = Health.model_validate_json(done.stdout)
    assert health.engines == ["procfs"]
    assert set(health.tools.values()) <= {"procfs", "none", "traces"}
    assert health.tools["fileslower"] == health.collectors["proc"] == "procfs"
    assert health.collectors["ftrace"] == "none"
    privilege = next(check for check in health.checks if check.name == "privilege")
    assert privilege.state is State.MISSING
    assert privilege.fix


def test_it_says_which_pythons_can_be_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of them; one of a version that is not known is named with the reason."""
    seen = stacks.python_frames()
    assert seen.state is State.OK
    assert f"3.{sys.version_info.minor} (" in seen.found
    monkeypatch.setattr(stacks, "_pythons", lambda: ([os.getpid()], 0))
    monkeypatch.setattr(python_offsets, "_BY_MINOR", {})
    monkeypatch.setattr(python_find, "published", lambda _start: None)
    unknown = stacks.python_frames()
    assert unknown.state is State.LIMITED
    assert f"pid {os.getpid()}: CPython 3.{sys.version_info.minor}" in unknown.found
    assert "py-spy" in unknown.fix


def test_without_rights_nothing_can_be_sampled(env: dict[str, str]) -> None:
    """The kernel itself is asked, not its settings."""
    bare = list(WITHOUT_RIGHTS) if os.geteuid() == 0 else []
    done = subprocess.run(
        [*bare, WHYSTALL, "doctor", "--json"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    checks = {check.name: check for check in Health.model_validate_json(done.stdout).checks}
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) > 0:
        assert checks["sampling"].state is State.LIMITED
        assert checks["sampling"].fix
    assert checks["python frames"].found
    if os.geteuid() == 0:  # our own is root's, and none of its
        assert "could not be read" in checks["python frames"].found


@pytest.mark.parametrize(("setting", "fix"), [("3", "sysctl kernel.perf_event_paranoid=2"), ("2", "whystall doctor")])
def test_what_keeps_timers_from_who_has_the_capability_is_the_setting(
    setting: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise BpfError("no_privilege", "cannot open a sampling timer", "run as root")

    monkeypatch.setattr(stacks, "cpu_clock", refused)
    monkeypatch.setattr(stacks, "_setting", lambda: setting)
    monkeypatch.setattr(stacks, "held_capabilities", lambda _view: frozenset({"CAP_BPF", "CAP_PERFMON"}))
    monkeypatch.setattr(stacks, "let_trace", lambda *_: "sudo whystall doctor")
    assert stacks.sampling(View(uid=1000)).fix == f"sudo {fix}"


def test_hybrid_io_that_is_not_built_is_said_with_what_builds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from whystall.agent_server.doctor.hybrid import hybrid_io
    from whystall.tools.hybrid_io import build, library

    monkeypatch.setattr(build, "OBJECTS", tmp_path)
    monkeypatch.setattr(library, "PATH", str(tmp_path / "libwhystall_hybrid.so"))
    monkeypatch.setattr(library, "_loaded", None)
    found = hybrid_io()
    assert found.state is State.LIMITED
    assert "libwhystall_hybrid_preload.so" in found.found
    assert found.fix is not None
    assert "whystall.tools.hybrid_io.build" in found.fix
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    fix = hybrid_io().fix
    assert fix is not None
    assert "C compiler is missing" in fix
