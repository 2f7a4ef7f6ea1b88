"""The choice of methods, and their children: stand-ins for the stock tools die, hang and print recorded output."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import anyio
import pytest

from whystall.tools.collect import proc_interrupts, proc_parse
from whystall.tools.collect.bcc import engine as engine_module
from whystall.tools.collect.bcc import headers, known_faults, running, stock, stock_files, stock_scheduler
from whystall.tools.collect.bcc.engine import COLLECTORS, BccEngine
from whystall.tools.collect.bcc.headers import HeadersProblem
from whystall.tools.collect.options import SyscallOptions
from whystall.tools.collect.tables import COLLECTORS as TABLES
from whystall.tools.contract import commands
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import Status
from whystall.tools.host import biolatency, offcputime, syscall_time
from whystall.tools.host.fileslower import tool as fileslower
from whystall.tools.host.page_cache import tool as page_cache
from whystall.tools.recording.collector import Capture, Need, Options
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.recording.window import observe

pytestmark = pytest.mark.thorough

RECORDED = Path(__file__).with_name("recorded")
HOST = Target(everything=True)
READY = {"fileslower": "TIME(s) FILENAME", "cachestat": "HITS HITRATIO"}

WAIT = "while True: time.sleep(0.1)"
"""Until the interrupt, even if that comes after the last check for signals and before the call."""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a stand-in for a stock tool: it prints that it is ready, runs `does`, and prints `output` at its end."""
    places = {name: replace(c, places=(str(tmp_path / name),)) for name, c in commands.COMMANDS.items()}
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(commands, "COMMANDS", MappingProxyType(places))
    monkeypatch.setattr(headers, "problem", lambda: None)
    monkeypatch.setattr(engine_module, "refusal", lambda: None)
    monkeypatch.setattr(engine_module, "pids_are_the_hosts", lambda: True)
    monkeypatch.setattr(stock, "no_kprobes", lambda: None)
    monkeypatch.setattr(known_faults, "KNOWN_FAULTS", ())
    # under load the second of two interpreters starts long after the first: none is late because of that
    monkeypatch.setattr(stock, "_EDGE_S", 60.0)
    known_faults._text.cache_clear()

    def put(tool: str, output: str = "", does: str = WAIT, *, ready: bool = True) -> Path:
        path = tmp_path / f"bcc.{tool}"
        first = READY.get(tool, "Tracing... Hit Ctrl-C to end.") if ready else ""
        path.write_text(
            f"#!{sys.executable} -S\nimport sys, time\ntry:\n    print({first!r}, flush=True)\n    {does}\n"
            f"except KeyboardInterrupt:\n    print({output!r}, flush=True)\n"
        )
        path.chmod(0o755)
        return path

    return put


def run(
    wanted: Mapping[str, Options], target: Target = HOST, own: Callable[[], Method] | None = None, span_s: float = 0.3
) -> dict[str, Capture]:
    engine = BccEngine(own=own)
    assert engine.unavailable() is None
    engine.load(wanted, target)
    try:
        engine.start()
        until = time.monotonic() + span_s
        while time.monotonic() < until:
            engine.poll()
            time.sleep(0.01)
        engine.stop()
        return engine.read()
    finally:
        engine.close()


class Method:
    """A stand-in for our own program."""

    name = "own program"
    loads_last = False

    def __init__(self, serves: frozenset[str] = COLLECTORS, refuses: str | None = None) -> None:
        self.serves, self._refuses = serves, refuses
        self.closed = False
        self._wanted: Mapping[str, Options] = {}

    def unavailable(self, collector: str) -> str | None:
        return self._refuses

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        self._wanted = wanted

    def wait_loaded(self, deadline: float) -> None:
        pass

    stop = poll = lambda self: None

    def start(self) -> int:
        return 0

    def fileno(self) -> int | None:
        return None

    def read(self) -> dict[str, Capture]:
        return {name: Capture({}, ["own"], 1, 1, 0, proven=True) for name in self._wanted}

    def close(self) -> None:
        self.closed = True


def children() -> set[int]:
    """Our living children."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == os.getpid() and words[0] != "Z":
            found.add(int(path.parent.name))
    return found


@pytest.fixture
def others() -> set[int]:
    """Children of this process that earlier tests left running."""
    return children()


SLOW = "5.000    python3        77     W 4096      250.00 chk_1.bin"
SLOTS = "10:00:00\n     usecs               : count     distribution\n      4096 -> 8191       : 5        |*****|"


def test_what_a_stock_tool_does_not_report_is_unknown_and_never_zero(install: Install) -> None:
    install("fileslower", SLOW)
    capture = run({"syscalls": SyscallOptions(min_ns=10_000_000)})["syscalls"]
    (row,) = capture.tables["calls"].to_dicts()
    assert (row["syscall"], row["tid"], row["asked"]) == ("write", 77, 4096)
    assert row["end_ns"] - row["start_ns"] == 250_000_000
    assert {row[name] for name in ("returned", "offset", "fd", "oncpu_ns", "blocked_ns", "kstack")} == {-1}
    assert row["direct"] is None
    assert capture.tables["files"].row(0, named=True)["complete"] is False
    assert not capture.proven
    assert ("stock_fileslower", "") in capture.not_seen


@pytest.mark.parametrize("tool", ["fileslower", "biolatency", "runqlat", "cachestat"])
def test_all_columns_are_those_of_the_collector(install: Install, tool: str) -> None:
    collector = {"fileslower": "syscalls", "biolatency": "block", "runqlat": "run_queue", "cachestat": "page_cache"}
    install(tool, {"fileslower": SLOW}.get(tool, SLOTS))
    name = collector[tool]
    for table, frame in run({name: Options()})[name].tables.items():
        assert frame.schema == TABLES[name][table], table


def test_the_whole_hosts_histogram_has_no_process_and_silence_proves_nothing(install: Install) -> None:
    install("runqlat", SLOTS)
    capture = run({"run_queue": Options()})["run_queue"]
    assert capture.tables["latency"].to_dicts() == [
        {"pid": -1, "comm": "", "low_ns": 4_096_000, "high_ns": 8_192_000, "count": 5}
    ]
    install("runqlat", (RECORDED / "runqlat-wrong-headers.txt").read_text())
    silent = run({"run_queue": Options()})["run_queue"]
    assert (silent.seen, silent.proven) == (0, False)  # as with wrong headers: we ran, and it observed no thread


def test_a_process_that_ran_without_being_seen_is_no_proof(install: Install) -> None:
    install("runqlat")
    me = Target(everything=False, pid=os.getpid(), comm="python", pids=[os.getpid()])
    capture = run({"run_queue": Options()}, me, span_s=0.6)["run_queue"]
    assert (capture.seen, capture.proven) == (0, False)


def test_handlers_that_run_in_silence_are_not_believed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count(0, 1000)

    def read(name: str) -> bytes:
        if name == "softirqs":
            return f"          CPU0\n TIMER: {next(readings)}\n".encode()
        return b"          CPU0\n 24: 7 PCI-MSI 1-edge  nvme0q0, other\n LOC: 9 Local timer\n"

    monkeypatch.setattr(stock_scheduler, "InterruptCounts", lambda: proc_interrupts.InterruptCounts(read))
    install("softirqs", "10:00:00\nSOFTIRQ          TOTAL_nsecs")
    install("hardirqs", "10:00:00\nHARDIRQ                    TOTAL_nsecs")
    silent = run({"interrupts": Options()})["interrupts"]
    assert (silent.seen, silent.proven) == (1000, False)
    assert silent.tables["totals"].to_dicts() == [
        {"kind": "softirq", "name": "TIMER", "cpu": -1, "count": 1000, "total_ns": -1, "max_ns": -1}
    ]
    install("softirqs", "10:00:00\nSOFTIRQ          TOTAL_nsecs\ntimer                 5000")
    capture = run({"interrupts": Options()})["interrupts"]
    assert capture.proven
    assert capture.tables["totals"]["total_ns"].to_list() == [5000]


def test_a_second_that_began_before_the_window_is_left_out(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "_EDGE_S", -1.0)
    install("runqlat", SLOTS)
    capture = run({"run_queue": Options()})["run_queue"]
    assert (capture.seen, capture.proven) == (0, False)
    assert [code for code, _ in capture.not_seen if code == "first_second"] == ["first_second"]


def test_disks_that_work_in_silence_are_not_believed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([0, 1000])

    def disks() -> dict[str, proc_parse.DiskStat]:
        done = next(readings)
        line = f"8 0 sda {done} 0 {done * 8} 0 0 0 0 0 0 0 0 0 0 0 0 0 0"
        return {"sda": proc_parse.diskstats(line.encode())[0]}

    install("biolatency")
    monkeypatch.setattr(stock_files, "_disks", disks)
    assert run({"block": Options()})["block"].proven is False
    readings = iter([0, 3])  # three requests of an ailing disk
    assert run({"block": Options()})["block"].proven is False
    readings = iter([0, 5])
    install("biolatency", SLOTS.replace("     usecs", "disk = sda\n     usecs"))
    capture = run({"block": Options()})["block"]
    assert capture.proven
    (row,) = capture.tables["totals"].to_dicts()
    assert (row["device"], row["count"], row["bytes"]) == ("sda", 5, 5 * 8 * 512)
    assert (row["device_ns"], row["queue_ns"], row["max_ns"]) == (-1, -1, -1)


def test_a_tool_that_dies_before_it_is_ready_is_an_error_with_its_reason(others: set[int], install: Install) -> None:
    install("runqlat", does="sys.exit('x.c:3: error: no such field')", ready=False)
    with pytest.raises(ToolError, match="no such field") as caught:
        run({"run_queue": Options()})
    assert caught.value.code is ErrorCode.PROBE_FAILED
    assert children() <= others


def test_a_tool_that_dies_in_the_window_proves_nothing(install: Install) -> None:
    install("runqlat", SLOTS, does="time.sleep(0.2); sys.exit('gone')")
    capture = run({"run_queue": Options()}, span_s=0.6)["run_queue"]
    assert not capture.proven
    assert any(code == "cut_short" and "gone" in detail for code, detail in capture.not_seen)


def test_a_tool_that_is_never_ready_is_given_up(
    others: set[int], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("runqlat", ready=False)
    monkeypatch.setattr(engine_module, "READY_S", 0.4)
    with pytest.raises(ToolError, match="not ready in time"):
        run({"run_queue": Options()})
    assert children() <= others


def test_a_tool_that_hangs_at_the_end_is_killed(
    others: set[int], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "END_S", 0.5)
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    install("runqlat", SLOTS, does=ignore)
    capture = run({"run_queue": Options()}, span_s=0.5)["run_queue"]
    assert not capture.proven
    assert any("did not end" in detail for _, detail in capture.not_seen)
    assert children() <= others


def test_garbage_is_a_blind_spot(install: Install) -> None:
    install("runqlat", SLOTS + "\nwhat is this\n[1;31m\n")
    capture = run({"run_queue": Options()})["run_queue"]
    assert ("odd_lines", "2") in capture.not_seen


def test_kprobes_disarmed_in_the_window_prove_nothing(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("biolatency")
    monkeypatch.setattr(stock, "no_kprobes", lambda: None)
    engine = BccEngine(own=None)
    engine.load({"block": Options()}, HOST)
    engine.start()
    monkeypatch.setattr(stock, "no_kprobes", lambda: "kprobes are disarmed")
    assert engine.read()["block"].proven is False
    assert BccEngine(own=None).cannot("block") == "kprobes are disarmed"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no kprobes"),
        ({"sys/bus/event_source/devices/kprobe": "", "sys/kernel/debug/kprobes/enabled": "0\n"}, "disarmed"),
        ({"sys/bus/event_source/devices/kprobe": "", "sys/kernel/debug/kprobes/enabled": "1\n"}, None),
        ({"sys/kernel/tracing/kprobe_events": ""}, None),
    ],
)
def test_whether_kprobes_fire(tmp_path: Path, files: dict[str, str], why: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = running.no_kprobes(tmp_path)
    assert (found is None) if why is None else (found is not None and why in found)


def test_our_program_replaces_missing_and_failing_tools(install: Install) -> None:
    install("runqlat", does="sys.exit('cannot attach')", ready=False)
    captures = run({"run_queue": Options(), "block": Options()}, own=Method)
    assert captures["run_queue"].hooks == captures["block"].hooks == ["own"]


def test_a_tool_that_hangs_leaves_time_for_our_program(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets half of the time, and the next method the rest."""
    monkeypatch.setattr(engine_module, "READY_S", 1.0)
    install("runqlat", ready=False)
    left: list[float] = []

    class Watch(Method):
        def wait_loaded(self, deadline: float) -> None:
            left.append(deadline - time.monotonic())

    assert run({"run_queue": Options()}, own=Watch)["run_queue"].hooks == ["own"]
    assert left[0] > 0


def test_one_failing_collector_does_not_cost_the_others_their_method(install: Install) -> None:
    """One program serves all; if the kernel rejects a part of it, the others get a program without that part."""

    class Refused(Method):
        def wait_loaded(self, deadline: float) -> None:
            if "page_cache" in self._wanted:
                raise ToolError(ErrorCode.PROBE_FAILED, "on_page_add: too complex", "")

    install("cachestat", "     900      100        7   90.00%            3        382")
    captures = run(dict.fromkeys(("syscalls", "switches", "page_cache"), Options()), own=Refused)
    assert captures["syscalls"].hooks == captures["switches"].hooks == ["own"]
    assert "cachestat" in captures["page_cache"].hooks[0]


def test_a_broken_tool_is_not_run(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    path = install("runqlat", SLOTS)
    entry = known_faults.KnownFault("runqlat", "counts nothing", "a source", since=(0, 0), fixed_by="_fixed_here_")
    monkeypatch.setattr(known_faults, "KNOWN_FAULTS", (entry,))
    assert BccEngine(own=None).cannot("run_queue") == "runqlat: counts nothing"
    assert BccEngine(own=Method).first_method("run_queue") == "own program"
    path.write_text(path.read_text() + "# _fixed_here_\n")
    known_faults._text.cache_clear()
    assert BccEngine(own=Method).first_method("run_queue") == "bcc.runqlat"


def test_a_limited_tool_comes_last(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("fileslower", SLOW)
    monkeypatch.setattr(
        known_faults, "KNOWN_FAULTS", (known_faults.KnownFault("fileslower", "no fsync", "a source", limited=True),)
    )
    assert BccEngine(own=Method).first_method("syscalls") == "own program"
    assert BccEngine(own=lambda: Method(refuses="no module bcc")).first_method("syscalls") == "bcc.fileslower"


def test_several_processes_are_for_our_program(install: Install) -> None:
    install("runqlat", SLOTS)
    many = Target(everything=False, cgroup="/x", pids=[1, 2], follow=True)
    assert run({"run_queue": Options()}, many, own=Method)["run_queue"].hooks == ["own"]
    with pytest.raises(ToolError, match="follows one process"):
        run({"run_queue": Options()}, many)


def test_wrong_headers_are_refused_before_anything_runs(
    others: set[int], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("runqlat", SLOTS)
    wrong = HeadersProblem("headers are of kernel 6.1, running is 6.12", "sudo apt-get install -y linux-headers-6.12")
    monkeypatch.setattr(headers, "problem", lambda: wrong)
    engine = BccEngine()
    assert "headers are of kernel 6.1" in (engine.unavailable() or "")
    with pytest.raises(ToolError) as caught:
        engine.load({"run_queue": Options()}, HOST)
    assert caught.value.remedy == wrong.remedy
    assert children() <= others


def test_a_foreign_pid_namespace_is_refused(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "pids_are_the_hosts", lambda: False)
    assert BccEngine().unavailable() == engine_module.FOREIGN_PIDS


def test_each_known_fault_has_a_reason_a_source_and_a_tool_we_run() -> None:
    tools = {tool for make in engine_module.STOCK for tool in make().tools}
    for entry in known_faults.KNOWN_FAULTS:
        assert entry.tool in tools
        assert entry.reason
        assert entry.source
        assert entry.since < entry.until


@pytest.mark.parametrize(
    ("release", "kernel"), [("6.1.0-50-amd64", (6, 1)), ("5.10", (5, 10)), ("6.9-rc1", (6, 9)), ("x", (0, 0))]
)
def test_releases_are_compared_by_number(release: str, kernel: tuple[int, int]) -> None:
    assert known_faults.kernel_of(release) == kernel


def test_the_known_faults_of_this_version_of_bcc() -> None:
    plain = os.devnull
    assert known_faults.broken("cachestat", plain, (5, 16))
    assert known_faults.broken("cachestat", plain, (5, 10)) is None
    assert known_faults.broken("biolatency", plain, (6, 1))
    assert known_faults.broken("biolatency", plain, (5, 10)) is None
    assert known_faults.limited("fileslower", plain, (5, 10))
    for tool in ("softirqs", "hardirqs"):  # fixed in 2020 and 2021, before any version installed here
        assert known_faults.broken(tool, plain, (5, 10))
        path = commands.program(f"bcc.{tool}")
        assert path is None or known_faults.broken(tool, path, (6, 1)) is None


def window(wanted: str, target: Target = HOST, span_s: float = 0.5) -> Recording:
    class Only(BccEngine):
        def __init__(self) -> None:
            super().__init__(own=None)

    return anyio.run(lambda: observe([Need(wanted)], target, span_s, [Only]))


def test_judges_report_slow_calls_and_call_nothing_normal(install: Install) -> None:
    install("fileslower", SLOW.replace("5.000", "1.500"))
    recording = window("syscalls", span_s=2.0)
    result = judge(fileslower.TOOL, recording, fileslower.Params())
    (event,) = result.data.events
    assert (event.operation, event.latency_ms, event.blocked_ms, event.direct) == ("write", 250.0, None, None)
    assert [f.polarity.value for f in result.findings] == ["abnormal"]
    assert not {"blocked_pct", "oncpu_pct"} & result.findings[0].metrics.keys()
    assert result.status is Status.PARTIAL
    quiet = judge(syscall_time.TOOL, recording, syscall_time.Params())
    assert (quiet.status, quiet.findings) == (Status.PARTIAL, [])


def test_a_histogram_alone_is_judged_without_a_queue(install: Install) -> None:
    install(
        "biolatency",
        SLOTS.replace("     usecs", "disk = nosuch\n     usecs").replace("4096 -> 8191 ", "262144 -> 524287"),
    )
    result = judge(biolatency.TOOL, window("block"), biolatency.Params())
    (row,) = result.data.rows
    assert (row.device, row.count, row.max_ms, row.queue_pct, row.bytes) == ("nosuch", 5, None, None, None)
    assert row.p50_ms is not None
    assert row.p50_ms > 200
    assert all(f.polarity.value != "abnormal" for f in result.findings)  # its bytes are unknown


def test_sums_of_waits_are_judged_without_counts(install: Install) -> None:
    lines = (RECORDED / "offcputime-6.1.txt").read_text().partition("\n")[2]
    install("offcputime", lines)
    me = Target(everything=False, pid=os.getpid(), comm="python", pids=[os.getpid()])
    recording = window("switches", me)
    result = judge(offcputime.TOOL, recording, offcputime.Params())
    assert result.data.rows
    assert {row.count for row in result.data.rows} == {None}
    fsync = [f for f in result.findings if f.attributes.get("syscall") == "fsync"]
    assert fsync
    assert fsync[0].polarity.value == "abnormal"
    assert not {"count", "max_ms"} & fsync[0].metrics.keys()
    sleeping = [f for f in result.findings if f.attributes.get("syscall") == "clock_nanosleep"]
    assert [f.polarity.value for f in sleeping] == ["normal"]


def test_counts_of_the_whole_cache_rule_nothing_out(install: Install) -> None:
    install("cachestat", "     900      100        7   90.00%            3        382")
    result = judge(page_cache.TOOL, window("page_cache"), page_cache.Params())
    assert result.findings == []
    assert result.data.verdicts == ["cannot_tell"]
    assert result.status is Status.PARTIAL
