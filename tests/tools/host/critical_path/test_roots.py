"""Where the chains of a row end: in which process, and in what it did."""

from __future__ import annotations

import pytest
from path_accounts import account_of, row
from recordings import PID, Scene

from whystall.tools.host.critical_path.choose import leaves_work

OTHER, LOADER, PEER = 4101, 4102, 5000
TAKES = ("get (python3.11/queue.py:171)", "next_batch (train.py:41)")
SAVE = ("fsync (python3.11/os.py:1)", "save (ckpt.py:9)")
TASK = {"context": "task", "runnable_ns": 0}


def test_what_a_process_did_is_added_up_before_its_kinds_are_compared() -> None:
    scene = Scene().thread(user=30).process(PID, "train").thread(PEER, "saver", pid=PEER).process(PEER, "saver")
    scene.thread(PEER + 1, "other", pid=PEER + 1).process(PEER + 1, "other")
    for second in range(12):
        waker = (PEER, PEER, "saver") if second % 2 else (PEER + 1, PEER + 1, "other")
        ms = 800 if second % 2 else 350
        scene.wait(second, ms, "futex", lock=64, waker=waker, user=TAKES, **TASK)
        scene.wait(second, 300, "fsync", "/d/a", tid=PEER, state="D", user=SAVE, runnable_ns=0)
        scene.wait(second + 0.3, 300, "futex", tid=PEER, lock=96, user=("pack (ckpt.py:5)",), **TASK)
        scene.wait(second, 400, "read", "/d/b", tid=PEER + 1, state="D", user=("load (data.py:3)",), runnable_ns=0)
    data, _ = account_of(scene)
    found = row(data, "queue")
    # 350 ms of one kind in the other process are more than each of the three kinds here
    assert (found.root, found.root_by_pct) == ("saver (5000)", pytest.approx(100 * 800 / 1150, abs=1))
    assert found.root_pct == pytest.approx(100 * 300 / 1150, abs=1)


def test_further_kinds_at_the_end_are_findings_too() -> None:
    scene = Scene().thread(user=30).process(PID, "train").thread(PEER, "saver", pid=PEER).process(PEER, "saver")
    for second in range(12):
        scene.wait(second, 800, "futex", lock=64, waker=(PEER, PEER, "saver"), user=TAKES, **TASK)
        scene.wait(second, 400, "fsync", "/d/a", tid=PEER, state="D", user=SAVE, runnable_ns=0)
        scene.wait(second + 0.4, 300, "clock_nanosleep", tid=PEER, user=("retry (ckpt.py:5)",), runnable_ns=0)
    _, findings = account_of(scene)
    wakers = {f.attributes.get("wait", "running"): f.window_pct for f in findings if f.kind == "path.waker"}
    assert wakers["file"] == pytest.approx(40, abs=0.5)
    assert wakers["sleep"] == pytest.approx(30, abs=0.5)


def test_a_thread_inside_a_chain_names_the_one_that_it_waits_for() -> None:
    scene = Scene().thread(user=30).process(PID, "train").thread(LOADER, "loader")
    scene.thread(PEER, "saver", pid=PEER).process(PEER, "saver")
    for second in range(12):
        scene.wait(second, 800, "futex", lock=64, waker=(PID, LOADER, "loader"), user=TAKES, **TASK)
        lock = {"lock": 96, "waker": (PEER, PEER, "saver"), "user": ("pack (ckpt.py:5)",)}
        scene.wait(second, 790, "futex", tid=LOADER, **lock, **TASK)
        scene.wait(second, 780, "fsync", "/d/a", tid=PEER, state="D", user=SAVE, runnable_ns=0)
    _, findings = account_of(scene)
    named = {f.subject.comm: f.attributes.get("by") for f in findings if f.kind == "path.waker"}
    assert named == {"loader": f"saver ({PEER})", "saver": None}


def test_threads_that_take_the_requests_in_turn_count_as_their_process() -> None:
    scene = Scene().thread(user=30).process(PID, "train").process(PEER, "server")
    for second in range(12):
        tid = 5100 + second
        scene.thread(tid, "server", pid=PEER)
        scene.wait(second, 700, "futex", lock=64, waker=(PEER, tid, "server"), user=TAKES, **TASK)
        scene.wait(second, 690, "read", "/d/a", tid=tid, state="D", user=("answer (serve.py:7)",), runnable_ns=0)
    found = row(account_of(scene)[0], "queue")
    assert (found.root_what, found.root_line) == ("file", "answer (serve.py:7)")
    assert found.root_pct == pytest.approx(100 * 690 / 700, abs=0.5)
    assert "+" not in found.root


def test_workers_of_the_process_that_share_the_work_count_as_one() -> None:
    scene = Scene().thread(user=30).process(PID, "train")
    for number in range(3):
        scene.thread(6000 + number, "worker", pid=6000 + number).process(6000 + number, "worker", ppid=PID)
    for second in range(12):
        pid = 6000 + second % 3
        scene.wait(second, 700, "futex", lock=64, waker=(pid, pid, "worker"), user=TAKES, **TASK)
        scene.wait(second, 700, "read", "/d/a", tid=pid, state="D", user=("decode (data.py:7)",), runnable_ns=0)
    found = row(account_of(scene)[0], "queue")
    assert found.root_pct == pytest.approx(100, abs=0.5)
    assert found.root.endswith("+2")


@pytest.mark.parametrize(("threads", "share"), [(4, 100.0), (1, 100.0)], ids=["pool", "one thread"])
def test_threads_of_the_own_process_that_share_the_work_count_as_one(threads: int, share: float) -> None:
    scene = Scene().thread(user=30).process(PID, "train")
    for number in range(threads):
        scene.thread(LOADER + number, "worker", user=20)
    for second in range(12):
        waker = (PID, LOADER + second % threads, "worker")
        scene.wait(second, 700, "futex", lock=64, waker=waker, user=("step (train.py:9)",), **TASK)
    found = row(account_of(scene)[0], "lock")
    assert (found.root_what, found.root_pct) == ("running", pytest.approx(share, abs=1))
    assert found.root.endswith(f"+{threads - 1}") == (threads > 1)


@pytest.mark.parametrize(("second", "mutual"), [(False, "yes"), (True, None)])
def test_a_sender_without_room_is_held_by_the_link_if_the_receiver_waits_for_its_only_connection(
    second: bool, mutual: str | None
) -> None:
    scene = Scene().thread(user=5).process(PID, "train").thread(PEER, "server", pid=PEER).process(PEER, "server")
    for number in range(1 + second):
        ends = {"local": f"127.0.0.1:400{number}", "remote": "127.0.0.1:80", "protocol": "tcp", "state": "established"}
        scene.seen("sockets", inode=501 + 2 * number, pid=PID, peer=502 + 2 * number, **ends)
        back = ends | {"local": ends["remote"], "remote": ends["local"]}
        scene.seen("sockets", inode=502 + 2 * number, pid=PEER, peer=501 + 2 * number, **back)
    for number in range(24):
        waker = {"waker": (PEER, PEER, "server"), "context": "network", "waker_syscall": "sendto"}
        fetch, serve = ("fetch (train.py:3)",), ("serve (serve.py:7)",)
        scene.wait(number / 2, 400, "recvfrom", object="socket:[501]", user=fetch, runnable_ns=0, **waker)
        sends = {"object": "socket:[502]", "user": serve, "context": "network", "runnable_ns": 0}
        scene.wait(number / 2, 399, "sendto", tid=PEER, stack=("sk_stream_wait_memory",), **sends)
    _, findings = account_of(scene)
    (waits,) = [f for f in findings if f.kind == "path.wait" and f.attributes["wait"] == "socket"]
    assert (waits.attributes["root_wait"], waits.attributes.get("root_mutual")) == ("socket_full", mutual)


@pytest.mark.parametrize(("object", "mutual"), [("socket:[502]", "yes"), ("socket:[900]", None)])
@pytest.mark.parametrize(
    ("call", "wait", "by"),
    [("recvfrom", "socket", "sendto"), ("sendto", "socket_full", "recvfrom")],
    ids=["answers", "slow link"],
)
def test_two_ends_of_a_connection_that_wait_for_each_other_are_named(
    object: str, mutual: str | None, call: str, wait: str, by: str
) -> None:
    scene = Scene().thread(user=5).process(PID, "train").thread(PEER, "server", pid=PEER).process(PEER, "server")
    tcp = {"protocol": "tcp", "state": "established"}
    scene.seen("sockets", inode=501, pid=PID, peer=502, local="127.0.0.1:4000", remote="127.0.0.1:80", **tcp)
    scene.seen("sockets", inode=502, pid=PEER, peer=501, local="127.0.0.1:80", remote="127.0.0.1:4000", **tcp)
    for number in range(24):
        waker = {"waker": (PEER, PEER, "server"), "context": "network", "waker_syscall": by}
        ask = ("ask (train.py:3)",)
        scene.wait(number / 2, 400, call, object="socket:[501]", user=ask, runnable_ns=0, **waker)
        serve = ("serve (serve.py:7)",)
        scene.wait(number / 2, 399, "recvfrom", tid=PEER, object=object, user=serve, context="network", runnable_ns=0)
    _, findings = account_of(scene)
    (waits,) = [f for f in findings if f.kind == "path.wait" and f.attributes["wait"] == wait]
    assert waits.attributes.get("root_mutual") == mutual


def test_a_kernel_worker_that_was_not_observed_ends_no_chain() -> None:
    scene = Scene().thread(user=30).process(2, "kthreadd", ppid=0).process(77, "kworker/u8:5", ppid=2)
    for second in range(12):
        scene.wait(second, 700, "fsync", "/d/a", state="D", waker=(77, 77, "kworker/u8:5"), user=SAVE, **TASK)
    found = row(account_of(scene)[0], "file")
    assert (found.root, found.root_what) == ("", "")


@pytest.mark.parametrize(("syscall", "unseen"), [("futex", [PEER]), ("", [])])
def test_a_process_that_was_not_recorded_while_it_is_waited_for_is_named(syscall: str, unseen: list[int]) -> None:
    scene = Scene().thread().process(PID, "train").process(PEER, "server")
    scene.wait(
        0, 12_000, "recvfrom", still=True, seeded=True, user=("ask (train.py:3)",), runnable_ns=0, object="socket:[501]"
    )
    tcp = {"protocol": "tcp", "state": "established"}
    scene.seen("sockets", inode=501, pid=PID, peer=502, local="127.0.0.1:4000", remote="127.0.0.1:80", **tcp)
    scene.seen("sockets", inode=502, pid=PEER, peer=501, local="127.0.0.1:80", remote="127.0.0.1:4000", **tcp)
    if not syscall:
        scene.tables["switches.followed"] = [{"at_ns": 0, "pid": PEER, "tid": PEER, "comm": "server", "woken_pid": PID}]
        scene.wait(0, 12_000, "read", "/d/a", tid=PEER, still=True, seeded=True, runnable_ns=0)
        scene.thread(PEER, "server", pid=PEER)
    assert account_of(scene)[0].unseen == unseen


def test_ranks_below_a_launcher_go_before_helpers_and_workers() -> None:
    scene = Scene().thread().process(PID, "launcher", cpu=20)
    scene.wait(0, 12_000, "wait4", still=True, seeded=True, runnable_ns=0)
    for pid, ppid, comm, cpu in (
        (5001, PID, "train", 60),
        (5002, 5001, "worker", 90),
        (5003, 5001, "worker", 90),
        (5004, PID, "train", 1),
    ):
        scene.thread(pid, comm, pid=pid, user=cpu).process(pid, comm, cpu=cpu, ppid=ppid)
    for second in range(12):
        for pid in (5001, 5002, 5003):
            scene.wait(second, 300, "fsync", "/d/a", tid=pid, state="D", runnable_ns=0)
    scene.wait(0, 12_000, "read", tid=5004, still=True, seeded=True, runnable_ns=0, object="pipe:[9]")
    data, _ = account_of(scene)
    assert data.thread is not None
    assert (data.thread.pid, data.chosen_by) == (5001, "main_of_job")


def test_a_helper_that_waits_for_the_launcher_makes_it_no_worker() -> None:
    scene = Scene().thread().process(PID, "launcher", cpu=20)
    spawn = ("select (python3.11/selectors.py:415)", "join (torch/multiprocessing/spawn.py:1)", "main (train.py:9)")
    scene.wait(0, 12_000, "poll", still=True, seeded=True, runnable_ns=0, object="pipe:[7]", user=spawn)
    scene.thread(5001, "train", pid=5001, user=60).process(5001, "train", cpu=60, ppid=PID)
    scene.thread(5002, "python", pid=5002).process(5002, "python", cpu=0.1, ppid=PID)
    scene.wait(0, 12_000, "read", tid=5002, still=True, seeded=True, runnable_ns=0, object="pipe:[9]")
    scene.seen("ends", looks="end", object="pipe:[9]", pid=PID, writes=True)
    data, _ = account_of(scene)
    assert data.thread is not None
    assert (data.thread.pid, data.chosen_by) == (5001, "main_of_job")


@pytest.mark.parametrize(("own", "child", "chosen"), [(20, 60, 5001), (90, 2, PID)])
def test_a_process_that_worked_and_waits_for_a_command_is_no_launcher(own: int, child: int, chosen: int) -> None:
    scene = Scene().thread().process(PID, "train", cpu=own)
    scene.wait(0, 12_000, "wait4", still=True, seeded=True, runnable_ns=0)
    scene.thread(5001, "report", pid=5001).process(5001, "report", cpu=child, ppid=PID)
    scene.wait(0, 12_000, "fsync", "/d/a", tid=5001, state="D", still=True, seeded=True, runnable_ns=0)
    data, _ = account_of(scene)
    assert data.thread is not None
    assert data.thread.pid == chosen


@pytest.mark.parametrize(
    ("own_s", "below_s", "leaves"), [(0.1, 0.0, True), (6, 5, True), (60, 5, False), (60, 400, True)]
)
def test_who_leaves_the_work_to_its_children(own_s: float, below_s: float, leaves: bool) -> None:
    assert leaves_work(int(own_s * 1e9), int(below_s * 1e9)) is leaves
