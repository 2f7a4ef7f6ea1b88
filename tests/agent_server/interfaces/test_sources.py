"""Trace files and profiles as sources, at both doors: what is judged, and what is refused and how."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from scheduled import PERIODS, TID, profile_text, trace_text, write

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.server import McpServer

pytestmark = pytest.mark.thorough

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def _own_state(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(state))


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The structured answer of a command."""
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(done: subprocess.CompletedProcess[str], code: str) -> str:
    """The one line of an error with `code`."""
    assert done.stderr.startswith(f"error: {code}: "), done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "; " in done.stderr
    assert done.returncode == (2 if code == "bad_argument" else 1)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_file_is_judged_like_a_recording(packed: bool, tmp_path: Path, whystall: Run) -> None:
    trace = tmp_path / ("trace.txt.gz" if packed else "trace.txt")
    trace.write_bytes(gzip.compress(trace_text().encode()) if packed else trace_text().encode())
    found = answer(whystall("run", "ftrace_capture", "--from", str(trace), "--json"))
    assert found["coverage"]["recording"] == trace.name
    assert found["coverage"]["start"].startswith("2023-11-14T22:13:20")
    assert found["data"]["events"]["switches"] == 2 * PERIODS
    assert [thread["tid"] for thread in found["data"]["threads"]] == [TID]
    assert whystall("diagnose", "--from", str(trace)).returncode == 0


def test_a_profile_joins_the_trace(tmp_path: Path, whystall: Run) -> None:
    trace, profile = write(tmp_path)
    words = ("run", "host_bound", "--from", str(trace), "--pid", str(TID), "--profile", str(profile))
    found = answer(whystall(*words, "--json"))
    assert {entry["name"] for entry in found["coverage"]["collectors"]} == {"ftrace", "profile"}
    assert "alignment" in {spot["code"] for spot in found["coverage"]["not_seen"]}
    assert [device["device"] for device in found["data"]["devices"]] == [0]
    assert [one["tid"] for one in found["data"]["dispatchers"]] == [TID]
    for lang in ("en", "zh"):
        assert whystall(*words, "--lang", lang).returncode == 0
    diagnosed = whystall("diagnose", "--from", str(trace), "--profile", str(profile), "--symptom", "GPU idle", "--json")
    assert answer(diagnosed)["verdict"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_worst_moments_are_a_page_whose_path_is_told(lang: str, tmp_path: Path, whystall: Run) -> None:
    trace, profile = write(tmp_path)
    done = whystall(
        *("run", "host_bound", "--from", str(trace), "--pid", str(TID), "--profile", str(profile), "--lang", lang)
    )
    (path,) = re.findall(r"/\S+?-moments\.html", done.stdout.splitlines()[-1])[:1]
    page = Path(path).read_text()
    assert f'<html lang="{lang}">' in page
    assert page.count('<section class="panel"') in range(1, 11)


def test_an_answer_about_no_thread_is_no_health(tmp_path: Path, whystall: Run) -> None:
    trace, _ = write(tmp_path)
    found = answer(whystall("run", "host_bound", "--from", str(trace), "--json"))
    assert (found["status"], found["findings"], found["artifacts"]) == ("partial", [], [])
    assert "no_dispatch_thread" in {spot["code"] for spot in found["coverage"]["not_seen"]}


@pytest.mark.anyio
async def test_both_doors_give_the_same(tmp_path: Path, whystall: Run) -> None:
    trace, profile = write(tmp_path)
    with App().closing() as app:
        async with Client(McpServer(app).server) as client:
            given = {"recording": str(trace), "profile": str(profile), "pid": TID}
            result = await client.call_tool("host_bound", given)
    assert not result.is_error, result.content
    words = ("--from", str(trace), "--profile", str(profile), "--pid", str(TID), "--json")
    printed = answer(whystall("run", "host_bound", *words))
    assert {**result.structured_content, "artifacts": 0} == {**printed, "artifacts": 0}


NO_TRACES = {
    "empty": b"",
    "prose": b"Four score and seven years ago\n" * 1000,
    "json": profile_text().encode(),
    "binary": os.urandom(1 << 16),
    "html": b"<!DOCTYPE html><html><body>nothing here</body></html>",
    "gz": gzip.compress(b"Four score and seven years ago\n" * 1000),
    "dat": b"\x17\x08Dtracing6\x00" + bytes(1000),
}


@pytest.mark.parametrize("name", NO_TRACES)
def test_what_is_no_trace_is_refused(name: str, tmp_path: Path, whystall: Run) -> None:
    file = tmp_path / f"trace.{name}"
    file.write_bytes(NO_TRACES[name])
    said = refused(whystall("run", "host_bound", "--from", str(file)), "bad_trace")
    assert "score" not in said  # no line of a stranger's file


def test_a_truncated_trace_is_judged_up_to_its_end_and_says_so(tmp_path: Path, whystall: Run) -> None:
    whole = trace_text().encode()
    for name, cut in (("t.txt", whole[: len(whole) // 2]), ("t.gz", gzip.compress(whole)[:4000])):
        (tmp_path / name).write_bytes(cut)
        found = answer(whystall("run", "ftrace_capture", "--from", str(tmp_path / name), "--json"))
        assert 0 < found["data"]["events"]["switches"] < 2 * PERIODS
        assert found["coverage"]["not_seen"], "nothing is said"


def test_a_pipe_or_a_device_is_no_source(tmp_path: Path, whystall: Run) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path / "nothing"):
        refused(whystall("run", "host_bound", "--from", str(path)), "bad_recording")
    trace, _ = write(tmp_path)
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path / "nothing"):
        refused(whystall("run", "host_bound", "--from", str(trace), "--profile", str(path)), "bad_trace")


@pytest.mark.parametrize(
    ("clock", "later_s", "code", "part"),
    [
        ("local", 0.0, "clock_mismatch", "--clock"),
        ("tai", 0.0, "clock_mismatch", "--clock"),
        ("mono", 3600.0, "no_overlap", "same time"),
        ("mono", -3600.0, "no_overlap", "same time"),
    ],
)
def test_a_profile_that_cannot_be_placed_is_refused(
    clock: str, later_s: float, code: str, part: str, tmp_path: Path, whystall: Run
) -> None:
    trace, profile = write(tmp_path, clock, later_s)
    words = ("run", "host_bound", "--from", str(trace), "--profile", str(profile))
    assert part in refused(whystall(*words), code)


@pytest.mark.parametrize("text", ["", "{}", "[", "not json", '{"traceEvents": []}', "\x00" * 100])
def test_what_is_no_profile_is_refused(text: str, tmp_path: Path, whystall: Run) -> None:
    trace, profile = write(tmp_path)
    profile.write_text(text)
    refused(whystall("run", "host_bound", "--from", str(trace), "--profile", str(profile)), "bad_trace")


def test_a_profile_needs_a_trace(tmp_path: Path, recording: Path, whystall: Run) -> None:
    _, profile = write(tmp_path)
    words = ("diagnose", "--from", str(recording), "--profile", str(profile))
    assert "--trace" in refused(whystall(*words), "missing_collector")
    assert "--trace" in refused(whystall("run", "host_bound", "--from", str(recording)), "missing_collector")


def test_several_ranks_are_named_and_none_is_guessed(tmp_path: Path, whystall: Run) -> None:
    trace, profile = write(tmp_path)
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for rank in (0, 1):
        (profiles / f"rank{rank}.json").write_bytes(profile.read_bytes())
    said = refused(whystall("run", "host_bound", "--from", str(trace), "--profile", str(profiles)), "bad_argument")
    assert "rank0.json" in said
    assert "rank1.json" in said


def test_a_window_is_not_spent_on_a_profile_that_cannot_be(tmp_path: Path, whystall: Run) -> None:
    words = ("run", "host_bound", "--duration", "600", "--profile", str(tmp_path / "nowhere" / "profile.json"))
    refused(whystall(*words), "bad_trace")


def test_a_kernel_log_is_judged(tmp_path: Path, whystall: Run) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text("[100.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=812, name=p, GPU has fallen off the bus.\n")
    found = answer(whystall("run", "gpu_health", "--kernel-log", str(log), "--json"))
    assert [(one["kind"], one["attributes"]["xid"], one["severity"]) for one in found["findings"]] == [
        ("gpu.xid", "79", "critical")
    ]
    text = whystall("run", "gpu_health", "--kernel-log", str(log), "--lang", "zh").stdout
    assert "0000:3b:00.0 报告 Xid 79" in text
    refused(whystall("run", "gpu_health", "--kernel-log", str(log), "--from", str(tmp_path)), "bad_argument")
    refused(whystall("run", "gpu_health", "--kernel-log", str(tmp_path / "none")), "io_error")
