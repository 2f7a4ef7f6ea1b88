"""Whether the threads of a job wait for each other only, so that none will go on."""

from __future__ import annotations

from typing import Any

import pytest
from recordings import PID, Scene

from whystall.tools.host.critical_path.tool import TOOL, Data
from whystall.tools.recording.judging import judge

OTHER, STRANGER = 4101, 99
RESULT = ("Condition.wait (python3.11/threading.py:327)", "Queue.get (python3.11/queue.py:171)", "run (job.py:9)")


def standstill(syscall: str = "futex", limited: int = 0, **more: Any) -> str:
    """Return what is found of a thread that waits for a result, beside another thread in the wait `syscall`."""
    scene = Scene().thread().thread(OTHER, "worker")
    still = {"still": True, "seeded": True, "runnable_ns": 0}
    scene.wait(0, 12_000, "futex", lock=64, user=RESULT, **still)
    scene.wait(0, 12_000, syscall, tid=OTHER, user=RESULT[1:], **{**still, **more})
    scene.seen("threads", pid=PID, tid=PID, state="S", syscall="futex", limited=0)
    scene.seen(
        "threads", pid=PID, tid=OTHER, state="S", syscall=syscall, limited=limited, object=more.get("object", "")
    )
    scene.seen("ends", object="pipe:[7]", pid=PID, reads=True, writes=True)
    scene.seen("ends", object="pipe:[8]", pid=STRANGER, reads=False, writes=True)
    data = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, "tid": PID})).data
    assert isinstance(data, Data)
    return data.rows[0].standstill


@pytest.mark.parametrize(
    ("other", "stands"),
    [
        ({"lock": 96}, "yes"),
        ({"lock": 96, "limited": 1}, ""),
        ({"lock": 96, "limited": -1}, ""),
        ({"syscall": "read", "object": "pipe:[7]"}, "yes"),
        ({"syscall": "read", "object": "pipe:[8]"}, ""),
        ({"syscall": "openat", "object": "/run/queue", "stack": ("wait_for_partner", "fifo_open")}, ""),
        ({"syscall": "recvfrom", "object": "socket:[9]"}, ""),
        ({"syscall": "clock_nanosleep"}, ""),
    ],
    ids=["queue", "time-out", "not known", "own pipe", "pipe of another", "FIFO", "socket", "sleep"],
)
def test_a_job_stands_still_if_its_threads_wait_for_each_other(other: dict[str, Any], stands: str) -> None:
    assert standstill(**other) == stands


@pytest.mark.parametrize(("state", "stands"), [("Z", "yes"), ("S", "")])
def test_a_process_of_the_job_that_has_ended_does_not_go_on_either(state: str, stands: str) -> None:
    scene = Scene().process(PID, "train").thread()
    scene.process(5001, "part", ppid=PID)
    for process in (row for row in scene.tables["proc.processes"] if row["pid"] == 5001):
        process |= {"state": state, "exit_code": 0}
    scene.wait(0, 12_000, "futex", lock=64, user=RESULT, still=True, seeded=True, runnable_ns=0)
    scene.seen("threads", pid=PID, tid=PID, state="S", syscall="futex", limited=0)
    scene.seen("threads", pid=5001, tid=5001, state=state, syscall="")
    data = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, "tid": PID})).data
    assert isinstance(data, Data)
    assert data.rows[0].standstill == stands


@pytest.mark.parametrize(
    ("members", "limited", "hangs", "stands"),
    [
        (["socket:[11]"], 0, True, "yes"),
        (["socket:[11]", "anon_inode:[eventfd:5]"], 0, True, "yes"),
        (["socket:[11]"], 0, False, ""),
        (["socket:[11]"], 1, True, ""),
        (["socket:[11]", "socket:[21]"], 0, True, ""),
        (["socket:[11]", "socket:[31]"], 0, True, ""),
        (["socket:[11]", "anon_inode:[timerfd]"], 0, True, ""),
        (["socket:[11]", ""], 0, True, ""),
        ([], 0, True, ""),
    ],
    ids=["own pair", "eventfd", "no complaint", "timer", "server", "listens", "timerfd", "unread", "unknown"],
)
def test_an_event_loop_that_only_its_own_job_could_wake(
    members: list[str], limited: int, hangs: bool, stands: str
) -> None:
    poll = ("EpollSelector.select (python3.11/selectors.py:468)", "BaseEventLoop._run_once (python3.11/asyncio/x.py:1)")
    scene = Scene().thread()
    still = {"still": True, "seeded": True, "runnable_ns": 0, "object": "anon_inode:[eventpoll]"}
    scene.wait(0, 12_000, "epoll_wait", user=(*poll, "<module> (job.py:9)"), **still)
    scene.seen("threads", pid=PID, tid=PID, state="S", syscall="epoll_wait", limited=limited)
    for name in members:
        scene.seen("members", pid=PID, tid=PID, fd=5, object=name)
    unix, tcp = {"family": "unix", "state": "established"}, {"protocol": "tcp", "family": "inet"}
    scene.seen("sockets", inode=11, peer=12, pid=PID, **unix)
    scene.seen("sockets", inode=12, peer=11, pid=PID, **unix)
    scene.seen("sockets", inode=21, pid=PID, state="established", remote="10.0.0.9:80", **tcp)
    scene.seen("sockets", inode=31, pid=PID, state="listen", local="0.0.0.0:80", **tcp)
    scene.seen("ends", object="anon_inode:[eventfd:5]", pid=PID, reads=True, writes=True)
    params = {"pid": PID, "tid": PID, "stands_still": hangs}
    result = judge(TOOL, scene.build(), TOOL.params.model_validate(params))
    assert isinstance(result.data, Data)
    assert (result.data.rows[0].what, result.data.rows[0].standstill) == ("events", stands)
    (row,) = [one for one in result.findings if one.kind == "path.wait"]
    assert (row.polarity.value == "abnormal") is bool(stands)
