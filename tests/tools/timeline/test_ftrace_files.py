"""Reading ftrace's text: our own comments, and files that are wrapped, cut, hostile, huge, or no traces."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from pathlib import Path

import polars as pl
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.clocks import ClockPoint
from whystall.tools.timeline.ftrace import source as ftrace_source
from whystall.tools.timeline.ftrace.text import read
from whystall.tools.timeline.sched import TABLES, SchedTrace

pytestmark = pytest.mark.thorough

DATA = Path(__file__).with_name("data") / "ftrace"


def text(tmp_path: Path, *lines: str) -> SchedTrace:
    """What is read from these lines."""
    path = tmp_path / "trace.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return read(path)


def event(what: str, head: str = "          <idle>-0       [001] d..2.  1583.765274: ") -> str:
    return head + what


POINT = ClockPoint(mono=5, mono_raw=6, boot=7, real=8, error_ns=9)
HEAD = '# whystall: {"version":1,"clock":"mono","cpus":[0,1,2]}'


def test_our_own_comments(tmp_path: Path) -> None:
    trace = text(
        tmp_path, "# tracer: nop", HEAD, POINT.line(), event("cpu_idle: state=1 cpu_id=0"), "CPU:1 [LOST 40 EVENTS]",
        event("cpu_idle: state=1 cpu_id=0"), POINT.line(), '# whystall-lost: {"cpu":1,"overrun":40,"dropped":2}',
        '# whystall-lost: {"cpu":0,"overrun":0,"dropped":0}', "# whystall-lost: [1]", "# whystall-lost: {",
    )  # fmt: skip
    assert trace.clock == "mono"
    assert trace.cpus == (0, 1, 2)
    assert trace.table("clocks").rows() == [(5, 6, 7, 8, 9)] * 2
    assert trace.notes == (("events_lost", "2 of CPU 1, at unknown times"),)
    assert trace.odd.count == 0


def test_a_message_between_events_cannot_pass_for_our_comment(tmp_path: Path) -> None:
    trace = text(tmp_path, event("print: a"), HEAD, POINT.line(), event("print: a"))
    assert (trace.clock, len(trace.table("clocks"))) == ("", 0)


@pytest.mark.parametrize(
    "line", ["# whystall: {", "# whystall: []", '# whystall: {"clock":7,"cpus":{"a":1}}', "# whystall: " + "[" * 5000]
)
def test_damaged_comments_say_nothing(tmp_path: Path, line: str) -> None:
    trace = text(tmp_path, line, event("cpu_idle: state=1 cpu_id=0"))
    assert (trace.clock, trace.cpus) == ("", (1,))


def tables_equal(one: SchedTrace, other: SchedTrace) -> bool:
    return all(one.table(name).equals(other.table(name)) for name in TABLES)


def test_gzip(tmp_path: Path) -> None:
    packed = tmp_path / "trace.gz"
    packed.write_bytes(gzip.compress((DATA / "linux61_tgid.txt").read_bytes()))
    assert tables_equal(read(packed), read(DATA / "linux61_tgid.txt"))


def test_gzip_cut_in_the_middle(tmp_path: Path) -> None:
    packed = tmp_path / "trace.gz"
    whole = gzip.compress((DATA / "linux61_tgid.txt").read_bytes())
    packed.write_bytes(whole[: len(whole) * 2 // 3])
    trace = read(packed)
    assert 10 < len(trace.table("switches")) < 42
    assert trace.notes == (("cut_short", "the file ends in the middle"),)


def test_gzip_of_rubbish(tmp_path: Path) -> None:
    packed = tmp_path / "trace.gz"
    packed.write_bytes(b"\x1f\x8b\x08" + os.urandom(200))
    with pytest.raises(ToolError) as caught:
        read(packed)
    assert caught.value.code is ErrorCode.BAD_TRACE


@pytest.mark.parametrize("legacy", [False, True])
def test_a_systrace_page(tmp_path: Path, legacy: bool) -> None:
    body = (DATA / "linux61_tgid.txt").read_text(errors="surrogateescape")
    page = tmp_path / "trace.html"
    if legacy:
        inner = '<script>\nvar linuxPerfData = "\\\n' + body.replace("\n", "\\n\\\n") + '";\n</script>'
    else:
        inner = (
            '<script class="trace-data" type="application/text">\nUSER PID PPID\nroot 1 0\n</script>\n'
            "<p>no trace-1 [0] 1.5: x</p>\n"
            f'<script class="trace-data" type="application/text">\n{body}  </script>'
        )
    page.write_text(
        f"<!DOCTYPE html>\n<html><head>\n<script>var a = 1;</script></head>\n{inner}\n</html>\n",
        errors="surrogateescape",
    )
    trace = read(page)
    assert tables_equal(trace, read(DATA / "linux61_tgid.txt"))
    assert trace.odd.count == 0


def test_lines_ended_as_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes((DATA / "linux61_tgid.txt").read_bytes().replace(b"\n", b"\r\n"))
    assert tables_equal(read(path), read(DATA / "linux61_tgid.txt"))


def test_a_last_line_without_an_end_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    line = event("sched_waking: comm=a pid=123 prio=120 target_cpu=003")
    path.write_text(f"{line}\n{line[:-1]}")
    trace = read(path)
    assert (len(trace.table("wakeups")), trace.odd.count) == (1, 1)


def test_nul_bytes_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    line = event("sched_waking: comm=\xff\x01 pid=9 prio=120 target_cpu=003\n").encode("latin1")
    path.write_bytes(line + bytes(10_000) + b"\n" + bytes(range(256)) + b"\n" + line)
    trace = read(path)
    assert trace.table("names").filter(pl.col("tid") == 9)["comm"].item() == "\\xff\\x01"
    assert len(trace.table("wakeups")) == 2
    assert trace.odd.count >= 2


def test_every_control_character_in_one_block(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(
        bytes(range(1, 10)) + bytes(range(11, 32)) + b"\n" + event("cpu_idle: state=1 cpu_id=0\n").encode()
    )
    assert len(read(path).table("power")) == 1


def test_lines_of_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.txt"
    good = event("cpu_idle: state=1 cpu_id=0\n").encode()
    path.write_bytes(good + b"x-1 [" * 400_000 + b"\n" + good)
    whole = read(path)
    monkeypatch.setattr(ftrace_source, "BLOCK", 1 << 16)
    pieces = read(path)
    for trace in (whole, pieces):
        assert (len(trace.table("power")), trace.odd.count) == (2, 1)
        assert max(map(len, trace.odd.examples)) <= 200


def test_a_file_that_grows_is_read_up_to_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ftrace_source, "BLOCK", 4096)
    path = tmp_path / "trace.txt"
    shutil.copy(DATA / "linux61_tgid.txt", path)
    size = path.stat().st_size
    read_bytes = 0
    for block, end in ftrace_source.Source(path).blocks():
        read_bytes += end
        with path.open("ab") as file:
            file.write(block[:end])
    assert read_bytes == size


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"# tracer: nop\n#\n", b"hello\nworld\n", bytes(5000), b"\x7fELF" + bytes(99)]
)
def test_what_holds_no_event_is_no_trace(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(content)
    with pytest.raises(ToolError) as caught:
        read(path)
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert "trace.txt holds no event" in caught.value.message


@pytest.mark.parametrize("name", ["missing", "", "pipe"])
def test_what_is_no_file_is_no_trace(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError) as caught:
        read(tmp_path / name)
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_a_file_too_large_for_memory_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    body = b"".join(line for line in (DATA / "linux61_tgid.txt").open("rb") if not line.startswith(b"#"))
    with path.open("wb") as file:
        while file.tell() < ftrace_source.BLOCK * ftrace_source.TOGETHER:
            file.write(body)
        file.truncate(10 << 30)  # the rest takes no room
    begin = time.monotonic()
    with pytest.raises(ToolError) as caught:
        read(path, memory=1 << 30)
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert "--cpu" in caught.value.remedy
    assert time.monotonic() - begin < 60  # of 10 GB, not a hundredth was read


def test_memory_is_bounded_where_the_size_is_not_known_before(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress((DATA / "linux61_tgid.txt").read_bytes() * 50))
    with pytest.raises(ToolError, match="GB of memory"):
        read(path, memory=10_000)


RECORDED = '# whystall: {"version":1,"clock":"mono","cpus":[0],"buffer_kb":64%s}\n'
BROKEN_CHAIN = (
    "  a-10 [000] d..2. 1.000000: sched_switch: prev_comm=a prev_pid=10 prev_prio=120 prev_state=S ==> "
    "next_comm=b next_pid=20 next_prio=120\n"
    "  c-30 [000] d..2. 1.500000: sched_switch: prev_comm=c prev_pid=30 prev_prio=120 prev_state=S ==> "
    "next_comm=a next_pid=10 next_prio=120\n"
)
END = '# whystall-lost: {"cpu":0,"overrun":0,"dropped":0}\n'


def test_a_file_its_recorder_did_not_end_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(RECORDED % "" + BROKEN_CHAIN)
    assert "cut_short" in dict(read(path).notes)
    path.write_text(RECORDED % "" + BROKEN_CHAIN + END)
    assert "cut_short" not in dict(read(path).notes)


def test_a_trace_of_some_processes_misses_the_others_switches_on_purpose(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(RECORDED % "" + BROKEN_CHAIN + END)
    assert read(path).table("holes")["why"].to_list() == ["unseen"]
    path.write_text(RECORDED % ',"pids":[10]' + BROKEN_CHAIN + END)
    filtered = read(path)
    assert filtered.table("holes").is_empty()
    assert "target_only" in dict(filtered.notes)
