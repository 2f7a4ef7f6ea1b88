"""Nothing of a session stays in the kernel, and every failure says what to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from kernel_sessions import GONE_WITHIN, kernel_session, programs_of, wait_until_gone

from whystall.bpf import libbpf
from whystall.bpf.build import SOURCES
from whystall.bpf.errors import BpfError

WORKLOADS = str(Path(__file__).parent / "workloads")
EVERYTHING = "targets=None, block=True, wakers=True, user_stacks=True, sample_ns=10_000_000"
FULL = partial(kernel_session, targets=None, block=True, wakers=True, user_stacks=True, sample_ns=10_000_000)


def python(code: str) -> subprocess.Popen[str]:
    header = f"import os, sys, time\nsys.path.insert(0, {WORKLOADS!r})\nfrom kernel_sessions import kernel_session\n"
    header += "from whystall.bpf.errors import BpfError\nfrom whystall.bpf import libbpf\n"
    return subprocess.Popen(
        [sys.executable, "-c", header + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_open_attaches_and_close_removes_everything() -> None:
    session = FULL()
    session.load()
    session.start()
    mine = programs_of(os.getpid())
    assert mine <= libbpf.program_ids()
    assert len(mine) >= len(session.hooks) >= 9
    session.close()
    session.close()
    assert wait_until_gone(mine) == frozenset()


def test_finish_removes_everything_and_only_once() -> None:
    session = FULL()
    session.load()
    session.start()
    mine = programs_of(os.getpid())
    assert mine <= libbpf.program_ids()
    seen = session.read()
    assert seen.window_start < seen.window_end
    assert wait_until_gone(mine) == frozenset()
    assert session.poll() == 0
    with pytest.raises(BpfError, match="not open") as failure:
        session.read()
    assert failure.value.code == "read_failed"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_tracer_leaves_nothing(how: signal.Signals) -> None:
    tracer = python(f"s = kernel_session({EVERYTHING}); s.load(); s.start(); print('open', flush=True); time.sleep(60)")
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == "open\n"
    theirs = programs_of(tracer.pid)
    assert theirs
    assert theirs <= libbpf.program_ids()
    tracer.send_signal(how)
    tracer.communicate()
    assert wait_until_gone(theirs) == frozenset()


def test_a_failure_at_any_step_leaves_nothing() -> None:
    """Descriptors run out ever later: while opening, making maps, loading, attaching, walking."""
    tracer = python(
        f"""
import resource
from functools import partial
from pathlib import Path
def held():
    found = set()
    for info in Path("/proc").glob("[0-9]*/fdinfo/*"):
        try: found |= {{int(l.split()[1]) for l in info.read_text().splitlines() if l.startswith("prog_id:")}}
        except OSError: continue
    return found
def left():  # new, and held by no process: attached for good
    return libbpf.program_ids() - before - held()
codes, mended, before = [], 0, libbpf.program_ids()
with kernel_session({EVERYTHING}) as first: first.read()  # libbpf remembers what a kernel can do, failed probes too
at_start = len(os.listdir("/proc/self/fd"))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for room in range(4, 200):
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
    session = kernel_session({EVERYTHING})
    try:
        session.load()
        session.start()
    except BpfError as error:
        codes.append(error.code)
        mended += "ulimit -n" in error.remedy
    else:
        session.close()
        print("opened", *sorted(set(codes)), mended, len(codes))
        break
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert len(os.listdir("/proc/self/fd")) <= at_start, room
    until = time.monotonic() + {GONE_WITHIN}
    while left() and time.monotonic() < until: time.sleep(0.01)
    assert not left(), room
"""
    )
    out, err = tracer.communicate(timeout=300)
    assert tracer.returncode == 0, err
    opened, *codes, mended, failures = out.split()
    assert opened == "opened"
    assert {"attach_failed", "load_failed"} <= set(codes)
    assert int(failures) > 20
    assert int(mended) > 20


def test_without_privilege_it_says_so() -> None:
    tracer = python(
        """
os.setgid(65534); os.setuid(65534)
try: kernel_session(targets=None).load()
except BpfError as error: print(error.code, '|', error.remedy)
"""
    )
    out, err = tracer.communicate(timeout=60)
    assert out.startswith("no_privilege | "), (out, err)


def test_targets_are_bounded() -> None:
    for targets in (frozenset[int](), frozenset(range(1, 2000))):
        with pytest.raises(BpfError) as failure:
            kernel_session(targets=targets).load()
        assert failure.value.code == "bad_config"


def test_a_file_that_is_no_object() -> None:
    with pytest.raises(BpfError) as failure:
        libbpf.Object(b"not an ELF file" * 100, "garbage")
    assert failure.value.code == "load_failed"


def test_the_verifiers_log_is_in_the_error(tmp_path: Path) -> None:
    source, made = tmp_path / "broken.bpf.c", tmp_path / "broken.bpf.o"
    source.write_text(
        """
        #include "kernel.bpf.h"
        SEC("tp_btf/sched_switch") int broken(__u64 *ctx) { return *(int *)ctx[9]; }
        char LICENSE[] SEC("license") = "GPL";
        """
    )
    clang = shutil.which("clang")
    assert clang is not None
    target = ["-target", "bpf", "-D__TARGET_ARCH_x86" if os.uname().machine == "x86_64" else "-D__TARGET_ARCH_arm64"]
    subprocess.run([clang, "-O2", "-g", *target, "-I", SOURCES, "-c", source, "-o", made], check=True)
    broken = libbpf.Object(made.read_bytes(), "broken")
    with pytest.raises(BpfError) as failure:
        broken.load()
    broken.close()
    assert failure.value.code == "load_failed"
    assert "invalid bpf_context access" in failure.value.log or "doesn't have" in failure.value.log
    assert "\n" not in str(failure.value)


def test_maps_are_read_in_batches_and_one_by_one(tmp_path: Path) -> None:
    session = kernel_session(targets=frozenset({os.getppid()}))
    with session:
        for tgid in range(1000, 1500):
            session.add_target(tgid)
        targets = session._targets
        assert targets is not None
        expected = {n.to_bytes(4, "little"): b"\1" for n in range(1000, 1500)}
        for batch in (7, 64, 4096):
            assert dict(targets.items(batch)) == expected
        assert dict(targets._items_one_by_one()) == expected
        assert targets.delete((1000).to_bytes(4, "little"))
        assert not targets.delete((1000).to_bytes(4, "little"))
        assert targets.lookup((1000).to_bytes(4, "little")) is None
