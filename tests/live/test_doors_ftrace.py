"""``whystall ftrace record`` as a user meets it: real captures, every end of them, and what is refused."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm_command
from switching import busy_switching

from whystall.tools.collect.ftrace.tracefs import find

WHYSTALL = str(Path(sys.executable).with_name("whystall"))
Done = subprocess.CompletedProcess[str]
# A user without rights, but for reading: the interpreter may lie where others cannot look.
WITHOUT_RIGHTS = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=-all,+dac_read_search",
        "--bounding-set=-all,+dac_read_search",
    ),
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A state directory of its own."""
    return {**os.environ, "WHYSTALL_HOME": str(tmp_path / "state"), "COLUMNS": "200"}


@contextlib.contextmanager
def waking(cpu: int) -> Iterator[None]:
    """A process that wakes on `cpu` a hundred times a second."""
    code = (
        "import os, sys, time; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(cpu)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No test leaves a tracefs instance that was not there before."""
    before = instances()
    yield
    assert instances() <= before


def instances() -> set[str]:
    """Tracefs instances of processes that this one has started, or that have ended."""
    tracefs = find()
    try:
        found = set(tracefs.instances())
    finally:
        tracefs.close()
    return {name for name in found if not _others(name)}


def _others(name: str) -> bool:
    """Whether a living process that is no child of ours owns the instance."""
    for pid in (int(word) for word in name.replace("-", " ").split() if word.isdigit()):
        try:
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        return int(parent) != os.getpid()
    return True


def record(env: dict[str, str], *words: str, before: tuple[str, ...] = ()) -> Done:
    """Run the command to its end."""
    if not before:
        return warm_command.run("ftrace", "record", *words, env=env)
    command = [*before, WHYSTALL, "ftrace", "record", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def start(env: dict[str, str], output: Path, *words: str) -> subprocess.Popen[str]:
    """A capture without an end, once it has written events."""
    command = [WHYSTALL, "ftrace", "record", "--duration", "0", "--output", str(output), *words]
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: child.poll() is not None or (output.exists() and output.stat().st_size > 20_000))
    assert child.poll() is None, child.communicate()
    return child


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    """Wait for `condition`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def fails(done: Done, code: str, *parts: str) -> None:
    """One line of an error, with its code."""
    assert done.stderr.startswith(f"error: {code}: "), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "; " in done.stderr
    assert all(part in done.stderr for part in parts), done.stderr
    assert done.returncode == (2 if code == "bad_argument" else 1)
    assert done.stdout == ""


def whole(path: Path) -> list[str]:
    """The lines of a capture that was ended well."""
    lines = path.read_text(errors="replace").splitlines()
    assert any(line.startswith("# whystall: ") for line in lines)
    assert sum(line.startswith("# whystall-clocks: ") for line in lines) == 2
    assert lines[-1].startswith("# whystall-end: ")
    return lines


@pytest.mark.parametrize(
    "words",
    [
        ("--duration", "0.5", "--cpu", "0-0", "--events", "sched", "--buffer-size", "2048", "--engine", "tracefs"),
        ("--record_time", "0.5", "--cpu_list", "0", "--irq", "0", "--bf_size", "2048", "--backend", "debugfs"),
    ],
)
def test_both_spellings_record_the_chosen_cpu(words: tuple[str, ...], env: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "trace.txt"
    with waking(0):  # an idle CPU may see no event for half a second
        done = record(env, *words, "--output", str(output), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["engine"], summary["cpus"], summary["clock"]) == ("tracefs", [0], "mono")
    assert summary["stopped_by"] == "duration"
    assert summary["files"] == [str(output)]
    assert 0.4 < summary["span_s"] < 5
    lines = whole(output)
    about = json.loads(next(line for line in lines if line.startswith("# whystall: ")).partition(": ")[2])
    assert about["buffer_kb"] == 2048
    assert about["groups"] == ["sched"]
    # Others of this machine may write more than a buffer holds, which is told among the events.
    events = [line for line in lines if line and not line.startswith(("#", "CPU ", "CPU:"))]
    assert len(events) == summary["events"] > 0
    assert all("[000]" in line for line in events)
    assert any("sched_switch:" in line for line in events)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_wish_to_stop(signum: int, env: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "trace.txt"
    with start(env, output) as child:
        child.send_signal(signum)
        said, wrong = child.communicate(timeout=30)
    assert (child.returncode, wrong) == (0, "")
    assert "stopped: on request" in said
    assert str(output) in said
    whole(output)


def test_bpf_records_until_asked_to_stop(env: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "trace.txt"
    words = ("--engine", "ebpf", "--duration", "0", "--cpu", "0", "--output", str(out), "--json")
    command = [WHYSTALL, "ftrace", "record", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        until(lambda: child.poll() is not None or _links(child.pid))
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        said, wrong = child.communicate(timeout=60)
    assert (child.returncode, wrong) == (0, "")
    summary = json.loads(said)
    assert (summary["engine"], summary["cpus"], summary["stopped_by"]) == ("ebpf", [0], "asked")
    assert summary["events"] > 0
    assert "sched_switch: " in out.read_text()
    judged = warm_command.run("run", "ftrace_capture", "--from", str(out), "--json", env=env)
    assert [cpu["cpu"] for cpu in json.loads(judged.stdout)["data"]["cpus"]] == [0]


def _links(pid: int) -> bool:
    """Whether the process holds BPF programs or links."""
    names = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(link))
    return any("bpf_link" in name or "bpf-link" in name for name in names)


def test_an_existing_file_is_not_overwritten_unasked(env: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "trace.txt"
    output.write_text("precious")
    fails(record(env, "--duration", "0.2", "--output", str(output)), "bad_argument", "exists", "--overwrite")
    assert output.read_text() == "precious"
    done = record(env, "--duration", "0.2", "--output", str(output), "--overwrite")
    assert done.returncode == 0, done.stderr
    whole(output)


def test_a_second_recorder_has_its_own_file_or_is_refused(env: dict[str, str], tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    with start(env, first) as child:
        fails(record(env, "--duration", "0.2", "--output", str(first), "--overwrite"), "busy", "another capture")
        done = record(env, "--duration", "0.2", "--output", str(second))
        assert done.returncode == 0, done.stderr
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
    assert child.returncode == 0
    whole(first)
    whole(second)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--cpu", "3-1"), ("'3-1'", "0-3,8")),
        (("--cpu", "8191"), ("8191",)),
        (("--events", "sched,nope"), ("'nope'", "softirq", "power")),
        (("--clock", "sundial"), ("'sundial'", "mono")),
        (("--pid", "x"), ("'x'", "17,4242")),
        (("--children",), ("PIDs",)),
        (("--buffer-size", "1"), ("KiB",)),
        (("--keep", "2"), ("rotate",)),
        (("--rotate", "1", "--mode", "ring"), ("ring",)),
        (("--engine", "bcc"), ("--engine", "tracefs")),
        (("--engine", "ebpf", "--clock", "boot"), ("ebpf", "tracefs")),
        (("--engine", "ebpf", "--rotate", "1"), ("ebpf", "tracefs")),
        (("--engine", "ebpf", "--pid", "1,2"), ("ebpf", "tracefs")),
        (("--nope",), ("'--nope'", "--bf_size")),
        (("--duration", "soon"), ("--duration",)),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: tuple[str, ...], parts: tuple[str, ...], env: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "trace.txt"
    fails(record(env, "--output", str(output), "--duration", "0.2", *words), "bad_argument", *parts)
    assert not output.exists()


def test_a_process_that_is_not_there(env: dict[str, str], tmp_path: Path) -> None:
    fails(record(env, "--output", str(tmp_path / "t"), "--pid", "4194304"), "no_such_process", "4194304")
    assert list(tmp_path.iterdir()) == []


def test_without_rights_nothing_is_recorded(env: dict[str, str], tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    output = str(tmp_path / "t")
    mount = "mount -t tracefs nodev /sys/kernel/tracing 2>/dev/null"  # it may be already
    mounted = ("unshare", "--mount", "sh", "-c", f'{mount}; exec "$@"', "sh")
    fails(record(env, "--output", output, before=(*mounted, *WITHOUT_RIGHTS)), "no_privilege", "root")
    hidden = ("unshare", "--mount", "sh", "-c", 'umount -a -t tracefs; umount -a -t debugfs; exec "$@"', "sh")
    fails(record(env, "--output", output, before=(*hidden, *WITHOUT_RIGHTS)), "no_tracefs", "mount -t tracefs")
    assert list(tmp_path.iterdir()) == []


def test_an_unmounted_tracefs_is_no_obstacle_to_root(env: dict[str, str], tmp_path: Path) -> None:
    hidden = ("unshare", "--mount", "sh", "-c", 'umount -a -t tracefs; umount -a -t debugfs; exec "$@"', "sh")
    done = record(env, "--duration", "0.2", "--output", str(tmp_path / "t"), before=hidden)
    assert done.returncode == 0, done.stderr
    whole(tmp_path / "t")


def test_a_disk_that_fills_ends_the_capture_whole(env: dict[str, str], small_disk: Callable[[str], Path]) -> None:
    place = small_disk("2m")
    with busy_switching(min(os.sched_getaffinity(0))):
        output = place / "trace.txt"
        fails(record(env, "--output", str(output)), "disk_full", "256 MiB")
        assert not output.exists()
        done = record(
            env, "--output", str(output), "--min-free", "1", "--json", "--duration", "120", "--mode", "stream"
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["stopped_by"] == "disk_guard"
        whole(output)
        output.unlink()
        words = ("--min-free", "0", "--duration", "120", "--mode", "stream")
        fails(record(env, "--output", str(output), *words), "disk_full", "whole up to then")
        whole(output)


def test_pids_inside_a_container_are_written_beside_the_trace(env: dict[str, str], tmp_path: Path) -> None:
    """A thread that is born during the capture is in the mapping too."""
    late = "import threading, time; time.sleep(1); threading.Thread(target=time.sleep, args=(60,)).start()"
    inner = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", late]
    output = tmp_path / "trace.txt"
    with subprocess.Popen(inner) as container:
        try:
            children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
            until(lambda: children.read_text().split())
            host = children.read_text().split()[0]
            done = record(env, "--duration", "2.5", "--output", str(output), "--NSpid", "--pid", "1", "--json")
            only = record(
                env, "--duration", "0.2", "--output", str(output), "--NSpid", "--container", host, "--pid", "1"
            )
            threads = os.listdir(f"/proc/{host}/task")
        finally:
            container.kill()
    assert done.returncode == 0, done.stderr
    fails(only, "bad_argument", "exists")
    mapping = json.loads((tmp_path / "pid_mapping.json").read_text())
    assert mapping[host]["NSpid"] == "1"
    assert mapping[host]["PPid"] == str(container.pid)
    assert len(threads) == 2
    assert {mapping[thread]["Tgid"] for thread in threads} == {host}
    assert json.loads(done.stdout)["pid_mapping"] == str(tmp_path / "pid_mapping.json")


def test_a_full_output_is_said_and_the_capture_is_kept(env: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "trace.txt"
    command = [WHYSTALL, "ftrace", "record", "--duration", "0.2", "--output", str(output)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.stderr.startswith("error: disk_full: ")
    whole(output)


def test_both_languages(env: dict[str, str], tmp_path: Path) -> None:
    texts = []
    for lang in ("en", "zh"):
        done = record(env, "--duration", "0.2", "--output", str(tmp_path / lang), "--lang", lang)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert "whystall run host_bound --from" in texts[0]
    assert "下一步" in texts[1]


def test_a_lock_that_is_held_is_not_broken(env: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "trace.txt"
    with output.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fails(record(env, "--output", str(output)), "busy", str(output))


def test_a_recording_may_hold_the_trace_too(env: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "recording"
    done = warm_command.run("record", "--duration", "1", "--trace", "--out", str(out), "--json", env=env)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["engines"]["ftrace"] in ("ebpf", "tracefs")
    assert summary["rows"]["ftrace.switches"] > 0
    entry = json.loads((out / "manifest.json").read_text())["collectors"]["ftrace"]
    assert entry["proven"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_window_on_tracefs(signum: int, env: dict[str, str]) -> None:
    before = instances()
    command = [WHYSTALL, "run", "ftrace_capture", "--engine", "tracefs", "--duration", "300"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        until(lambda: child.poll() is not None or instances() - before)
        child.send_signal(signum)
        said, wrong = child.communicate(timeout=30)
    assert child.returncode == 128 + signum
    assert said == ""
    assert wrong == f"error: cancelled: stopped by {signal.Signals(signum).name}; nothing is left attached\n"
    assert instances() <= before


def test_a_window_whose_profile_never_came_is_not_lost(env: dict[str, str], tmp_path: Path) -> None:
    never = tmp_path / "never.json"
    words = ("--duration", "0.5", "--pid", str(os.getpid()), "--profile", str(never))
    done = warm_command.run("run", "host_bound", *words, env=env)
    fails(done, "bad_trace", str(never), "--from ")
    kept = done.stderr.rpartition("--from ")[2].strip()
    again = warm_command.run("run", "host_bound", "--from", kept, env=env)
    assert again.returncode == 0, again.stderr
