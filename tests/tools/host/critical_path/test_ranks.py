"""Waits of ranks for each other, on recordings made by hand."""

from __future__ import annotations

import pytest
from path_accounts import account_of, row
from recordings import PID, Scene

OTHER, PEER, LAUNCHER = 4101, 5000, 6000
BACKWARD = ("_engine_run_backward (torch/autograd/graph.py:979)", "step (train.py:30)")
REDUCES = ("all_reduce (torch/distributed/distributed_c10d.py:1)", "average (train.py:21)")
TASK = {"context": "task", "runnable_ns": 0}
TCP = {"protocol": "tcp", "state": "established"}


def ranks(ms: float, does: str = "read") -> Scene:
    """A rank whose autograd engine waits for gradients; the thread that runs the collectives does something."""
    scene = Scene().thread(user=30).thread(OTHER, "pt_gloo_runloop").process(PID, "train")
    for second in range(12):
        scene.wait(second, ms, "futex", lock=64, waker=(PID, OTHER, "pt_gloo_runloop"), user=BACKWARD, **TASK)
        if does:
            scene.wait(second, ms, does, "/d/a", tid=OTHER, state="D", runnable_ns=0)
    return scene


def test_a_wait_for_the_thread_that_runs_collectives_is_one_for_other_ranks() -> None:
    found = row(account_of(ranks(700))[0], "collective")
    assert found.line == "step (train.py:30)"


def test_a_hang_of_the_autograd_engine_of_a_rank_is_a_wait_for_other_ranks() -> None:
    scene = Scene().thread().thread(OTHER, "pt_gloo_runloop").process(PID, "train")
    for tid, user in ((PID, BACKWARD), (OTHER, ())):
        scene.wait(0, 12_000, "futex", tid=tid, lock=64, still=True, seeded=True, user=user, runnable_ns=0)
    data, _ = account_of(scene, stands_still=True)
    assert [one.what for one in data.rows] == ["collective"]


@pytest.mark.parametrize(("does", "bad"), [("read", True), ("", False)])
def test_time_in_which_threads_exchange_the_data_of_ranks_is_normal(does: str, bad: bool) -> None:
    _, findings = account_of(ranks(400, does))
    (waits,) = (f for f in findings if f.kind == "path.wait" and f.attributes["wait"] == "collective")
    assert (waits.polarity == "abnormal") is bad


def test_other_ranks_on_the_same_cpus_are_threads_of_the_job() -> None:
    scene = ranks(100).thread(PEER + 1, "pt_gloo_runloop", pid=PEER).process(PEER, "train")
    scene.wait(0, 12_000, "futex", tid=PEER + 1, lock=64, still=True, seeded=True, runnable_ns=0)
    tcp = {"protocol": "tcp", "state": "established"}
    scene.seen("sockets", inode=501, pid=PID, peer=502, local="127.0.0.1:4000", remote="127.0.0.1:80", **tcp)
    scene.seen("sockets", inode=502, pid=PEER, peer=501, local="127.0.0.1:80", remote="127.0.0.1:4000", **tcp)
    for second in range(12):
        scene.wait(second + 0.2, 500, "", state="R", runnable_ns=500_000_000, ran_pid=PEER, ran_comm="train")
    assert row(account_of(scene)[0], "cpu").detail != "others"


def hung(at: tuple[str, ...], comm: str = "train") -> Scene:
    """A rank that stays in a collective, and another one that asks the store of their launcher for a key."""
    scene = Scene().thread().process(PID, "train", ppid=LAUNCHER).process(PEER, "train", ppid=LAUNCHER)
    scene.process(LAUNCHER, "launcher")
    scene.wait(0, 12_000, "futex", lock=64, still=True, seeded=True, user=REDUCES, runnable_ns=0)
    near = {"local": "127.0.0.1:80", "remote": "127.0.0.1:4000"}
    scene.seen(
        "sockets", inode=501, pid=PID, comm="train", peer=502, local="127.0.0.1:4000", remote="127.0.0.1:80", **TCP
    )
    scene.seen("sockets", inode=502, pid=PEER, comm="train", peer=501, **near, **TCP)
    scene.seen("sockets", inode=503, pid=PEER, comm="train", peer=504, local="127.0.0.1:9", remote="127.0.0.1:7", **TCP)
    scene.seen("sockets", inode=504, pid=LAUNCHER, comm="launcher", peer=503, **TCP)
    asks = {"state": "S", "syscall": "poll", "object": "socket:[503]", "pystack": scene.stack(at, kernel=False)}
    scene.seen("threads", looks="end", pid=PEER, tid=PEER, comm="train", **asks)
    store = {"state": "S", "syscall": "epoll_wait", "object": "anon_inode:[eventpoll]"}
    scene.seen("threads", looks="end", pid=LAUNCHER, tid=LAUNCHER + 1, comm=comm, **store)
    return scene


def test_a_rank_that_asks_the_store_for_a_key_waits_for_other_ranks_elsewhere() -> None:
    data, findings = account_of(hung(("export (train.py:40)",), "pt_tcpstore_uv"), stands_still=True)
    found = row(data, "collective")
    assert (found.root, found.root_what, found.root_line) == ("train (5000)", "collective", "export (train.py:40)")
    (waits,) = (f for f in findings if f.kind == "path.wait")
    assert "root_same" not in waits.attributes


def test_ranks_that_stay_at_the_same_line_are_noticed() -> None:
    _, findings = account_of(hung(REDUCES, "pt_tcpstore_uv"), stands_still=True)
    (waits,) = (f for f in findings if f.kind == "path.wait")
    assert waits.attributes["root_same"] == "yes"


def test_a_rank_whose_main_thread_has_ended_waits_for_a_thread_that_runs_python() -> None:
    scene = hung(("_shutdown (python3.11/threading.py:1590)",), "pt_tcpstore_uv")
    (main,) = (one for one in scene.tables["objects.threads"] if one["pid"] == PEER)
    main |= {"syscall": "futex", "object": "", "lock": 64}
    loop = {"state": "S", "syscall": "epoll_wait", "object": "anon_inode:[eventpoll]"}
    uploads = {
        "state": "S",
        "syscall": "futex",
        "lock": 96,
        "pystack": scene.stack(("get (python3.11/queue.py:1)", "run (up.py:7)"), kernel=False),
    }
    scene.seen("threads", looks="end", pid=PEER, tid=PEER + 1, comm="gloo_tcp_loop", **loop)
    scene.seen("threads", looks="end", pid=PEER, tid=PEER + 2, comm="uploader", **uploads)
    found = row(account_of(scene, stands_still=True)[0], "collective")
    assert (found.root, found.root_what, found.root_line) == ("uploader (5002 of 5000)", "queue", "run (up.py:7)")
    assert "join at _shutdown" in found.chain


def test_a_rank_that_waits_for_a_lock_of_the_rank_that_waits_for_it_is_in_a_deadlock() -> None:
    scene = hung(("build (prep.py:6)",), "pt_tcpstore_uv")
    (main,) = (one for one in scene.tables["objects.threads"] if one["pid"] == PEER)
    main |= {"syscall": "flock", "object": "/d/index.lock", "wchan": "locks_lock_inode_wait"}
    lock = {"kind": "flock", "exclusive": True, "dev": "8:1", "ino": 7, "path": "/d/index.lock"}
    scene.seen("file_locks", looks="end", pid=PEER, waits=True, holder_pid=PID, **lock)
    data, findings = account_of(scene, stands_still=True)
    assert row(data, "collective").root_what == "file_lock"
    (waits,) = (f for f in findings if f.kind == "path.wait")
    assert waits.attributes["root_mutual"] == "yes"


@pytest.mark.parametrize(("also", "in_turn"), [(600, True), (100, False)])
def test_ranks_that_wait_for_each_other_in_turn_are_noticed(also: float, in_turn: bool) -> None:
    scene = Scene().thread(user=30).thread(OTHER, "pt_gloo_runloop").process(PID, "train").process(PEER, "train")
    scene.thread(PEER, "train", pid=PEER).thread(PEER + 1, "pt_gloo_runloop", pid=PEER)
    for second in range(12):
        scene.wait(second, 450, "futex", lock=64, waker=(PID, OTHER, "pt_gloo_runloop"), user=BACKWARD, **TASK)
        scene.wait(second, 450, "futex", tid=OTHER, lock=96, waker=(PEER, PEER, "train"), **TASK)
        waker = (PEER, PEER + 1, "pt_gloo_runloop")
        scene.wait(second + 0.45, also - 60, "futex", tid=PEER, lock=64, waker=waker, user=BACKWARD, **TASK)
    _, findings = account_of(scene)
    (waits,) = (f for f in findings if f.kind == "path.wait" and f.attributes["wait"] == "collective")
    assert ("root_in_turn" in waits.attributes) is in_turn
