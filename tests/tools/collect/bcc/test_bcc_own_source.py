"""The text of our own programs for BCC, and the plan of their child."""

from __future__ import annotations

import base64
import ctypes as ct
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from whystall.bpf import layout as lay
from whystall.bpf import syscalls
from whystall.tools.collect.bcc import own_source
from whystall.tools.collect.options import SyscallOptions
from whystall.tools.recording.collector import Options
from whystall.tools.recording.target import Target

ONE = Target(everything=False, pid=7, pids=[7, 9], follow=True)
HOST = Target(everything=True)
ALL = {name: Options() for name in sorted(own_source.SERVES)}


def settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#define ([A-Z_]+) (\S+)$", text.split("/* SPDX", 1)[0], re.MULTILINE))


def test_a_plan_is_plain_data() -> None:
    plan = own_source.plan(ALL, ONE, 100)
    assert json.loads(json.dumps(plan))["source"] == plan["source"]
    assert settings(plan["source"]) == {
        "CALL_MIN_NS": "10000000ULL",
        "SWITCH_MIN_NS": "1000000ULL",
        "BLOCK_MIN_NS": "50000000ULL",
        "PARENT_TGID": "100",
        "EVERYBODY": "0",
        "FOLLOW": "1",
        **dict.fromkeys(("SYSCALLS", "SWITCHES", "RUN_QUEUE", "BLOCK", "INTERRUPTS", "PAGE_CACHE"), "1"),
    }


def test_targets_are_filled_in_before_anything_runs() -> None:
    plan = own_source.plan({"syscalls": SyscallOptions(min_ns=5)}, ONE, 100)
    assert [int.from_bytes(base64.b64decode(key), "little") for key, _ in plan["fill"]["targets"]] == [7, 9]
    assert settings(plan["source"])["CALL_MIN_NS"] == "5ULL"
    whole = own_source.plan({"syscalls": Options()}, HOST, 100)
    assert "targets" not in whole["fill"]
    assert ("sched_process_fork", "on_fork", True) not in whole["attach"]


def test_rows_of_system_calls_are_those_of_the_other_engine() -> None:
    rows = own_source.plan({"syscalls": Options()}, HOST, 0)["fill"]["rows"]
    image = b"".join(base64.b64decode(value) for _, value in rows)
    assert image == syscalls.rows_image()
    assert [int.from_bytes(base64.b64decode(key), "little") for key, _ in rows] == list(range(lay.SYSCALL_ROWS))


@pytest.mark.parametrize("collector", sorted(own_source.SERVES))
def test_each_collector_alone_has_its_programs_and_maps(collector: str) -> None:
    plan = own_source.plan({collector: Options()}, HOST, 0)
    programs = {function for _, function, _ in plan["attach"]}
    assert all(f"int {function}(" in plan["source"] for function in programs)
    assert set(plan["read"]) | set(plan["fill"]) | {"live"} == set(plan["maps"])
    for name in plan["maps"]:
        assert re.search(rf"BPF_\w+\((\w+, )?.*?\b{name}\b", plan["source"]), name


def test_an_exit_is_hooked_before_its_entry() -> None:
    points = [point for point, _, _ in own_source.plan(ALL, ONE, 0)["attach"]]
    for later, earlier in (
        ("sys_enter", "sys_exit"),
        ("sys_enter", "sched_switch"),
        ("block_rq_insert", "block_rq_complete"),
        ("irq_handler_entry", "irq_handler_exit"),
        ("softirq_entry", "softirq_exit"),
    ):
        assert points.index(earlier) < points.index(later)


@pytest.mark.parametrize(("cpus", "pages"), [(1, 256), (2, 256), (64, 64), (192, 16), (1024, 16)])
def test_buffers_of_all_cpus_together_are_bounded(cpus: int, pages: int) -> None:
    assert own_source.pages(cpus, 4096) == pages


def test_pages_are_a_power_of_two_for_any_machine() -> None:
    for cpus in range(1, 600):
        for size in (4096, 16384, 65536):
            count = own_source.pages(cpus, size)
            assert count & (count - 1) == 0
            assert 16 <= count <= 256


def struct_text(name: str) -> str:
    text = (Path(syscalls.__file__).parent / "src_bcc/tasks.bcc.h").read_text()
    return re.search(rf"^struct {name} {{.*?^}};", text, re.MULTILINE | re.DOTALL)[0]  # type: ignore[index]


def test_a_threads_state_is_laid_out_as_the_reader_has_it(tmp_path: Path) -> None:
    """By the compiler itself: every member's place, and the size of it all."""
    compiler = shutil.which("clang") or shutil.which("cc")
    assert compiler is not None, "a C compiler is needed"
    lines = [
        "typedef unsigned long long __u64; typedef unsigned int __u32; typedef int __s32;",
        f"#define OFF_CLASS_COUNT {lay.OFF_CLASS_COUNT}",
        f"#define COMM_BYTES {lay.COMM_BYTES}",
        "struct file_key { __u64 ino; __u32 dev, gen; };",
        struct_text("thread_state"),
        f'_Static_assert(sizeof(struct thread_state) == {ct.sizeof(own_source.OwnState)}, "size");',
    ]
    for name, *_ in own_source.OwnState._fields_:
        place = getattr(own_source.OwnState, name).offset
        lines.append(f'_Static_assert(__builtin_offsetof(struct thread_state, {name}) == {place}, "{name}");')
    source = tmp_path / "state.c"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run([compiler, "-fsyntax-only", str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
