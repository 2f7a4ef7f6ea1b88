"""``whystall ftrace convert`` as a user meets it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scheduled import BUSY_NS, PERIOD_NS, PERIODS, REAL_NS, TID, profile_text, trace_text, write

pytestmark = pytest.mark.thorough

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace file."""
    return write(tmp_path)[0]


@pytest.fixture
def convert(whystall: Run) -> Run:
    """Run the command."""
    return lambda *words, **options: whystall("ftrace", "convert", *map(str, words), **options)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The summary."""
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(done: subprocess.CompletedProcess[str], code: str, *parts: str) -> None:
    """One line of an error with `code`."""
    assert done.stderr.startswith(f"error: {code}: "), done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert all(part in done.stderr for part in parts), done.stderr
    assert done.returncode == (2 if code == "bad_argument" else 1)
    assert done.stdout == ""


def slices(path: Path, name: str) -> list[dict[str, Any]]:
    """The complete events of a JSON timeline that are called `name`."""
    events = json.loads(path.read_text())
    events = events if isinstance(events, list) else events["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and event["name"] == name]


def test_the_name_says_the_format(trace: Path, convert: Run, tmp_path: Path) -> None:
    for name, format in (("t.json", "json"), ("t.pftrace", "perfetto"), ("ftrace_data.db", "db"), ("t.txt", "text")):
        found = answer(convert("--input", trace, "--output", tmp_path / name, "--json"))
        assert (found["format"], found["path"]) == (format, str(tmp_path / name))
        assert found["bytes"] == (tmp_path / name).stat().st_size > 0
        assert found["items"] > 0
        assert found["events"] == {"switches": 2 * PERIODS, "wakeups": PERIODS}
        assert (found["lost"], found["holes"], found["odd_lines"], found["clock"]) == (0, [], 0, "mono")
    assert len(slices(tmp_path / "t.json", "Running")) == PERIODS
    with sqlite3.connect(tmp_path / "ftrace_data.db") as database:
        assert database.execute("pragma quick_check").fetchone() == ("ok",)
    again = answer(convert("--input", tmp_path / "t.txt", "--output", tmp_path / "again.json", "--json"))
    assert again["events"] == {"switches": 2 * PERIODS, "wakeups": PERIODS}


def test_older_and_newer_spellings_write_the_same(trace: Path, convert: Run, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    profile = tmp_path / "profile.json"
    for output, words in (
        (first, ("--cpu_list", "0", "--profiling_data", profile)),
        (second, ("--cpu", "0-0", "--profiling-data", profile, "--format", "json")),
    ):
        answer(convert("--input", trace, "--output", output, *words, "--json"))
    assert first.read_bytes() == second.read_bytes()


def test_a_profile_gives_the_clock_and_may_be_drawn(trace: Path, convert: Run, tmp_path: Path) -> None:
    output, profile = tmp_path / "t.json", tmp_path / "profile.json"
    done = convert("--input", trace, "--output", output, "--profiling_data", profile, "--with-profile", "--json")
    placed = answer(done)["alignment"]
    assert placed["method"] == "real > mono"
    assert placed["residual_us"] <= 100
    assert placed["profile"] == str(profile)
    begins = sorted(float(event["ts"]) for event in slices(output, "Running"))
    wanted = [(REAL_NS + number * PERIOD_NS + 105_000) / 1e3 for number in range(PERIODS)]
    assert [abs(a - b) < 1 for a, b in zip(begins, wanted, strict=True)] == [True] * PERIODS
    assert {round(float(event["dur"])) for event in slices(output, "Running")} == {BUSY_NS // 1000 - 5}
    assert len(slices(output, "gemm")) == PERIODS


def test_container_pids_are_written(trace: Path, convert: Run, tmp_path: Path) -> None:
    mapping, output = tmp_path / "pid_mapping.json", tmp_path / "t.json"
    mapping.write_text(json.dumps({str(TID): {"NSpid": "77", "name": "train", "Tgid": str(TID), "PPid": "1"}}))
    answer(convert("--input", trace, "--output", output, "--pid_mapping", mapping, "--json"))
    assert "train:77" in output.read_text()
    assert f"train:{TID}" not in output.read_text()


def test_what_could_not_be_read_is_counted_and_inert(trace: Path, convert: Run, tmp_path: Path) -> None:
    hostile = "\x1b[31m owned \u202e `$(id)`\n"
    trace.write_text(trace_text().replace("# whystall-lost", hostile + "CPU:0 [LOST 17 EVENTS]\n# whystall-lost"))
    done = convert("--input", trace, "--output", tmp_path / "t.json", "--json")
    found = answer(done)
    assert found["odd_lines"] == 1
    assert "owned" in found["odd_examples"][0]
    text = convert("--input", trace, "--output", tmp_path / "t2.json").stdout
    assert "owned" in text
    for said in (done.stdout, text):
        assert not any(char in said for char in "\x1b\u202e")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_summary_in_words(lang: str, trace: Path, convert: Run, tmp_path: Path) -> None:
    done = convert("--input", trace, "--output", tmp_path / "t.json", "--lang", lang)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "t.json") in done.stdout
    assert "{" not in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (("--output", "{dir}/t.unknown"), "bad_argument", ("--format", ".pftrace")),
        (("--output", "{dir}/t.json", "--format", "db"), "bad_argument", ("t.json",)),
        (("--output", "{dir}/t.db"), "bad_argument", ("ftrace_data",)),
        (("--output", "{dir}/there.json"), "bad_argument", ("exists", "--overwrite")),
        (("--output", "{dir}/nowhere/t.json"), "io_error", ("t.json",)),
        (("--output", "{dir}"), "bad_argument", ()),
        (("--output", "{dir}/t.json", "--cpu", "7"), "bad_argument", ("CPU",)),
        (("--output", "{dir}/t.json", "--cpu", "x"), "bad_argument", ("'x'",)),
        (("--output", "{dir}/t.json", "--format", "xml"), "bad_argument", ("perfetto",)),
        (("--output", "{dir}/t.json", "--with-profile"), "bad_argument", ("--profiling_data",)),
        (("--output", "{dir}/t.json", "--profiling_data", "{dir}/nothing"), "bad_trace", ("nothing",)),
        (("--output", "{dir}/t.json", "--profiling_data", "/dev/zero"), "bad_trace", ("/dev/zero",)),
        (("--output", "{dir}/t.json", "--profiling_data", "{dir}/trace.txt"), "bad_trace", ("trace.txt",)),
        (("--output", "{dir}/t.json", "--pid_mapping", "{dir}/trace.txt"), "bad_argument", ("trace.txt",)),
        (("--output", "{dir}/t.json", "--pid_mapping", "{dir}/nothing"), "bad_argument", ("nothing",)),
        (("--input", "{dir}/nothing", "--output", "{dir}/t.json"), "bad_trace", ("nothing",)),
        (("--input", "{dir}/profile.json", "--output", "{dir}/t.json"), "bad_trace", ("JSON",)),
        (("--input", "/dev/zero", "--output", "{dir}/t.json"), "bad_trace", ("/dev/zero",)),
        (("--input", "{dir}", "--output", "{dir}/t.json"), "bad_recording", ()),
    ],
)
def test_what_is_refused_leaves_nothing(
    words: tuple[str, ...], code: str, parts: tuple[str, ...], trace: Path, convert: Run, tmp_path: Path
) -> None:
    (tmp_path / "there.json").write_text("precious")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    given = [word.format(dir=tmp_path) for word in words]
    refused(convert(*(() if "--input" in words else ("--input", trace)), *given), code, *parts)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("clock", "later_s", "code"), [("local", 0.0, "clock_mismatch"), ("mono", 3600.0, "no_overlap")]
)
def test_a_profile_that_cannot_be_placed_is_refused(
    clock: str, later_s: float, code: str, convert: Run, tmp_path: Path
) -> None:
    trace, profile = write(tmp_path, clock, later_s)
    output = tmp_path / "t.json"
    refused(convert("--input", trace, "--output", output, "--profiling_data", profile), code)
    assert not output.exists()
    done = convert("--input", trace, "--output", output)  # without it, the trace is fine
    assert done.returncode == 0, done.stderr


def test_ranks_of_one_host_share_its_clocks(trace: Path, convert: Run, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    for rank in (1, 0):
        (tmp_path / "profiles" / f"rank{rank}.json").write_text(profile_text())
    words = ("--input", trace, "--output", tmp_path / "t.json", "--profiling_data", tmp_path / "profiles", "--json")
    assert answer(convert(*words))["alignment"]["profile"].endswith("rank0.json")


def test_an_existing_output_is_replaced_when_asked(trace: Path, convert: Run, tmp_path: Path) -> None:
    output = tmp_path / "t.json"
    output.write_text("old")
    answer(convert("--input", trace, "--output", output, "--overwrite", "--json"))
    assert slices(output, "Running")


def test_a_trace_without_scheduling_is_said_to_show_nothing(convert: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    line = "  worker-7 [000] d..2. 5.{:06d}: thermal_temperature: id=0\n"
    trace.write_text("".join(line.format(number) for number in range(9)))
    done = convert("--input", trace, "--output", tmp_path / "t.json")
    assert done.returncode == 0, done.stderr
    assert "no event that a lane shows" in done.stdout
    assert "9 thermal_temperature" in done.stdout
