"""What a thread does between its sleeps: next to nothing, or work."""

from __future__ import annotations

import pytest
from recordings import COMM, PID, Scene

from whystall.tools.host.critical_path.tool import TOOL, Data
from whystall.tools.recording.judging import judge

ROUNDS = 24
EMPTY, FULL = 200, 50_000
REST = ("poll (worker.py:9)",)


def sleeper(*calls: tuple[str, str, int], ms: float = 499.5) -> Scene:
    """A thread that sleeps twice a second, and makes `calls` (name, file, bytes) after each sleep."""
    scene = Scene().thread(user=0.5)
    for number in range(ROUNDS):
        at = number / 2
        scene.wait(at, ms, "clock_nanosleep", user=REST, asked_ns=int(ms * 1e6), runnable_ns=0)
        for syscall, path, size in (("clock_nanosleep", "", 0), *calls):
            scene.call(at + ms / 1e3, 0.01, syscall, path, size=size, waits=0.0)
    return scene


def between(scene: Scene) -> tuple[str, str]:
    data = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID})).data
    assert isinstance(data, Data)
    (row,) = [one for one in data.rows if one.what == "sleep"]
    return row.between, row.detail


ASKED = (("sendto", "", EMPTY), ("recvfrom", "", EMPTY))


@pytest.mark.parametrize(
    ("scene", "what"),
    [
        (sleeper(*ASKED), "asks"),
        (sleeper(("sendto", "", EMPTY), ("recvfrom", "", FULL)), ""),
        (sleeper(("sendto", "", FULL), ("recvfrom", "", EMPTY)), ""),
        (sleeper(*ASKED, ("write", "/var/log/asked.log", 80)), "asks"),
        (sleeper(("write", "/var/log/steps.log", 80)), ""),
        (sleeper(*ASKED, ("write", "/data/results", 80), ("fsync", "/data/results", 0)), ""),
        (sleeper(("getdents64", "/inbox", EMPTY)), "looks"),
        (sleeper(("read", "/data/batch.npy", FULL)), ""),
        (sleeper(), "nothing"),
        (sleeper(*ASKED, ms=300.0), ""),
    ],
    ids=[
        "empty answers",
        "full answers",
        "full requests",
        "log",
        "output",
        "results",
        "directory",
        "data",
        "clock",
        "busy",
    ],
)
def test_only_a_look_between_two_sleeps_is_one(scene: Scene, what: str) -> None:
    assert between(scene)[0] == what


@pytest.mark.parametrize(
    ("calls", "what", "detail"),
    [((("newfstatat", "/flag", 0),), "", "retry"), ((("pread64", "/jobs.db", 16),), "looks", "")],
    ids=["awaited file", "database without a journal"],
)
def test_a_missing_name_is_a_failure_only_if_nothing_else_is_read(
    calls: tuple[tuple[str, str, int], ...], what: str, detail: str
) -> None:
    scene = sleeper(*calls)
    row = {"pid": PID, "tid": PID, "comm": COMM, "syscall": "newfstatat", "error": "ENOENT", "count": ROUNDS}
    scene.tables["syscalls.failures"] = [
        row | {"first_ns": 0, "last_ns": 10**9, "file": scene.file("/flag"), "object": ""}
    ]
    found = between(scene)
    assert (found[0], found[1].partition(" ")[0]) == (what, detail)


def test_without_its_calls_nothing_is_said_about_a_sleep() -> None:
    scene = Scene().thread()
    for number in range(ROUNDS):
        scene.wait(number / 2, 480, "clock_nanosleep", user=REST, asked_ns=480_000_000, runnable_ns=0)
    assert between(scene) == ("", "")


@pytest.mark.parametrize("named", ["socket:[7]", "pipe:[7]"])
def test_a_thread_that_waits_all_the_time_for_data_does_nothing_else(named: str) -> None:
    scene = Scene().thread()
    waits = {"still": True, "seeded": True, "object": named, "fd": 0, "runnable_ns": 0}
    scene.wait(0, 12_000, "read", user=("take (worker.py:3)",), **waits)
    data = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID})).data
    assert isinstance(data, Data)
    assert data.rows[0].between == "still"


@pytest.mark.parametrize(
    ("module", "what"), [("torch/utils/file_baton.py", ""), ("torch/utils/dlpack.py", "looks")], ids=["lock", "other"]
)
def test_who_looks_whether_a_lock_file_is_still_there_is_not_idle(module: str, what: str) -> None:
    scene = Scene().thread(user=0.5)
    for number in range(ROUNDS):
        at = number / 2
        user = (f"wait ({module}:50)", "load (train.py:9)")
        scene.wait(at, 499.5, "clock_nanosleep", user=user, asked_ns=499_500_000, runnable_ns=0)
        scene.call(at + 0.4995, 0.01, "clock_nanosleep", "", waits=0.0)
        scene.call(at + 0.4995, 0.01, "newfstatat", "/ext/lock", waits=0.0)
    assert between(scene)[0] == what
