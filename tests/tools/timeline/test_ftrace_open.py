"""Opening traces of any kind, and files of trace-cmd through the real trace-cmd."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.ftrace import trace_cmd
from whystall.tools.timeline.ftrace.text import read
from whystall.tools.timeline.open_trace import open_trace
from whystall.tools.timeline.sched import TABLES

DATA = Path(__file__).with_name("data") / "ftrace"
DAT = DATA / "linux61.dat"


def reported(tmp_path: Path, *options: str) -> Path:
    """What ``trace-cmd report`` prints."""
    path = tmp_path / "report.txt"
    path.write_bytes(subprocess.run(["trace-cmd", "report", *options, "-i", DAT], capture_output=True).stdout)
    return path


def refused(path: Path) -> ToolError:
    with pytest.raises(ToolError) as caught:
        open_trace(path)
    assert caught.value.code is ErrorCode.BAD_TRACE
    return caught.value


def test_a_file_of_trace_cmd() -> None:
    trace = open_trace(DAT)
    assert trace.odd.count == 0
    assert trace.clock == "mono"
    assert trace.cpus == (0, 1)
    assert {name: len(trace.table(name)) for name in TABLES if len(trace.table(name))} == {
        "switches": 5248, "wakeups": 5438, "migrations": 67, "interrupts": 7212, "tasks": 81, "power": 6171,
        "names": 72,
    }  # fmt: skip
    # every switch is recorded and parsed, whatever the names of threads: no chain is broken
    assert trace.table("holes").is_empty()
    assert {"x ==> y", "nl\\x0aline", "\\xff\\xfebad", "  prev_prio=1"} <= set(trace.table("names")["comm"])


@pytest.mark.thorough
def test_what_trace_cmd_prints_reads_the_same_in_every_form(tmp_path: Path) -> None:
    base = open_trace(DAT)
    for options in (["-t", "-N"], ["-t", "-R"], ["-N"], ["-R"], []):
        trace = read(reported(tmp_path, *options))
        exact = "-t" in options
        for name in ("switches", "wakeups", "migrations", "interrupts", "power"):
            ours, other = base.table(name), trace.table(name)
            if not exact:
                ours, other = ours.drop("at_ns"), other.drop("at_ns")
            if name == "switches" and "-N" not in options and "-R" not in options:
                # its short form takes the bits for dead and zombie the wrong way round
                ours, other = (one.with_columns(pl.col("prev_state").replace("Z", "X")) for one in (ours, other))
            # and a name that a line feed cuts in the middle misleads it
            assert abs(len(ours) - len(other)) <= trace.odd.count, (options, name)
            if len(ours) == len(other):
                assert ours.sort(ours.columns).equals(other.sort(ours.columns)), (options, name)
        assert trace.odd.count <= 3


def test_events_that_trace_cmd_lost_are_holes() -> None:
    trace = open_trace(DATA / "linux61_lost.dat")
    holes = trace.table("holes")
    assert holes.select("cpu", "why").unique().rows() == [(1, "lost")]
    assert (len(holes), holes["lost"].sum()) == (27, 3024)  # as trace-cmd printed when it recorded
    assert (holes["end_ns"] > holes["start_ns"]).all()


def test_only_the_cpus_asked_for() -> None:
    trace = open_trace(DAT, cpus=[1])
    assert trace.table("switches").equals(open_trace(DAT).table("switches").filter(pl.col("cpu") == 1))


@pytest.mark.thorough
def test_text_in_any_wrapping(tmp_path: Path) -> None:
    text = DATA / "linux61_tgid.txt"
    packed = tmp_path / "trace"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    for path in (text, packed):
        assert all(open_trace(path).table(name).equals(read(text).table(name)) for name in TABLES)


def test_without_trace_cmd_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install the package trace-cmd" in refused(DAT).remedy


@pytest.mark.parametrize("kept", [40, 3000, 60_000, 110_000])
def test_a_file_cut_short(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.dat"
    path.write_bytes(DAT.read_bytes()[:kept])
    refused(path)


@pytest.mark.thorough
def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "damaged.dat"
    whole = DAT.read_bytes()
    for at in range(20, len(whole), len(whole) // 12):
        path.write_bytes(whole[:at] + bytes(200) + whole[at + 200 :])
        try:
            open_trace(path)
        except ToolError as error:
            assert error.code is ErrorCode.BAD_TRACE  # noqa: PT017 - damage may also do no harm


def program(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A trace-cmd that behaves as it may on a hostile file."""
    path = directory / trace_cmd.PROGRAM
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_a_trace_cmd_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "echo $$ >&2; echo $$ > " + str(tmp_path / "pid") + "; exec sleep 1000")
    monkeypatch.setattr(trace_cmd, "SILENCE_S", 0.5)
    assert "wrote nothing" in refused(DAT).message
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_trace_cmd_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "          <idle>-0     [000]    20.552204634: cpu_idle: state=1 cpu_id=0"
    program(tmp_path, monkeypatch, f"exec yes '{line}'")
    begin = time.monotonic()
    with pytest.raises(ToolError, match="GB of memory"):
        open_trace(DAT, memory=20_000_000)
    assert time.monotonic() - begin < 60


def test_a_trace_cmd_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "echo 'bad \033[31mfile' >&2; exit 3")
    assert "bad \\x1b[31mfile" in refused(DAT).message


def test_a_name_that_looks_like_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DAT, tmp_path / "--help")
    monkeypatch.chdir(tmp_path)
    assert len(open_trace(Path("--help")).table("switches")) == 5248


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b'{"traceEvents": []}', "JSON"),
        (b"[]", "JSON"),
        (b"SQLite format 3\0", "a database"),
        (b"PERFILE2" + bytes(100), "perf"),
        (b"PK\x03\x04", "zip"),
        (gzip.compress(trace_cmd.MAGIC + bytes(100), mtime=0), "packed file of trace-cmd"),
        (gzip.compress(b'{"a": 1}', mtime=0), "JSON"),
        (b"", "no event"),
        (b"text\n", "no event"),
    ],
)
def test_other_kinds_of_files_are_named(start: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(start)
    assert what in refused(path).message


def test_what_is_no_file(tmp_path: Path) -> None:
    refused(tmp_path)
    refused(tmp_path / "missing")
