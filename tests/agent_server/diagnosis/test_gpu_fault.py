"""A job that waits for its device: of a GPU with an error of the hardware, of a program with its own, of neither."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from driven_cases import Watching
from recordings import COMM, PID, Scene, checkpoints
from solving import solve

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.result import BlindSpot

NOW_US = 10**12
GPU, OTHER_GPU = "0000:3b:00.0", "0000:5e:00.0"
READ = {
    **{"source": "kmsg", "lines": 9, "bytes": 900, "messages": 1, "foreign": 0, "unmarked": 0, "quoted": 0, "lost": 0},
    **{"from_us": 0, "until_us": NOW_US, "clock": "boot", "whole": True},
}
"""A log that was read since the start of the host."""
IN_DRIVER = ("__schedule", "schedule_timeout", "nvidia_ioctl", "nvidia_unlocked_ioctl", "__x64_sys_ioctl")


def waits_for_device(
    code: int = 0, *, logged: bool = True, age_s: int = 10, users: Sequence[tuple[str, int, str]] = ()
) -> Diagnosis:
    """The diagnosis of `device_scene`."""
    scene = device_scene(code, logged=logged, age_s=age_s, users=users)
    return solve(RecordedObserver(scene.build()), "training hangs")


def device_scene(
    code: int = 0, *, logged: bool = True, age_s: int = 10, users: Sequence[tuple[str, int, str]] = ()
) -> Scene:
    """A hang in the driver of the GPU, and the Xid `code` some seconds before the end of the log, if it was read.
    `users`: GPU, process and name of what works on the GPUs by NVML."""
    scene = Scene().thread(user=1)
    scene.wait(0.1, 11_850, "ioctl", "/dev/nvidia0", still=True, stack=IN_DRIVER, waker=(PID, PID, COMM))
    unknown = dict.fromkeys(("sub_code", "status", "link", "root", "recovery"), -1)
    texts = dict.fromkeys(("uuid", "unit", "fatal", "detail"), "")
    event = {"number": 0, "kind": "xid", "code": code, "device": "0000:3b:00.0", "numbered": True, "count": 1}
    at_us = NOW_US - age_s * 1_000_000
    times = {"first_us": at_us, "last_us": at_us, "clock": "boot"}
    if users:
        scene.tables["gpu_state.processes"] = [
            {"device": device, "pid": pid, "comm": comm, "used_bytes": 1} for device, pid, comm in users
        ]
    if code:
        scene.tables["device_log.events"] = [event | times | unknown | texts]
    if logged:
        scene.tables["device_log.sources"] = [READ]
    return scene


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@pytest.mark.anyio
async def test_messages_that_a_recording_holds_count_as_live_ones(tmp_path: Path) -> None:
    scene = device_scene(119)
    rows = [("nvidia_driver", "525.60.13", "driver", -1, False)]
    names = ("component", "version", "where", "pid", "vendor_built")
    scene.tables["versions.versions"] = [dict(zip(names, row, strict=True)) for row in rows]
    recorded = {"proc", "switches", "syscalls", "objects", "block", "device_log", "versions"}
    scene.build(without=COLLECTORS.keys() - recorded).save(tmp_path / "kept")
    with App(tmp_path / "knowledge.db").closing() as app:
        found = await app.diagnose(DiagnoseParams(symptom="training hangs"), source=tmp_path / "kept")
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "gpu_fault")
    assert [row.defect for row in found.known_fixes if row.standing == "relevant"] == ["nvidia_gsp_525"]


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


def test_an_error_of_last_week_is_a_note_and_no_cause() -> None:
    found = waits_for_device(79, age_s=7 * 86_400)
    assert (found.cause, state(found)) == ("device_wait", CauseState.UNSUPPORTED)
    (xid,) = [finding for finding in found.findings if finding.kind == "gpu.xid"]
    assert (xid.attributes["relevance"], xid.metrics["age_s"]) == ("earlier", 7 * 86_400)


@pytest.mark.parametrize(
    ("users", "cause"),
    [
        ([(GPU, 99, "serve"), (OTHER_GPU, PID, COMM)], "device_wait"),
        ([(GPU, 99, COMM), (OTHER_GPU, PID, COMM)], "gpu_fault"),  # perhaps another rank of this job
        ([(OTHER_GPU, PID, COMM)], "gpu_fault"),  # a GPU that is lost has no processes
        ([(GPU, PID, COMM)], "gpu_fault"),
    ],
)
def test_the_gpu_of_another_program_is_not_accused(users: list[tuple[str, int, str]], cause: str) -> None:
    assert waits_for_device(79, users=users).cause == cause


def test_the_first_window_reads_an_hour_and_the_next_one_all_of_it_if_it_matters() -> None:
    scene = Scene().thread(user=1)
    scene.wait(0.1, 11_850, "ioctl", "/dev/nvidia0", still=True, stack=IN_DRIVER, waker=(PID, PID, COMM))
    scene.tables["device_log.sources"] = [READ]
    watching = Watching(scene.build())
    solve(watching, "training hangs")
    assert ["gpu_health" in asked.tools for asked in watching.asked[:2]] == [True, True]
    assert [asked.options["gpu_health"] for asked in watching.asked[:2]] == [{"first_look": True}, {}]


def test_a_log_that_may_not_be_read_leaves_no_rival_of_other_causes() -> None:
    recording = checkpoints(Scene().thread(user=65, system=2, blocked=30).disk("loop7", busy=99, await_ms=200))
    recording.tables["device_log.sources"] = []
    built = recording.build(unproven=["device_log"])
    built.manifest.collectors["device_log"].not_seen.append(BlindSpot(code="not_permitted", detail="/dev/kmsg"))
    watching = Watching(built)
    found = solve(watching, "")
    assert "gpu_health" in watching.asked[-1].tools
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "sync_checkpoint_write")
    assert state(found) is CauseState.NOT_EXAMINED
