"""Owners of locks that store none, and the choice of the thread that waits before the one that it waits for."""

from __future__ import annotations

import pytest
from recordings import PID, Scene

from whystall.tools.host.critical_path.tool import TOOL, Data
from whystall.tools.recording.judging import judge

OTHER, THIRD, PEER = 4101, 4102, 5000
BOOTSTRAP = "<frozen importlib._bootstrap>"
AWAITS = (
    *(f"_ModuleLock.acquire ({BOOTSTRAP}:118)", f"_ModuleLockManager.__enter__ ({BOOTSTRAP}:174)"),
    *(f"_find_and_load ({BOOTSTRAP}:1173)", "setup (train.py:4)"),
)
IMPORTS = (
    *("<module> (sdk.py:4)", f"_call_with_frames_removed ({BOOTSTRAP}:241)", f"_load_unlocked ({BOOTSTRAP}:690)"),
    *(f"_find_and_load_unlocked ({BOOTSTRAP}:1147)", f"_find_and_load ({BOOTSTRAP}:1176)", "preload (train.py:9)"),
)
GETS = ("get (python3.11/queue.py:171)", "next_batch (train.py:41)")


def account_of(scene: Scene, **params: object) -> Data:
    data = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, **params})).data
    assert isinstance(data, Data)
    return data


def still(scene: Scene, tid: int = PID, syscall: str = "futex", **more: object) -> None:
    scene.wait(0, 12_000, syscall, tid=tid, still=True, seeded=True, runnable_ns=0, **more)


def server_that_sleeps(scene: Scene) -> Scene:
    """Thread OTHER waits for the answer of a child process, which sleeps."""
    scene.process(PID, "train", cpu=1).process(PEER, "licensed", cpu=1, ppid=PID).thread(PEER, "licensed", pid=PEER)
    still(scene, OTHER, "recvfrom", object="socket:[501]", user=IMPORTS)
    still(scene, PEER, "clock_nanosleep", asked_ns=10**15, user=("server (train.py:2)",))
    tcp = {"protocol": "tcp", "state": "established"}
    scene.seen("sockets", inode=501, pid=PID, peer=502, local="127.0.0.1:4000", remote="127.0.0.1:80", **tcp)
    scene.seen(
        "sockets", inode=502, pid=PEER, peer=501, comm="licensed", local="127.0.0.1:80", remote="127.0.0.1:4000", **tcp
    )
    return scene


def test_who_imports_the_module_has_its_lock_and_who_waits_for_it_is_chosen() -> None:
    scene = server_that_sleeps(Scene().thread().thread(OTHER, "preload"))
    still(scene, lock=64, user=AWAITS)
    data = account_of(scene, stands_still=True)
    assert data.thread is not None
    assert (data.thread.tid, data.chosen_by) == (PID, "main_thread")
    row = data.rows[0]
    assert (row.what, row.role, row.root, row.root_what) == ("lock", "import", "licensed (5000)", "sleep")
    assert "preload (4101 of 4000) socket at <module> (sdk.py:4)" in row.chain


def test_of_two_threads_that_import_none_is_taken_for_the_owner() -> None:
    scene = server_that_sleeps(Scene().thread().thread(OTHER, "preload").thread(THIRD, "plugins"))
    still(scene, lock=64, user=AWAITS)
    still(scene, THIRD, "recvfrom", object="socket:[9]", user=IMPORTS)
    assert account_of(scene).rows[0].chain == ""


def test_the_thread_that_waits_for_a_server_goes_before_the_server_that_sleeps() -> None:
    scene = server_that_sleeps(Scene().thread().thread(OTHER, "feed"))
    still(scene, lock=64, user=GETS)
    data = account_of(scene, stands_still=True)
    assert data.thread is not None
    assert (data.thread.tid, data.rows[0].root) == (OTHER, "licensed (5000)")


@pytest.mark.parametrize(("readers", "root", "detail"), [(2, "sleep", "readers"), (1, "", "readers"), (-1, "", "")])
def test_a_writer_waits_for_the_readers_if_all_other_threads_read(readers: int, root: str, detail: str) -> None:
    scene = Scene().thread().thread(OTHER, "reader").thread(THIRD, "reader")
    still(scene, lock=64)
    for tid in (OTHER, THIRD):
        for turn in range(48):
            scene.wait(turn / 4, 249, "clock_nanosleep", tid=tid, runnable_ns=0, user=("read (job.c:7)",))
        scene.seen("threads", pid=PID, tid=tid, state="S", syscall="clock_nanosleep")
    kind = {"lock_kind": "rwlock", "readers": readers}
    scene.seen("threads", pid=PID, tid=PID, state="S", syscall="futex", lock=64, **kind)
    row = account_of(scene, tid=PID).rows[0]
    assert (row.what, row.root_what, row.detail) == ("lock", root, detail)


def test_a_thread_that_computes_in_a_module_and_lacks_a_cpu_has_its_lock() -> None:
    scene = Scene().thread().thread(OTHER, "preload", user=50)
    still(scene, lock=64, user=AWAITS)
    for turn in range(48):
        user = IMPORTS if turn < 40 else ()
        scene.wait(
            turn / 4, 200, "", tid=OTHER, state="R", runnable_ns=200_000_000, ran_pid=99, ran_comm="x", user=user
        )
    row = account_of(scene, tid=PID).rows[0]
    assert (row.what, row.role, row.root_what) == ("lock", "import", "cpu")
