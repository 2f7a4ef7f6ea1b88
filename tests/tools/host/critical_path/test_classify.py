"""What a wait is for, from its system call, kernel stack, object and Python frames.

The kernel stacks are written by hand, with function names of Linux 6.18 on x86-64; those marked 5.10 have the names of
that version.
"""

from __future__ import annotations

from typing import Any

import pytest

from whystall.tools.collect.tables import FD_UNREAD
from whystall.tools.host.common.path_codes import WAITS
from whystall.tools.host.common.places import Place, place_of_calls, place_of_texts
from whystall.tools.host.common.running_kinds import running_kind, spinning_wait
from whystall.tools.host.common.timelines import Wait
from whystall.tools.host.common.wait_kinds import Kind, overslept, wait_kind

FUTEX = "futex_do_wait __futex_wait futex_wait do_futex __x64_sys_futex"
FUTEX_5_10 = "futex_wait_queue_me futex_wait do_futex __x64_sys_futex"
POLL = "poll_schedule_timeout.constprop.0 do_sys_poll __x64_sys_poll"
SLEEP = "hrtimer_nanosleep common_nsleep_timens __x64_sys_clock_nanosleep"
RECEIVE = "wait_woken sk_wait_data tcp_recvmsg_locked tcp_recvmsg sock_recvmsg __sys_recvfrom __x64_sys_recvfrom"
FAULT = "filemap_fault __do_fault do_fault handle_mm_fault do_user_addr_fault exc_page_fault asm_exc_page_fault"
RECLAIM = "shrink_lruvec shrink_node do_try_to_free_pages try_to_free_mem_cgroup_pages try_charge_memcg"
FROZEN = "percpu_rwsem_wait __percpu_down_read"
LINE = "step (train.py:7)"
WAITS_ON_CONDITION = "Condition.wait (python3.11/threading.py:327)"
ENTERS_SEMAPHORE = "SemLock.__enter__ (python3.11/multiprocessing/synchronize.py:95)"
SOCKET, PIPE, EPOLL = "socket:[7]", "pipe:[7]", "anon_inode:[eventpoll]"


def made(call: str, kernel: str, frames: tuple[str, ...] = (LINE,), **members: Any) -> Wait:
    nobody = {"context": "", "waker_pid": 0, "waker_tid": 0, "waker_comm": "", "waker_syscall": ""}
    nothing = {"path": "", "fstype": "", "object": "", "lock": 0, "asked_ns": -1, "ran_pid": -1, "ran_comm": ""}
    plain = {"start_ns": 0, "awake_ns": 1, "end_ns": 1, "state": "S", "open": False, "seeded": False}
    stack = (*kernel.split(), "do_syscall_64", "entry_SYSCALL_64_after_hwframe")
    given = {"syscall": call, "kernel": stack, "place": place_of_texts(frames)}
    return Wait(**{**nobody, **nothing, **plain, **given, **members})


CASES: list[tuple[str, Wait]] = [
    ("sleep", made("clock_nanosleep", SLEEP, asked_ns=5)),
    ("sleep", made("pselect6", "poll_schedule_timeout do_select core_sys_select __x64_sys_pselect6", asked_ns=5)),
    ("sleep", made("poll", POLL, asked_ns=5)),
    ("events", made("poll", POLL, asked_ns=5, fd=FD_UNREAD)),
    ("events", made("pselect6", "do_select __x64_sys_pselect6", asked_ns=5, fd=FD_UNREAD)),
    ("socket", made("pselect6", "do_select __x64_sys_pselect6", asked_ns=5, fd=7, object=SOCKET)),
    ("sleep", made("restart_syscall", "do_nanosleep hrtimer_nanosleep hrtimer_nanosleep_restart")),
    ("lock", made("futex", FUTEX)),
    ("lock", made("futex", FUTEX_5_10)),
    ("lock", made("futex", FUTEX, ("[libc.so.6+0x85e50]", "Condition.__enter__ (python3.11/threading.py:276)", LINE))),
    ("lock", made("futex", FUTEX, ("pthread_mutex_lock", "[libx.so+0x1]", LINE))),
    ("lock", made("futex", FUTEX, ("pthread_cond_signal", LINE))),
    ("lock", made("restart_syscall", "futex_do_wait __futex_wait futex_wait futex_wait_restart")),
    ("interpreter_lock", made("futex", FUTEX, lock=64)),
    ("interpreter_lock", made("futex", FUTEX, ("pthread_cond_timedwait", "take_gil", LINE))),
    ("queue", made("futex", FUTEX, ("Condition.wait (python3.11/threading.py:327)", LINE))),
    ("queue", made("futex", FUTEX, ("Queue.get (python3.11/queue.py:171)", LINE))),
    ("queue", made("futex", FUTEX, (WAITS_ON_CONDITION, "Queue.get (python3.11/queue.py:171)", LINE))),
    ("queue", made("futex", FUTEX, (ENTERS_SEMAPHORE, "SimpleQueue.get (python3.11/multiprocessing/queues.py:364)"))),
    ("lock", made("futex", FUTEX, (ENTERS_SEMAPHORE, "SimpleQueue.put (python3.11/multiprocessing/queues.py:375)"))),
    ("lock", made("futex", FUTEX, (ENTERS_SEMAPHORE, LINE))),
    (
        "lock",
        made(
            "futex", FUTEX, ("Condition.__enter__ (python3.11/threading.py:276)", "Queue.put (python3.11/queue.py:133)")
        ),
    ),
    ("queue_full", made("futex", FUTEX, (WAITS_ON_CONDITION, "Queue.put (python3.11/queue.py:140)", LINE))),
    ("queue_full", made("futex", FUTEX, ("Queue.put (python3.11/multiprocessing/queues.py:88)", LINE))),
    ("queue", made("futex", FUTEX, ())),
    (
        "barrier",
        made(
            "futex",
            FUTEX,
            ("Condition.wait (python3.11/threading.py:327)", "Barrier._wait (python3.11/threading.py:714)", LINE),
        ),
    ),
    ("barrier", made("futex", FUTEX, ("gomp_team_barrier_wait_end", LINE))),
    ("barrier", made("futex", FUTEX, ("pthread_barrier_wait", LINE))),
    ("join", made("futex", FUTEX, ("Thread._wait_for_tstate_lock (python3.11/threading.py:1139)", LINE))),
    ("join", made("futex", FUTEX, ("pthread_join", LINE))),
    ("collective", made("futex", FUTEX, ("gloo::transport::tcp::UnboundBuffer::waitRecv", LINE))),
    ("pipe", made("read", "anon_pipe_read vfs_read ksys_read", object=PIPE)),
    ("pipe", made("read", "pipe_read new_sync_read vfs_read ksys_read", object=PIPE)),  # 5.10
    ("pipe", made("poll", POLL, object=PIPE, asked_ns=5)),
    ("pipe_full", made("write", "anon_pipe_write vfs_write ksys_write", object=PIPE)),
    ("pipe_full", made("write", "pipe_write new_sync_write vfs_write ksys_write", object=PIPE)),  # 5.10
    ("socket", made("recvfrom", RECEIVE, object=SOCKET)),
    ("socket", made("recvfrom", "unix_stream_read_generic unix_stream_recvmsg sock_recvmsg __sys_recvfrom")),
    ("socket", made("poll", POLL, object=SOCKET, asked_ns=5)),
    ("socket", made("restart_syscall", "poll_schedule_timeout do_sys_poll do_restart_poll", object=SOCKET)),
    ("socket_full", made("sendto", "wait_woken sk_stream_wait_memory tcp_sendmsg_locked tcp_sendmsg __sys_sendto")),
    ("socket_full", made("sendto", "sock_alloc_send_pskb unix_stream_sendmsg __sys_sendto")),
    ("socket_full", made("sendto", "schedule_timeout unix_wait_for_peer unix_dgram_sendmsg __sys_sendto")),
    ("connect", made("connect", "schedule_timeout unix_wait_for_peer unix_stream_connect __sys_connect")),
    ("connect", made("connect", "inet_wait_for_connect __inet_stream_connect inet_stream_connect __sys_connect")),
    ("dns", made("poll", POLL, ("getaddrinfo (python3.11/socket.py:962)", LINE), object=SOCKET, asked_ns=5)),
    ("dns", made("poll", POLL, ("[libc.so.6+0x1]", "__res_context_send", "getaddrinfo", LINE), asked_ns=5)),
    ("events", made("epoll_wait", "do_epoll_wait __x64_sys_epoll_wait", object=EPOLL)),
    ("events", made("epoll_wait", "ep_poll do_epoll_wait __x64_sys_epoll_wait")),  # 5.10
    ("events", made("accept4", "inet_csk_accept inet_accept do_accept __sys_accept4", object=SOCKET)),
    ("child", made("wait4", "do_wait kernel_wait4")),
    (
        "start_process",
        made("vfork", "__wait_for_common wait_for_completion_state kernel_clone __do_sys_vfork", state="D"),
    ),
    ("start_process", made("clone3", "__wait_for_common kernel_clone __do_sys_clone3", state="D")),
    (
        "file",
        made("fsync", "folio_wait_bit folio_wait_writeback ext4_sync_file", path="/d/a", fstype="ext4", state="D"),
    ),
    ("file", made("read", "request_wait_answer fuse_simple_request fuse_file_read_iter", path="/m/a", fstype="fuse")),
    ("file_lock", made("flock", "locks_lock_inode_wait __do_sys_flock", path="/d/l")),
    ("file_lock", made("openat", "schedule_timeout __break_lease do_dentry_open vfs_open path_openat", path="/d/l")),
    ("queue_full", made("msgsnd", "do_msgsnd __x64_sys_msgsnd")),
    ("queue_full", made("mq_timedsend", "wq_sleep do_mq_timedsend __x64_sys_mq_timedsend")),
    ("page_fault", made("", "handle_userfault do_anonymous_page handle_mm_fault asm_exc_page_fault")),
    ("page_fault", made("", f"folio_wait_bit_common {FAULT}", path="/d/table.bin", fstype="ext4", state="D")),
    ("swap", made("", "folio_wait_bit_common do_swap_page handle_mm_fault asm_exc_page_fault", state="D")),
    ("memory", made("", f"{RECLAIM} {FAULT}", state="D")),
    (
        "memory",
        made("write", "io_schedule_timeout balance_dirty_pages ext4_buffered_write_iter", path="/d/a", state="D"),
    ),
    ("cpu", made("", "schedule irqentry_exit_to_user_mode", state="R")),
    ("device", made("ioctl", "nvidia_ioctl nvidia_unlocked_ioctl __x64_sys_ioctl")),
    ("device", made("ioctl", "schedule_timeout __x64_sys_ioctl", path="/dev/nvidia0")),
    ("device", made("futex", FUTEX, ("[libc.so.6+0x85e50]", "[libcuda.so.550.54+0x2f1c0]", LINE))),
    ("device", made("poll", POLL, ("synchronize (torch/cuda/__init__.py:954)", LINE), asked_ns=5)),
    ("device", made("clock_nanosleep", SLEEP, ("clock_nanosleep", "aclrtSynchronizeStream", LINE), asked_ns=5)),
    ("io_uring", made("io_uring_enter", "io_cqring_wait __do_sys_io_uring_enter")),
    ("io_uring", made("io_getevents", "read_events do_io_getevents __x64_sys_io_getevents")),
    ("terminal", made("read", "wait_woken n_tty_read tty_read vfs_read ksys_read", path="/dev/pts/0")),
    ("signal", made("rt_sigtimedwait", "do_sigtimedwait.isra.0 __x64_sys_rt_sigtimedwait", asked_ns=5)),
    ("ended", made("", "", state="Z", object="signal 9")),
    ("stopped", made("read", "do_signal_stop get_signal arch_do_signal_or_restart", path="/d/a")),
    ("traced", made("read", "ptrace_stop ptrace_do_notify get_signal", path="/d/a")),
    ("frozen", made("futex", "do_freezer_trap get_signal arch_do_signal_or_restart")),
    (
        "frozen_files",
        made(
            "write", "percpu_rwsem_wait __percpu_down_read vfs_write ksys_write", path="/d/a", fstype="ext4", state="D"
        ),
    ),
    (
        "frozen_files",
        made("openat", f"{FROZEN} mnt_want_write open_last_lookups", state="D"),
    ),
    (
        "frozen_files",
        made("", "percpu_rwsem_wait __percpu_down_read ext4_page_mkwrite do_page_mkwrite do_wp_page", state="D"),
    ),
    ("frozen_files", made("write", "schedule __sb_start_write vfs_write ksys_write", path="/d/a", state="D")),  # 5.10
    ("other", made("restart_syscall", "percpu_rwsem_wait __percpu_down_read cgroup_can_fork copy_process")),
    ("other", made("restart_syscall", "schedule_timeout strange_wait")),
    ("unknown", made("", "")._replace(kernel=())),
]


def test_a_wait_for_a_terminal_tells_output_from_input() -> None:
    full = made("write", "wait_woken n_tty_write file_tty_write", path="/dev/pts/0")
    assert wait_kind(full) == Kind("terminal", "write")
    assert wait_kind(full._replace(kernel=())) == Kind("terminal", "write")


def test_an_access_that_another_process_must_allow_or_serve_is_told_from_a_slow_file() -> None:
    opening = "fanotify_handle_event fsnotify __fsnotify_parent do_dentry_open vfs_open path_openat"
    served = "handle_userfault do_anonymous_page handle_mm_fault asm_exc_page_fault"
    assert wait_kind(made("openat", opening, state="D")) == Kind("file", "openat fanotify")
    assert wait_kind(made("", served)) == Kind("page_fault", "userfaultfd")
    full = "mem_cgroup_oom_synchronize __pagefault_out_of_memory mm_fault_error do_user_addr_fault exc_page_fault"
    assert wait_kind(made("", full)) == Kind("memory", "full")


# Decided from more than one wait, or from its socket or cgroup.
ELSEWHERE = {"timeout", "poll", "quota"}


@pytest.mark.parametrize(("code", "wait"), CASES, ids=[f"{n}-{code}" for n, (code, _) in enumerate(CASES)])
def test_a_wait_is_classified_by_its_call_stack_and_object(code: str, wait: Wait) -> None:
    assert wait_kind(wait, gil_words={64}).code == code


def test_every_kind_of_wait_has_a_case() -> None:
    assert {code for code, _ in CASES} == set(WAITS) - ELSEWHERE


FORKED = (
    ("_recv", "python3.11/multiprocessing/connection.py", 384),
    ("Process.run", "python3.11/multiprocessing/process.py", 108),
    ("Popen._launch", "python3.11/multiprocessing/popen_fork.py", 71),
    ("start_workers", "train.py", 7),
)


def test_a_worker_is_not_at_the_line_where_its_parent_forked_it() -> None:
    forked = [f"{name} ({file}:{line})" for name, file, line in FORKED]
    sampled = [(name, f"/usr/lib/{file}", line, "python") for name, file, line in FORKED]
    assert place_of_texts(forked).line == place_of_calls(sampled).line == forked[0]
    assert place_of_texts(["decode (data.py:3)", *forked]).functions == (("decode", "data.py"),)


def sampled(*native: tuple[str, str]) -> Place:
    frames = [(name, module, 0, "native") for name, module in native]
    return place_of_calls([*frames, ("step", "/job/train.py", 7, "python"), ("main", "/usr/bin/python3", 0, "native")])


def test_running_in_a_synchronising_call_is_a_wait_for_the_device_and_other_calls_of_a_driver_are_not() -> None:
    waits = sampled(("[libcuda.so.1+0x10]", "/usr/lib/libcuda.so.1"), ("cudaStreamSynchronize", "/x/libcudart.so.12"))
    unnamed = sampled(("[libcuda.so.1+0x10]", "/usr/lib/libcuda.so.1"))
    assert (spinning_wait(waits), waits.line) == ("device", LINE)
    assert spinning_wait(unnamed) == ""
    assert unnamed.in_driver
    assert not sampled(("dgemm_kernel", "/x/libopenblas.so")).in_driver


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("[garbage collector]", "garbage_collection"),
        ("visit_decref", "garbage_collection"),
        ("list_traverse", "garbage_collection"),
        ("gc_collect_main.constprop.0", "garbage_collection"),
        ("list_sort", "user"),
        ("traverse_tree", "user"),
    ],
)
def test_garbage_collection_is_recognised_by_its_functions(name: str, mode: str) -> None:
    assert running_kind(sampled((name, "/usr/bin/python3.11")), ()) == Kind(mode)


@pytest.mark.parametrize(
    ("file", "module", "interpreted"),
    [
        ("/usr/lib/python3.11/random.py", "", True),
        ("/usr/lib/python3.11/json/decoder.py", "/usr/lib/python3.11/lib-dynload/_json.cpython-311.so", True),
        ("/usr/lib/python3.11/logging/__init__.py", "", False),
        ("/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", "", False),
        ("/usr/lib/python3.11/random.py", "/v/site-packages/numpy/core/_multiarray_umath.so", False),
    ],
)
def test_the_standard_library_counts_as_the_programs_own_work_unless_it_has_a_role(
    file: str, module: str, interpreted: bool
) -> None:
    native = [("work", module, 0, "native")] if module else []
    frames = [*native, ("called", file, 3, "python"), ("step", "/job/train.py", 7, "python")]
    assert place_of_calls(frames).interpreted is interpreted


GENERATED = "<module> (cuc4bmo3wh645burzoh5dhc37fkajbsxhnatkjy6kowicfb3hkwn.py:179)"


@pytest.mark.parametrize(
    ("frames", "role"),
    [
        (("Popen.communicate (python3.11/subprocess.py:1196)", "build (torch/_inductor/cpp_builder.py:7)"), "compile"),
        (
            ("Condition.wait (python3.11/threading.py:327)", GENERATED, "load (torch/_inductor/codecache.py:3)"),
            "compile",
        ),
        (("Popen.wait (python3.11/subprocess.py:9)", "load (torch/utils/cpp_extension.py:9)"), "compile"),
        (("Adam.step (torch/optim/adam.py:5)", "_fn (torch/_dynamo/eval_frame.py:7)"), ""),
        (("Runner.call " + GENERATED[9:], "__call__ (torch/_inductor/output_code.py:3)"), ""),
        (("Popen.wait (python3.11/subprocess.py:9)", "_fn (torch/_dynamo/eval_frame.py:7)"), "subprocess"),
    ],
)
def test_compiling_is_distinguished_from_running_what_was_compiled(frames: tuple[str, ...], role: str) -> None:
    place = place_of_texts((*frames, LINE))
    assert (place.role, place.line) == (role, LINE)


def test_code_of_an_unknown_module_is_not_taken_for_the_interpreters() -> None:
    frames = [("[unknown]", "", 0, "native"), ("step", "/job/train.py", 7, "python")]
    assert not place_of_calls(frames).interpreted


def test_a_thread_that_yields_spins_and_one_in_a_call_or_fault_is_in_the_kernel() -> None:
    place = sampled(("x", "/x/libx.so"))
    assert running_kind(place, ("schedule", "__x64_sys_sched_yield")).code == "spin"
    assert running_kind(place, ("copy_page_to_iter", "__x64_sys_read")) == Kind("system", "read")
    assert running_kind(place, ("clear_page_erms", "handle_mm_fault", "asm_exc_page_fault")).code == "fault"
    assert running_kind(place, ("lzo1x_decompress_safe", "do_swap_page", "asm_exc_page_fault")).code == "swap_in"
    assert running_kind(place, ("copy_mc_to_kernel", "wp_page_copy", "asm_exc_page_fault")).code == "copy"
    assert running_kind(place, ("wp_page_reuse", "handle_mm_fault")).code == "fault"
    assert running_kind(place, ("handle_softirqs", "irq_exit_rcu")).code == "interrupt"


@pytest.mark.parametrize(
    ("took_s", "without_cpu_s", "context", "asked_s", "expected"),
    [
        (2.4, 0.0, "task", 0.1, True),
        (2.4, 0.0, "timer", 0.1, False),
        (2.4, 2.3, "task", 0.1, False),
        (2.4, 0.0, "", 0.1, False),
        (1.0, 0.0, "task", 0.1, False),
        (2.4, 0.0, "task", 2.0, False),
        (2.4, 0.0, "task", -1e-9, False),
    ],
)
def test_a_sleep_that_another_process_ended_much_too_late_was_frozen(
    took_s: float, without_cpu_s: float, context: str, asked_s: float, expected: bool
) -> None:
    end, ready = (round(seconds * 1e9) for seconds in (took_s, took_s - without_cpu_s))
    times = {"awake_ns": ready, "end_ns": end, "asked_ns": round(asked_s * 1e9), "context": context}
    assert overslept(made("clock_nanosleep", SLEEP, **times)) is expected
