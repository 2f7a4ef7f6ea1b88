"""A job that waits for its device: of a GPU with an error of the hardware, of a program with its own, of neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import COMM, PID, Scene
from solving import solve

from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict

NOW_US = 100_000_000
IN_DRIVER = ("__schedule", "schedule_timeout", "nvidia_ioctl", "nvidia_unlocked_ioctl", "__x64_sys_ioctl")


def waits_for_device(code: int = 0, *, logged: bool = True) -> Diagnosis:
    """A hang in the driver of the GPU, and the Xid `code` ten seconds before the end of the log, if it was read."""
    scene = Scene().thread(user=1)
    scene.wait(0.1, 11_850, "ioctl", "/dev/nvidia0", still=True, stack=IN_DRIVER, waker=(PID, PID, COMM))
    unknown = dict.fromkeys(("sub_code", "status", "link", "root", "recovery"), -1)
    texts = dict.fromkeys(("uuid", "unit", "fatal", "detail"), "")
    event = {"number": 0, "kind": "xid", "code": code, "device": "0000:3b:00.0", "numbered": True, "count": 1}
    times = {"first_us": NOW_US - 10_000_000, "last_us": NOW_US - 10_000_000, "clock": "boot"}
    if code:
        scene.tables["device_log.events"] = [event | times | unknown | texts]
    if logged:
        counts = {"lines": 9, "bytes": 900, "messages": 1, "foreign": 0, "unmarked": 0, "quoted": 0, "lost": 0}
        covers = {"from_us": 0, "until_us": NOW_US, "clock": "boot", "whole": True}
        scene.tables["device_log.sources"] = [{"source": "kmsg"} | counts | covers]
    return solve(RecordedObserver(scene.build()), "training hangs")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def state(found: Diagnosis) -> CauseState:
    return next(a.state for a in found.assessments if a.cause == "gpu_fault")


def test_a_hang_after_an_error_of_the_gpu_is_its_fault() -> None:
    found = waits_for_device(79)
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "gpu_fault")
    (xid,) = [finding for finding in found.findings if finding.kind == "gpu.xid"]
    assert (xid.attributes["action"], xid.metrics["age_s"]) == ("restart_bm", 10)


def test_an_error_of_the_program_accuses_no_gpu() -> None:
    found = waits_for_device(31)
    assert (found.cause, state(found)) == ("device_wait", CauseState.UNSUPPORTED)


@pytest.mark.thorough
def test_a_recording_without_the_log_leaves_no_rival_open() -> None:
    found = waits_for_device(logged=False)
    assert (found.cause, state(found)) == ("device_wait", CauseState.NOT_EXAMINED)
    assert "rivals_open" not in found.missing
