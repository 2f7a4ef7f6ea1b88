"""The account of a thread's time, on recordings made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from recordings import PID, Scene

from whystall.tools.collect.tables import FD_UNREAD
from whystall.tools.host.common.objects import Objects
from whystall.tools.host.critical_path.tool import TOOL, Data, PathRow
from whystall.tools.recording.judging import judge

OTHER, THIRD, PEER = 4101, 4102, 5000
MAIN = ("get (python3.11/queue.py:171)", "next_batch (train.py:41)", "main (train.py:90)")
DECODE = ("sha256 (python3.11/hashlib.py:1)", "decode (data.py:17)", "worker (data.py:5)")


def account_of(scene: Scene, **params: object) -> Data:
    data = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, **params})).data
    assert isinstance(data, Data)
    return data


def sums_to_the_window(data: Data) -> bool:
    return sum(row.window_pct for row in data.rows) == pytest.approx(100.0, abs=0.1)


def row(data: Data, what: str) -> PathRow:
    (found,) = [one for one in data.rows if one.what == what]
    return found


def test_a_wait_is_followed_through_two_threads_to_a_file() -> None:
    scene = Scene().thread(user=30).thread(OTHER, "feeder").thread(THIRD, "decoder")
    for second in range(12):
        woken = {"context": "task", "runnable_ns": 0}
        scene.wait(second, 700, "futex", lock=64, waker=(PID, OTHER, "feeder"), user=MAIN, **woken)
        scene.wait(second, 690, "futex", tid=OTHER, lock=96, waker=(PID, THIRD, "decoder"), **woken)
        scene.wait(second, 680, "read", "/data/a.bin", tid=THIRD, state="D", user=DECODE, runnable_ns=0)
    data = account_of(scene)
    assert data.thread is not None
    assert data.thread.tid == PID
    assert sums_to_the_window(data)
    found = row(data, "queue")
    assert (found.line, found.inner) == ("next_batch (train.py:41)", "get (python3.11/queue.py:171)")
    assert found.window_pct == pytest.approx(70, abs=0.1)
    assert (found.root, found.root_what, found.root_line) == ("decoder (4102 of 4000)", "file", "decode (data.py:17)")
    assert found.root_pct == pytest.approx(100 * 680 / 700, abs=0.5)


@pytest.mark.parametrize(("resident", "brief"), [(False, "yes"), (True, None)])
def test_workers_that_come_and_go_within_the_window_are_told_from_those_that_stay(
    resident: bool, brief: str | None
) -> None:
    scene = Scene().process(PID, "train").thread(user=30).thread(OTHER, "worker", pid=77)
    if resident:
        scene.process(77, "worker")
    for second in range(12):
        woken = {"context": "task", "runnable_ns": 0}
        scene.wait(second, 700, "futex", lock=64, waker=(77, OTHER, "worker"), user=MAIN, **woken)
    found = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID})).findings
    (waits,) = (one for one in found if one.kind == "path.wait" and one.attributes["wait"] == "queue")
    assert waits.attributes.get("brief") == brief


@pytest.mark.parametrize("recorded", [True, False])
def test_a_thread_that_starts_late_is_followed_to_the_main_thread_of_its_process(recorded: bool) -> None:
    scene = Scene().thread(user=5).thread(77, "loader", pid=77).thread(OTHER, "feeder", pid=77)
    late = [one for one in scene.tables["proc.threads"] if one["tid"] != OTHER or recorded * one["at_ns"] >= 9e9]
    scene.tables["proc.threads"] = late
    scene.wait(0.5, 8_900, "read", "/data/index.bin", tid=77, state="D", user=DECODE, runnable_ns=0)
    if recorded:
        scene.wait(9.4, 200, "futex", tid=OTHER, user=MAIN, runnable_ns=0)
    scene.wait(0.5, 9_200, "futex", lock=64, waker=(77, OTHER, "feeder"), context="task", user=MAIN, runnable_ns=0)
    found = row(account_of(scene), "queue")
    assert (found.root, found.root_what, found.root_line) == ("loader (77)", "file", "decode (data.py:17)")
    assert found.root_pct == pytest.approx(100 * 8_900 / 9_200, abs=0.5)


@pytest.mark.parametrize(("killed", "words"), [(10, "yes"), (4, None)])
def test_waits_for_children_that_were_killed_are_told_from_others(killed: int, words: str | None) -> None:
    scene = Scene().process(PID, "train").thread(user=30)
    for second in range(12):
        child = 6000 + second
        scene.wait(second, 900, "wait4", waker=(child, child, "export"), context="task", runnable_ns=0)
        if second < killed:
            at = {"at_ns": second * 10**9, "pid": child, "comm": "export", "cgroup": "/job", "limit_cgroup": "/job"}
            kill = {**at, "anon_bytes": 1 << 20, "source": "log"}
            scene.tables.setdefault("memory_use.oom_kills", []).append(kill)
    found = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID})).findings
    (waits,) = (one for one in found if one.kind == "path.wait" and one.attributes["wait"] == "child")
    assert waits.attributes.get("killed") == words


def test_a_wait_that_times_out_and_goes_on_belongs_to_who_ends_it() -> None:
    scene = Scene().thread(user=20).thread(OTHER, "burner", user=80)
    for second in range(12):
        for part in range(10):
            last = part == 9
            ended = {"waker": (PID, OTHER, "burner"), "context": "task"} if last else {"context": "timer"}
            scene.wait(second + part * 0.0501, 50, "futex", lock=128, asked_ns=5_000_000, runnable_ns=0, **ended)
    scene.seen("interpreters", pid=PID, word=128)
    found = row(account_of(scene), "interpreter_lock")
    assert found.by == "burner (4101)"
    assert found.root_what == "running"


@pytest.mark.parametrize(("ends", "confirms"), [("timer", False), ("task", True)])
def test_waits_that_time_out_show_no_link_to_who_ends_the_last_one(ends: str, confirms: bool) -> None:
    scene = Scene().thread(user=10).thread(OTHER, "submit")
    waker = (PID, OTHER, "submit")
    for second in range(12):
        scene.wait(second, 500, "futex", asked_ns=500_000_000, user=MAIN, context=ends, waker=waker, runnable_ns=0)
        last = {"context": "task", "waker": waker, "runnable_ns": 0}
        scene.wait(second + 0.501, 20, "futex", asked_ns=500_000_000, user=MAIN, **last)
        scene.wait(second, 600, "clock_nanosleep", tid=OTHER, user=("submit (cond.py:9)",), runnable_ns=0)
    found = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID})).findings
    (waker_row,) = (f for f in found if f.kind == "path.waker" and f.attributes.get("wait") == "sleep")
    assert ("via" in waker_row.attributes) is confirms


def test_a_thread_that_keeps_the_interpreter_lock_while_it_sleeps_is_found_by_whom_it_woke() -> None:
    scene = Scene().thread(user=20).thread(OTHER, "telemetry").thread(THIRD, "native", user=5)
    for tick in range(2400):  # it needs no lock
        scene.wait(tick / 200, 4.7, "epoll_wait", tid=THIRD, runnable_ns=0)
    for second in range(12):
        for part in range(60):
            ended = {"waker": (PID, OTHER, "telemetry"), "context": "task"} if part == 59 else {"context": "timer"}
            scene.wait(second + part * 0.00501, 5, "futex", lock=128, asked_ns=5_000_000, runnable_ns=0, **ended)
        scene.wait(second, 299, "clock_nanosleep", tid=OTHER, user=("poll_sensor (telemetry.py:4)",), runnable_ns=0)
    scene.seen("interpreters", pid=PID, word=128)
    found = row(account_of(scene), "interpreter_lock")
    assert (found.by, found.root_what, found.root_line) == ("telemetry (4101)", "sleep", "poll_sensor (telemetry.py:4)")


def test_a_sender_on_this_host_is_followed_and_a_distant_peer_is_named() -> None:
    scene = Scene().thread(user=10)
    tcp = {"protocol": "tcp", "state": "established"}
    scene.seen("sockets", inode=501, pid=PID, peer=502, local="127.0.0.1:4000", remote="127.0.0.1:80", **tcp)
    near = {"comm": "server", "local": "127.0.0.1:80", "remote": "127.0.0.1:4000"}
    scene.seen("sockets", inode=502, pid=PEER, peer=501, **near, **tcp)
    scene.seen("sockets", inode=503, pid=PID, local="10.0.0.2:4001", remote="10.0.0.9:443", **tcp)
    scene.pids[PEER] = PEER
    for second in range(12):
        near = {"context": "network", "waker_syscall": "sendto", "object": "socket:[501]", "runnable_ns": 0}
        scene.wait(second, 400, "recvfrom", user=("ask (client.py:7)",), waker=(PEER, PEER, "server"), **near)
        far = {"context": "network", "object": "socket:[503]", "runnable_ns": 0}
        scene.wait(second + 0.5, 300, "recvfrom", user=("pull (client.py:9)",), waker=(1, 1, "swapper"), **far)
        scene.wait(second, 395, "clock_nanosleep", tid=PEER, user=("answer (srv.py:3)",), runnable_ns=0)
    near_row, far_row = [one for one in account_of(scene).rows if one.what == "socket"]
    assert (near_row.root_what, near_row.root_line) == ("sleep", "answer (srv.py:3)")
    assert near_row.object == "server (5000)"
    assert (far_row.object, far_row.root_what) == ("10.0.0.9:443", "")


def test_time_without_a_cpu_is_divided_by_who_had_it() -> None:
    own = Scene().thread(user=50).thread(OTHER, "omp").thread(THIRD, "omp")  # on two CPUs
    strangers = Scene().thread(user=50)
    for second in range(12):
        own.wait(second, 400, "", state="R", runnable_ns=400_000_000, ran_pid=PID, ran_comm="train")
        strangers.wait(second, 400, "", state="R", runnable_ns=400_000_000, ran_pid=77, ran_comm="stress")
    assert row(account_of(own), "cpu").detail == "own"
    found = row(account_of(strangers), "cpu")
    assert (found.detail, found.by) == ("others", "stress (77)")


def test_a_wait_that_never_ended_is_followed_to_the_owner_of_the_lock() -> None:
    scene = Scene().thread().thread(OTHER, "helper")
    scene.wait(0, 12_000, "futex", lock=64, still=True, seeded=True, runnable_ns=0, user=("save (train.py:3)",))
    scene.wait(0, 12_000, "futex", lock=96, tid=OTHER, still=True, seeded=True, runnable_ns=0)
    scene.seen("threads", pid=PID, tid=PID, lock=64, owner_tid=OTHER)
    scene.seen("threads", pid=PID, tid=OTHER, lock=96, owner_tid=PID)
    data = account_of(scene)
    found = row(data, "lock")
    assert found.open_s == pytest.approx(12)
    assert found.chain.startswith("helper (4101 of 4000)")


def test_a_join_that_never_ended_is_followed_to_the_only_other_thread() -> None:
    scene = Scene().thread().thread(OTHER, "feeder")
    joins = ("Thread._wait_for_tstate_lock (python3.11/threading.py:1132)", "gather (train.py:7)")
    scene.wait(0, 12_000, "futex", lock=64, user=joins, still=True, seeded=True, runnable_ns=0)
    writes = {"object": "pipe:[7]", "still": True, "seeded": True, "runnable_ns": 0}
    scene.wait(0, 12_000, "write", tid=OTHER, user=("send (connection.py:384)",), **writes)
    for tid, call in ((PID, "futex"), (OTHER, "write")):
        scene.seen("threads", pid=PID, tid=tid, comm="feeder", state="S", syscall=call)
    found = row(account_of(scene, tid=PID), "join")
    assert (found.root, found.root_what) == ("feeder (4101 of 4000)", "pipe_full")


@pytest.mark.parametrize("threads", [2000])
def test_many_idle_threads_cost_little_and_change_no_rows(threads: int) -> None:
    scene = Scene().thread(user=60)
    for tid in range(PID + 1000, PID + 1000 + threads):
        scene.wait(0, 12_000, "futex", tid=tid, lock=tid, still=True, seeded=True, runnable_ns=0)
    for second in range(12):
        scene.wait(second, 400, "clock_nanosleep", user=("pace (train.py:8)",), asked_ns=400_000_000, runnable_ns=0)
    data = account_of(scene)
    assert data.thread is not None
    assert data.thread.tid == PID
    assert row(data, "sleep").line == "pace (train.py:8)"
    assert sums_to_the_window(data)


def test_a_poll_for_connections_is_idle_and_the_thread_that_answers_is_chosen() -> None:
    scene = Scene().thread().thread(OTHER, "handler", user=10)
    scene.seen("sockets", pid=PID, inode=7, state="listen", local="127.0.0.1:80")
    for second in range(24):
        idle = {"object": "socket:[7]", "asked_ns": 500_000_000, "context": "timer", "runnable_ns": 0}
        scene.wait(second / 2, 499, "poll", user=("serve_forever (serve.py:3)",), **idle)
        scene.wait(second / 2, 300, "futex", tid=OTHER, lock=64, user=("borrow (serve.py:9)",), runnable_ns=0)
    data = account_of(scene)
    assert data.thread is not None
    assert (data.thread.tid, data.rows[0].what) == (OTHER, "lock")


@pytest.mark.parametrize(("holder", "what"), [(PID, "events"), (PEER, "socket")])
def test_a_poll_of_a_socket_whose_other_end_is_ones_own_waits_for_no_peer(holder: int, what: str) -> None:
    scene = Scene().thread()
    near = {"protocol": "unix", "state": "established"}
    scene.seen("sockets", inode=501, pid=PID, peer=502, **near)
    scene.seen("sockets", inode=502, pid=holder, peer=501, comm="python", **near)
    idle = {"object": "socket:[501]", "asked_ns": 30_000_000_000, "still": True, "runnable_ns": 0}
    scene.wait(0, 12_000, "select", user=("idle (ends.py:11)",), **idle)
    assert account_of(scene).rows[0].what == what


@pytest.mark.parametrize(("listens", "what"), [(True, "events"), (False, "timeout")])
def test_the_interval_at_which_an_idle_server_looks_up_is_no_time_out(listens: bool, what: str) -> None:
    scene = Scene().thread()
    scene.seen("sockets", pid=PID, inode=7, protocol="tcp", local="127.0.0.1:5001", state="listen")
    look = {"asked_ns": 500_000_000, "context": "timer", "runnable_ns": 0, "object": "socket:[7]" if listens else ""}
    call = {"syscall": "poll"} if listens else {"syscall": "epoll_wait", "stack": ("ep_poll", "do_epoll_wait")}
    for number in range(22):  # 40 ms of work after each, so that none belongs to the series of the one before
        scene.wait(number * 0.54, 500, user=("look (ask.py:9)",), **call, **look)
    data = account_of(scene)
    assert data.rows[0].what == what
    assert data.rows[0].window_pct > 90


PUTS = ("Condition.wait (python3.11/threading.py:327)", "Queue.put (python3.11/queue.py:140)", "run (train.py:4)")


@pytest.mark.parametrize(
    ("wait", "chosen"),
    [({"syscall": "futex", "lock": 64, "user": PUTS}, PID), ({"syscall": "fsync", "path": "/d", "state": "D"}, OTHER)],
    ids=["full queue", "sync"],
)
def test_a_thread_that_waits_for_its_consumer_is_not_chosen(wait: dict[str, Any], chosen: int) -> None:
    scene = Scene().thread().thread(OTHER, "loader")
    for second in range(24):
        scene.wait(second / 2, 499, "clock_nanosleep", user=("again (train.py:9)",), runnable_ns=0)
    scene.wait(0, 12_000, tid=OTHER, still=True, seeded=True, runnable_ns=0, **wait)
    data = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, "stands_still": True})).data
    assert isinstance(data, Data)
    assert data.thread is not None
    assert data.thread.tid == chosen


HANDLER = ("record (serve.py:9)", "do_POST (serve.py:20)", "handle (python3.11/http/server.py:436)")


@pytest.mark.parametrize(("received_ms", "chosen"), [(5, OTHER), (5000, PID)])
@pytest.mark.parametrize("frames", [HANDLER, HANDLER[:2]])
def test_a_handler_that_only_sleeps_is_chosen_while_its_request_is_unanswered(
    received_ms: int, chosen: int, frames: tuple[str, ...]
) -> None:
    scene = Scene().thread().thread(OTHER, "handler")
    port = {"protocol": "tcp", "local": "127.0.0.1:80"}
    scene.seen("sockets", pid=PID, inode=7, state="listen", **port)
    scene.seen("sockets", pid=PID, inode=8, state="established", last_received_ms=received_ms, last_sent_ms=900, **port)
    idle = {"object": "socket:[7]", "asked_ns": 500_000_000, "context": "timer", "runnable_ns": 0}
    for second in range(24):
        scene.wait(second / 2, 499, "poll", user=("serve_forever (serve.py:3)",), **idle)
        asked = {"asked_ns": 495_000_000, "context": "timer", "runnable_ns": 0}
        scene.wait(second / 2, 495, "clock_nanosleep", tid=OTHER, user=frames, **asked)
    data = account_of(scene)
    assert data.thread is not None
    # a thread that only the program itself called may sleep between two rounds of background work
    assert data.thread.tid == (chosen if frames is HANDLER else PID)


@pytest.mark.parametrize(("port", "what"), [(80, "events"), (5001, "socket")])
def test_a_server_that_waits_for_a_request_is_idle_and_a_client_waits_for_its_peer(port: int, what: str) -> None:
    scene = Scene().thread()
    scene.seen("sockets", pid=PID, inode=7, protocol="tcp", state="listen", local="127.0.0.1:80")
    scene.seen("sockets", pid=PID, inode=8, protocol="tcp", state="established", local=f"127.0.0.1:{port}")
    for second in range(12):
        scene.wait(second, 900, "recvfrom", object="socket:[8]", context="network", user=("read (s.py:3)",))
    assert account_of(scene, tid=PID).rows[0].what == what


def test_a_launcher_that_sleeps_is_passed_over_for_the_thread_that_works() -> None:
    scene = Scene().thread().thread(OTHER, "trainer", user=60)
    for second in range(12):
        scene.wait(second, 999.9, "clock_nanosleep", user=("watch (run.py:4)",), asked_ns=10**9, runnable_ns=0)
        scene.wait(second, 400, "read", "/data/a.bin", tid=OTHER, state="D", user=("load (train.py:2)",), runnable_ns=0)
    data = account_of(scene)
    assert data.thread is not None
    assert (data.thread.tid, data.chosen_by) == (OTHER, "most_progress")


def test_a_thread_that_is_stuck_counts_only_if_the_job_hangs() -> None:
    scene = Scene().thread().thread(OTHER, "saver")
    for second in range(12):
        scene.wait(second, 999, "clock_nanosleep", user=("pace (train.py:8)",), asked_ns=10**9, runnable_ns=0)
    scene.wait(0, 12_000, "futex", tid=OTHER, lock=64, still=True, seeded=True, user=("save (t.py:3)",), runnable_ns=0)
    for stands_still, chosen in ((False, (PID, "main_thread", OTHER)), (True, (OTHER, "stuck_thread", PID))):
        data = account_of(scene, stands_still=stands_still)
        assert data.thread is not None
        assert data.runner_up is not None
        assert (data.thread.tid, data.chosen_by, data.runner_up.tid) == chosen


def test_a_timer_thread_that_waits_for_the_interpreter_lock_is_passed_over() -> None:
    scene = Scene().thread().thread(OTHER, "handler", user=60)
    for second in range(12):
        scene.wait(second, 940, "clock_nanosleep", user=("reload (serve.py:9)",), asked_ns=940_000_000, runnable_ns=0)
        scene.wait(second + 0.94, 59, "futex", lock=128, context="timer", asked_ns=5_000_000, runnable_ns=0)
        scene.wait(second, 400, "read", "/data/a.bin", tid=OTHER, state="D", user=("load (serve.py:2)",), runnable_ns=0)
    scene.seen("interpreters", pid=PID, word=128)
    data = account_of(scene)
    assert data.thread is not None
    assert data.thread.tid == OTHER


def test_a_main_thread_that_sleeps_while_others_wait_for_it_is_chosen() -> None:
    scene = Scene().thread().thread(OTHER, "loader")
    for second in range(12):
        scene.wait(second, 990, "clock_nanosleep", user=("push (train.py:4)",), asked_ns=10**9, runnable_ns=0)
        woken = {"waker": (PID, PID, "train"), "context": "task", "runnable_ns": 0}
        scene.wait(second, 980, "futex", tid=OTHER, lock=64, user=MAIN, **woken)
    data = account_of(scene)
    assert data.thread is not None
    assert data.thread.tid == PID


def test_a_function_that_comes_back_is_a_pause_with_its_period() -> None:
    scene = Scene().thread(user=20)
    for second in range(12):
        train, save = ("step (train.py:5)", "main (train.py:1)"), ("save (train.py:9)", "main (train.py:1)")
        scene.wait(second, 800, "clock_nanosleep", user=train, asked_ns=800_000_000, runnable_ns=0)
        if second % 3 == 0:
            scene.wait(second + 0.85, 100, "fsync", "/data/c.bin", state="D", user=save, runnable_ns=0)
    (pause,) = account_of(scene).pauses
    assert (pause.function, pause.count) == ("save (train.py)", 4)
    assert pause.period_s == pytest.approx(3.0)
    assert pause.p50_ms == pytest.approx(100, abs=1)


@pytest.mark.parametrize(("failures", "detail"), [(20, "retry fcntl EAGAIN"), (9, "")])
def test_sleeps_between_failing_calls_name_the_call_and_who_has_the_lock(failures: int, detail: str) -> None:
    scene = Scene().thread()
    for number in range(24):
        scene.wait(number / 2, 499, "clock_nanosleep", user=("save (t.py:3)",), asked_ns=499_000_000, runnable_ns=0)
    file = scene.file("/data/runs.db")
    failed = {"pid": PID, "tid": PID, "comm": "train", "syscall": "fcntl", "error": "EAGAIN", "count": failures}
    scene.tables["syscalls.failures"] = [{**failed, "file": file, "object": "", "first_ns": 0, "last_ns": 12 * 10**9}]
    scene.seen("file_locks", pid=THIRD, dev="7:0", ino=file, kind="posix", exclusive=True, path="/data/runs.db")
    found = account_of(scene).rows[0]
    assert (found.what, found.detail) == ("sleep", detail)
    assert (found.object, found.by) == (("/data/runs.db", f"({THIRD})") if detail else ("", ""))


def test_a_wait_in_a_function_that_the_event_loop_called_is_its_lag() -> None:
    loop = ("_run (python3.11/asyncio/events.py:84)", "_run_once (python3.11/asyncio/base_events.py:9)")
    scene = Scene().thread()
    for second in range(12):
        scene.wait(second, 300, "recvfrom", user=("readinto (python3.11/socket.py:706)", "handle (s.py:4)", *loop))
        scene.wait(second + 0.4, 500, "recvfrom", user=("main (s.py:9)",))
    found = account_of(scene).loop
    assert found is not None
    assert (found.line, found.count) == ("handle (s.py:4)", 12)


def test_a_server_in_c_has_a_loop_too() -> None:
    scene = Scene().thread(user=20)
    for number in range(120):
        scene.wait(number / 10, 95 if number % 20 else 5, "epoll_wait", user=("epoll_wait",), runnable_ns=0)
    found = account_of(scene).loop
    assert found is not None
    assert (found.p50_ms, found.max_ms) == (pytest.approx(5, abs=0.1), pytest.approx(95, abs=0.1))


@pytest.mark.parametrize(
    ("received", "sent", "segments", "unanswered"),
    [
        pytest.param(5, 90, (3, 2), 1, id="received last"),
        pytest.param(90, 5, (3, 3), 0, id="sent last"),
        pytest.param(40, 40, (4, 3), 1, id="next request at the answer"),
        pytest.param(40, 40, (3, 3), 0, id="answered at once"),
        pytest.param(40, 40, (-1, -1), 0, id="segments not known"),
        pytest.param(40, 40, (1, 0), 0, id="first request"),
        pytest.param(4000, 4000, (1, 0), 1, id="first request that waits long"),
    ],
)
def test_requests_in_flight(received: int, sent: int, segments: tuple[int, int], unanswered: int) -> None:
    listens = {"inode": 1, "pid": PID, "state": "listen", "local": "0.0.0.0:80", "recv_queue": 0}
    accepted = {"pid": PID, "state": "established", "local": "10.0.0.1:80", "recv_queue": 0}
    times = {"last_received_ms": received, "last_sent_ms": sent}
    counts = dict(zip(("data_segments_in", "data_segments_out"), segments, strict=True))
    objects = Objects(recorded=True, sockets={1: listens, 2: {"inode": 2, **accepted, **times, **counts}})
    assert objects.requests_in_flight(PID) == unanswered
    listens["recv_queue"] = 3
    assert objects.requests_in_flight(PID) == unanswered + 3


@pytest.mark.parametrize("reads", [False, True])
def test_two_that_write_to_each_other_and_do_not_read_wait_in_a_cycle(reads: bool) -> None:
    scene = Scene().thread().thread(PEER, "child", pid=PEER)
    still = {"still": True, "seeded": True, "runnable_ns": 0}
    scene.wait(0, 12_000, "write", object="pipe:[7]", **still)
    scene.wait(0, 12_000, "read" if reads else "write", tid=PEER, object="pipe:[8]", **still)
    for name, reader, writer in (("pipe:[7]", PEER, PID), ("pipe:[8]", PID, PEER)):
        scene.seen("ends", object=name, pid=reader, reads=True, writes=False)
        scene.seen("ends", object=name, pid=writer, reads=False, writes=True)
    found = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, "tid": PID})).findings
    (full,) = (one for one in found if one.kind == "path.wait" and one.attributes["wait"] == "pipe_full")
    expected = ("pipe", None) if reads else ("pipe_full", "yes")
    assert (full.attributes["root_wait"], full.attributes.get("root_mutual")) == expected


def test_rows_that_are_left_out_are_one_row_at_the_end() -> None:
    scene = Scene().thread()
    for number in range(20):
        scene.wait(number / 2, 400 - number, "read", f"/data/{chr(97 + number)}.bin", state="D", runnable_ns=0)
    data = account_of(scene, top=10)
    assert sums_to_the_window(data)
    assert [row.what for row in data.rows] == ["running", *["file"] * 9, "rest"]


def test_waits_too_short_to_be_recorded_singly_are_counted() -> None:
    scene = Scene().thread(user=60)
    for step in range(2400):
        scene.wait(step * 0.005, 2, "read", "/data/a.bin", state="D", user=("load (train.py:2)",))
    data = account_of(scene)
    assert sums_to_the_window(data)
    assert row(data, "file").window_pct == pytest.approx(40, abs=1)


def test_the_process_of_a_job_that_loses_most_is_chosen() -> None:
    scene = Scene().thread()
    scene.wait(0, 12_000, "wait4", still=True, seeded=True, runnable_ns=0)
    for pid, ms in ((5001, 5), (5002, 600)):
        scene.thread(pid, "rank", pid=pid, user=30)
        for second in range(12):
            scene.wait(second, ms, "fsync", "/data/c.bin", tid=pid, state="D", user=("save (t.py:1)",), runnable_ns=0)
    data = account_of(scene)
    assert data.thread is not None
    assert (data.thread.tid, data.chosen_by) == (5002, "main_of_job")


def still(scene: Scene, tid: int = PID, syscall: str = "futex", **more: object) -> None:
    """A thread that waits all the time."""
    scene.wait(0, 12_000, syscall, tid=tid, still=True, seeded=True, runnable_ns=0, **more)


def held(scene: Scene, comm: str, **more: object) -> None:
    """Another process, of which only the last look knows: it is stopped."""
    scene.seen("threads", looks="end", **{"pid": PEER, "tid": PEER, "comm": comm, "state": "T", **more})


def linked(scene: Scene, unread: int) -> None:
    """A connection to a server, which has not read so many bytes."""
    tcp = {"protocol": "tcp", "state": "established"}
    scene.seen("sockets", inode=501, pid=PID, peer=502, local="127.0.0.1:4000", remote="127.0.0.1:80", **tcp)
    server = {"comm": "rank", "local": "127.0.0.1:80", "remote": "127.0.0.1:4000", "recv_queue": unread}
    scene.seen("sockets", inode=502, pid=PEER, peer=501, **server, **tcp)
    scene.seen("sockets", inode=503, pid=PEER, protocol="tcp", state="listen", local="0.0.0.0:80")


REDUCES = ("all_reduce (torch/distributed/distributed_c10d.py:1)", "average (ranks.py:21)")


@pytest.mark.parametrize(
    ("state", "what"), [({}, "stopped"), ({"tracer_pid": 7}, "traced"), ({"state": "S", "frozen": True}, "frozen")]
)
def test_a_collective_ends_in_a_connected_process_that_cannot_run(state: dict[str, object], what: str) -> None:
    scene = Scene().thread()
    still(scene, lock=64, user=REDUCES)
    linked(scene, unread=0)
    held(scene, "rank", **state)
    found = row(account_of(scene), "collective")
    assert (found.root, found.root_what) == ("rank (5000)", what)


def test_a_presumed_end_of_a_chain_confirms_nothing() -> None:
    scene = Scene().thread()
    still(scene, lock=64, user=REDUCES)
    linked(scene, unread=0)
    held(scene, "rank")
    result = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID}))
    (waker,) = [f for f in result.findings if f.kind == "path.waker"]
    assert (waker.subject.pid, waker.attributes["wait"]) == (PEER, "stopped")
    assert "via" not in waker.attributes


@pytest.mark.parametrize(("unread", "what"), [(900, "socket"), (0, "events")])
def test_an_event_loop_waits_for_a_stopped_server_that_it_asked(unread: int, what: str) -> None:
    scene = Scene().thread()
    still(scene, syscall="epoll_wait", object="anon_inode:[eventpoll]", user=("run (loop.py:3)",))
    linked(scene, unread)
    held(scene, "rank")
    found = row(account_of(scene), what)
    assert found.root_what == ("stopped" if unread else "")


@pytest.mark.parametrize(
    ("user", "what"),
    [
        (("sleep (arbiter.py:9)",), "events"),
        (("wait (python3.11/multiprocessing/connection.py:9)", "get (a.py:1)"), "pipe"),
    ],
)
def test_a_loop_that_only_its_own_process_wakes_waits_for_events(user: tuple[str, ...], what: str) -> None:
    scene = Scene().thread()
    scene.wait(0, 12_000, "pselect6", object="pipe:[9]", fd=5, user=user, asked_ns=10**9, runnable_ns=0)
    scene.seen("ends", looks="end", object="pipe:[9]", pid=PID, reads=True, writes=True)
    assert account_of(scene).rows[0].what == what


def test_of_several_writers_of_a_pipe_the_stopped_one_is_taken() -> None:
    scene = Scene().thread()
    still(scene, syscall="read", object="pipe:[9]", user=("get (q.py:1)",))
    for pid in (6000, PEER):
        scene.seen("ends", looks="end", object="pipe:[9]", pid=pid, writes=True)
    scene.seen("threads", looks="end", pid=6000, tid=6000, comm="worker", state="S", syscall="read")
    held(scene, "worker")
    found = row(account_of(scene), "pipe")
    assert (found.root, found.root_what) == ("worker (5000)", "stopped")


def test_a_file_operation_ends_in_the_stopped_server_of_its_file_system() -> None:
    scene = Scene().thread()
    still(
        scene, syscall="openat", state="D", stack=("request_wait_answer", "fuse_simple_request"), user=("f (a.py:1)",)
    )
    scene.seen("threads", pid=PID, tid=PID, comm="train", state="D", syscall="openat", object="/mnt/a.bin")
    scene.seen("ends", looks="end", object="/mnt/a.bin", pid=PEER, reads=True, writes=True)
    held(scene, "filed")
    found = row(account_of(scene), "file")
    assert (found.root, found.root_what) == ("filed (5000)", "stopped")


@pytest.mark.parametrize(
    ("comm", "ppid", "far", "by"),
    [("train", 1, "", "train (5000)"), ("rank", 1, "", ""), ("train", PEER, "", ""), ("train", 1, "10.0.0.9:1", "")],
)
def test_a_collective_that_stays_ends_in_the_only_other_rank(comm: str, ppid: int, far: str, by: str) -> None:
    scene = Scene().thread().process(PID, "train", ppid=ppid)
    if far:
        scene.seen("sockets", inode=505, pid=PID, protocol="tcp", state="established", local="10.0.0.1:2", remote=far)
    still(scene, lock=64, user=REDUCES)
    linked(scene, unread=0)
    for one in scene.tables["objects.sockets"]:
        one["comm"] = comm
    waiting = {"state": "S", "syscall": "clock_nanosleep", "wchan": "hrtimer_nanosleep"}
    scene.seen("threads", looks="end", pid=PEER, tid=PEER, comm=comm, **waiting)
    found = row(account_of(scene), "collective")
    assert (found.root, found.root_what) == (by, "sleep" if by else "")


def test_a_full_connection_ends_in_its_slow_reader_on_this_host() -> None:
    scene = Scene().thread(user=10)
    linked(scene, unread=0)
    scene.pids[PEER] = PEER
    for second in range(12):
        ack = {"context": "network", "waker_syscall": "recvfrom", "object": "socket:[501]", "runnable_ns": 0}
        scene.wait(second, 900, "sendto", user=("export (gateway.py:7)",), waker=(PEER, PEER, "rank"), **ack)
        scene.wait(second, 895, "clock_nanosleep", tid=PEER, user=("view (viewer.py:3)",), runnable_ns=0)
    found = row(account_of(scene), "socket_full")
    assert (found.root, found.root_what, found.root_line) == ("train (5000)", "sleep", "view (viewer.py:3)")


@pytest.mark.parametrize(("remote", "by"), [("10.0.0.2:80", ""), ("127.0.0.1:80", "tunnel (6000)")])
def test_who_forwards_packets_is_not_who_is_waited_for(remote: str, by: str) -> None:
    scene = Scene().thread(user=10)
    scene.seen("sockets", inode=501, pid=PID, protocol="tcp", state="established", local="10.0.0.1:4", remote=remote)
    for second in range(12):
        ended = {"context": "task", "waker_syscall": "write", "runnable_ns": 0}
        scene.wait(second, 900, "epoll_wait", user=("loop (x.py:1)",), waker=(6000, 6000, "tunnel"), **ended)
    assert {one.by for one in account_of(scene).rows if one.count == 12} == {by}


def test_a_thread_of_one_request_did_not_run_all_along() -> None:
    scene = Scene().thread(OTHER, "handler").thread(user=1)
    of_other = [one for one in scene.tables["proc.threads"] if one["tid"] == OTHER]
    for one in of_other[:5] + of_other[6:]:
        scene.tables["proc.threads"].remove(one)
    for second in range(12):
        scene.wait(second, 990, "clock_nanosleep", user=("pace (train.py:8)",), asked_ns=990_000_000, runnable_ns=0)
    data = account_of(scene)
    assert data.thread is not None
    assert data.thread.tid == PID


def test_the_timers_of_an_event_loop_are_its_idle_state() -> None:
    scene = Scene().thread()
    loop = ("select (python3.11/selectors.py:468)", "_run_once (python3.11/asyncio/base_events.py:1884)", "a (s.py:9)")
    for second in range(12):
        scene.wait(second, 990, "epoll_wait", asked_ns=990_000_000, context="timer", user=loop, runnable_ns=0)
    assert {one.what for one in account_of(scene, tid=PID).rows if one.count} <= {"events", "running"}


def test_a_shell_that_started_the_job_in_the_window_is_passed_over() -> None:
    scene = Scene().thread(comm="bash").thread(5001, "train", pid=5001, user=90)
    scene.process(PID, "bash").process(5001, "train", ppid=PID)
    ended = {"waker": (5000, 5000, "sleep"), "context": "task", "runnable_ns": 0}
    scene.wait(0, 2_000, "wait4", seeded=True, **ended)
    scene.wait(2, 10_000, "wait4", still=True, runnable_ns=0)
    for second in range(2, 12):
        scene.wait(second, 100, "fsync", "/data/c.bin", tid=5001, state="D", user=("save (t.py:1)",), runnable_ns=0)
    data = account_of(scene)
    assert data.thread is not None
    assert data.thread.tid == 5001


def test_a_poll_that_began_before_the_window_gets_its_descriptor_from_the_snapshot() -> None:
    scene = Scene().thread()
    still(scene, syscall="poll", asked_ns=10**11, fd=FD_UNREAD, user=("ask (client.py:3)",))
    scene.seen("threads", pid=PID, tid=PID, state="S", syscall="poll", object="socket:[501]", fd=4)
    linked(scene, 0)
    waits = row(account_of(scene), "socket")
    assert (waits.line, waits.object) == ("ask (client.py:3)", f"rank ({PEER})")


def test_a_poll_of_unknown_descriptors_is_no_sleep() -> None:
    scene = Scene().thread()
    still(scene, syscall="poll", asked_ns=10**11, fd=FD_UNREAD, user=("ask (client.py:3)",))
    assert account_of(scene).rows[0].what == "events"


def test_threads_of_a_server_that_answer_in_turn_count_as_one() -> None:
    scene = Scene().thread(user=10)
    for tid in (PEER + 1, PEER + 2, PEER + 3):
        scene.thread(tid, "objectd", pid=PEER)
        scene.pids[tid] = PEER
    for second in range(12):
        for part in range(3):
            at, tid = second + part * 0.3, PEER + 1 + part
            woken = {"waker": (PEER, tid, "objectd"), "context": "task", "runnable_ns": 0}
            scene.wait(at, 290, "newfstatat", stack=("request_wait_answer",), user=("look (train.py:7)",), **woken)
            scene.wait(at, 289, "clock_nanosleep", tid=tid, user=("answer (fs.py:3)",), runnable_ns=0)
    found = row(account_of(scene), "file")
    assert (found.root_what, found.root_line) == ("sleep", "answer (fs.py:3)")
    assert found.root.startswith("objectd (")
    assert found.root_pct == pytest.approx(100, abs=1)


def test_the_file_of_a_call_in_progress_is_named() -> None:
    scene = Scene().thread()
    waits = {"stack": ("request_wait_answer",), "user": ("look (train.py:7)",), "still": True, "seeded": True}
    scene.wait(0, 12_000, "newfstatat", runnable_ns=0, **waits)
    scene.seen("threads", pid=PID, tid=PID, state="S", syscall="newfstatat", object="/mnt/data/a.bin")
    found = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID})).findings
    (waits_,) = (one for one in found if one.kind == "path.wait")
    assert waits_.subject.path == "/mnt/data/a.bin"


def test_a_stopped_process_ends_the_chain_and_who_let_it_run_again_is_named() -> None:
    scene = Scene().thread(user=20).thread(PEER, "server", pid=PEER).thread(PEER + 9, "limiter", pid=PEER + 9)
    scene.pids |= {PEER: PEER, PEER + 9: PEER + 9}
    for second in range(12):
        answered = {"waker": (PEER, PEER, "server"), "context": "task", "runnable_ns": 0, "waker_syscall": "sendto"}
        scene.wait(second, 700, "recvfrom", object="socket:[501]", user=("ask (client.py:7)",), **answered)
        signal = {"waker": (PEER + 9, PEER + 9, "limiter"), "context": "signal", "runnable_ns": 0}
        scene.wait(second, 690, "", tid=PEER, state="T", stack=("do_signal_stop",), **signal)
        scene.wait(second, 690, "clock_nanosleep", tid=PEER + 9, user=("throttle (l.py:6)",), runnable_ns=0)
    found = row(account_of(scene), "socket")
    assert (found.root, found.root_what) == ("server (5000)", "stopped")
    assert found.chain.endswith("of limiter (5009)")


@pytest.mark.parametrize("others", [[], [PEER]])
def test_a_pipe_that_only_a_dead_child_could_fill(others: list[int]) -> None:
    scene = Scene().thread().process(77, "worker", ppid=PID)
    for process in scene.tables["proc.processes"]:
        process |= {"state": "Z", "exit_code": 9}
    waits = {"object": "pipe:[7]", "user": ("next_batch (train.py:4)",), "still": True, "seeded": True}
    scene.wait(0, 12_000, "read", runnable_ns=0, **waits)
    scene.seen("threads", pid=PID, tid=PID, state="S", syscall="read", object="pipe:[7]")
    for pid in (PID, *others):
        scene.seen("ends", object="pipe:[7]", pid=pid, fd=5, reads=pid == PID, writes=True)
    found = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID})).findings
    (row_,) = (one for one in found if one.kind == "path.wait")
    ended = {"root_wait": "ended", "root_by": "worker (77)", "root_object": "signal 9"}
    assert (ended.items() <= row_.attributes.items()) is (not others)
