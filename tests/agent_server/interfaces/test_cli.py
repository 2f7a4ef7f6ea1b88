"""The command line as a user meets it: real processes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
WHYSTALL = str(Path(sys.executable).with_name("whystall"))
TOOLS = ("biolatency", "fileslower", "host_snapshot", "offcputime")


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line on standard error."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.thorough
def test_help_names_every_command_and_ends_well(whystall: Run) -> None:
    for words in ((), ("--help",), ("-h",)):
        done = whystall(*words)
        assert done.returncode == 0, done.stderr
        for name in ("doctor", "tools", "run", "record", "diagnose", "serve", "kb", "tickets", "verify"):
            assert f"\n  {name} " in done.stdout


def test_help_of_a_tool_shows_types_bounds_and_defaults_of_its_parameters(whystall: Run) -> None:
    text = " ".join(whystall("run", "fileslower", "--help").stdout.split())
    assert "--duration <float range> seconds to observe (default: 10) [0.1<=x<=600]" in text
    assert "--pid <int range>" in text
    assert "--min-ms <float range> list from this length, ms; 0: all (default: 10)" in text
    assert "--from PATH" in text
    assert "--engine <auto|ebpf|bcc|tracefs|procfs>" in text


def test_tools_lists_what_run_runs(whystall: Run) -> None:
    listed = {tool["name"] for tool in json.loads(whystall("tools", "--json").stdout)}
    assert set(TOOLS) <= listed
    text = whystall("tools").stdout
    assert all(f"\n{name} " in f"\n{text}" for name in listed)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("run", "fileslower", "--nope", "1"), ("unknown argument '--nope'", "--min-ms", "--duration")),
        (("run", "nope"), ("'nope'", "valid: ", "fileslower")),
        (("run",), ("Missing command", "host_snapshot")),
        (("nope",), ("'nope'", "diagnose")),
        (("run", "fileslower", "--min-ms", "-1"), ("--min-ms", "greater than or equal to 0")),
        (("run", "fileslower", "--duration", "601"), ("--duration", "600")),
        (("run", "fileslower", "--duration", "soon"), ("--duration", "number")),
        (("run", "fileslower", "--comm", "x" * 16), ("comm", "15")),
        (("run", "fileslower", "--engine", "dtrace"), ("--engine", "procfs")),
        (("run", "fileslower", "surprise"), ("surprise",)),
        (("diagnose", "--pid", "1", "--comm", "x"), ("only one of pid, comm, cgroup",)),
        (("record", "--duration", "1"), ("--out",)),
        (("record", "--out", "somewhere"), ("--duration",)),
        (("kb", "search", "x", "--limit", "0"), ("--limit",)),
        (("kb", "search", " "), ("nothing to search for",)),
        (("diagnose", "--children"), ("children needs a pid or comm",)),
        (("tickets", "resolve", "1"), ("--because",)),
        (("serve", "--transport", "http", "--host", "0.0.0.0"), ("no token", "WHYSTALL_TOKEN")),
        (("serve", "--transport", "http", "--token", "short"), ("16",)),
        (("serve", "--tools", "core,nope"), ("'nope'", "core", "ranks", "fileslower")),
    ],
)
def test_bad_arguments_are_one_line_with_a_remedy_and_status_2(
    whystall: Run, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    done = whystall(*words)
    line = one_line(done)
    assert line.startswith("error: bad_argument: ")
    assert "; " in line
    assert all(part in line for part in parts), line
    assert done.returncode == 2
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "fileslower", "--pid", "4194304"), "no_such_process"),
        (("run", "host_snapshot", "--cgroup", "/no/such/group"), "no_such_cgroup"),
        (("diagnose", "--comm", "no such comm"), "no_such_process"),
        (("run", "fileslower", "--from", "/nonexistent"), "bad_recording"),
        (("kb", "show", "no-such-incident"), "not_found"),
        (("tickets", "show", "999999"), "not_found"),
        (("verify", "999999"), "not_found"),
        (("kb", "add", "/nonexistent"), "io_error"),
        (("serve", "--transport", "http", "--token-file", "/nonexistent"), "io_error"),
    ],
)
def test_failures_are_one_line_with_status_1(whystall: Run, words: tuple[str, ...], code: str) -> None:
    done = whystall(*words)
    assert one_line(done).startswith(f"error: {code}: ")
    assert done.returncode == 1
    assert done.stdout == ""


def test_with_json_a_failure_is_an_object_too(whystall: Run) -> None:
    done = whystall("run", "fileslower", "--from", "/nonexistent", "--json")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "bad_recording"
    assert one_line(done) == f"error: bad_recording: {error['message']}; {error['remedy']}"
    assert done.returncode == 1


def test_names_are_accepted_with_hyphens_and_underscores(whystall: Run, recording: Path) -> None:
    answers = [
        json.loads(whystall("run", tool, option, "20", "--from", str(recording), "--json").stdout)
        for tool, option in (("fileslower", "--min-ms"), ("fileslower", "--min_ms"))
    ]
    assert answers[0] == answers[1]
    for name in ("host_snapshot", "host-snapshot"):
        assert json.loads(whystall("run", name, "--from", str(recording), "--json").stdout)["tool"] == "host_snapshot"


def test_a_recording_is_judged_as_text_and_as_json(whystall: Run, recording: Path) -> None:
    for tool in TOOLS:
        done = whystall("run", tool, "--from", str(recording))
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""  # no progress bar in a pipe
        assert done.stdout.strip()
        assert json.loads(whystall("run", tool, "--from", str(recording), "--json").stdout)["tool"] == tool


def test_a_terminal_sees_a_progress_bar_and_the_answer_stays_clean(env: dict[str, str]) -> None:
    terminal, ours = pty.openpty()
    command = [WHYSTALL, "run", "host_snapshot", "--duration", "0.5", "--json"]
    with subprocess.Popen(command, env={**env, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=ours) as child:
        os.close(ours)
        seen = b""
        with contextlib.suppress(OSError):  # a terminal whose last user left reads as an error
            while chunk := os.read(terminal, 65536):
                seen += chunk
        os.close(terminal)
        assert child.stdout is not None
        answer = json.loads(child.stdout.read())
    assert child.returncode == 0
    assert answer["tool"] == "host_snapshot"
    assert b"observing" in seen


def test_any_verdict_is_an_answer(whystall: Run, recording: Path) -> None:
    done = whystall("diagnose", "--from", str(recording), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] in ("healthy", "inconclusive", "likely", "confirmed")
    for lang in ("en", "zh"):
        assert whystall("diagnose", "--from", str(recording), "--lang", lang).returncode == 0


def test_hostile_names_are_inert_in_errors(whystall: Run) -> None:
    hostile = "\x1b[31mred\x07\u202e\n$(id)`x`"
    for words in (("run", "fileslower", "--from", hostile), ("kb", "show", hostile), ("run", hostile), (hostile,)):
        done = whystall(*words, "--json")
        text = done.stdout + done.stderr
        assert done.returncode in (1, 2)
        assert not any(c in text for c in "\x1b\x07\u202e")
        assert json.loads(done.stdout)["error"]
        one_line(done)


def test_hostile_bytes_in_arguments_do_not_break_the_output(env: dict[str, str]) -> None:
    done = subprocess.run([WHYSTALL, "kb", "show", b"\xff\xfe[bold]"], env=env, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: not_found: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_leaves_is_not_our_failure(env: dict[str, str], recording: Path) -> None:
    command = [WHYSTALL, "run", "host_snapshot", "--from", str(recording), "--json"]
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as closed:
        done = subprocess.run(command, env=env, stdout=closed, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.thorough
def test_streams_that_were_closed_at_the_start_are_no_failure_of_ours(env: dict[str, str], state: Path) -> None:
    def ended(closed: str, *words: str) -> tuple[int, str]:
        shell = ["sh", "-c", f'"$0" "$@" {closed}', WHYSTALL, *words]
        done = subprocess.run(shell, env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    assert ended(">&-", "kb", "stats") == (141, "")
    assert ended("<&- >&-", "kb", "export") == (141, "")
    assert ended("<&- >&- 2>&-", "kb", "stats") == (141, "")
    status, said = ended("2>&-", "kb", "stats")
    assert (status, said.startswith("cards: ")) == (0, True)
    assert ended("2>&-", "kb", "show", "nothing") == (1, "")
    assert (state / "knowledge.db").read_bytes().startswith(b"SQLite format 3")


def test_a_full_disk_under_the_output_is_said(env: dict[str, str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([WHYSTALL, "tools"], env=env, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: disk_full: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.thorough
def test_only_serve_imports_the_mcp_sdk_and_only_a_terminal_needs_rich(env: dict[str, str], recording: Path) -> None:
    program = (
        "import sys\n"
        "from whystall.agent_server.interfaces.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print(*{m.partition('.')[0] for m in sys.modules}, file=sys.stderr)\n"
    )
    for words in (
        ["run", "fileslower", "--from", str(recording)],
        ["kb", "search", "slow"],
        ["tickets", "list"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *words, "--json"], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert not {"mcp", "mcp_types", "starlette", "uvicorn", "httpx", "httpx2", "rich"} & set(done.stderr.split())


def test_an_incident_is_added_found_and_shown(whystall: Run, tmp_path: Path) -> None:
    words = {"en": "Loader workers fight for zygotefrob", "zh": "数据加载争用"}
    incident = {
        "id": "own-zygotefrob",
        "title": words,
        "symptom": words,
        "cause": None,
        "root_cause": words,
        "fix": words,
        "source": "our own",
    }
    file = tmp_path / "incident.json"
    file.write_text(json.dumps(incident))
    assert whystall("kb", "add", str(file)).returncode == 0
    again = whystall("kb", "add", "-", input=json.dumps(incident))
    assert again.returncode == 2
    assert "exists" in one_line(again)
    hits = json.loads(whystall("kb", "search", "zygotefrob", "--json").stdout)["hits"]
    assert [hit["incident"]["id"] for hit in hits] == ["own-zygotefrob"]
    assert words["zh"] in whystall("kb", "show", "own-zygotefrob", "--lang", "zh").stdout
    assert words["en"] in whystall("kb", "search", "zygotefrob").stdout


@pytest.mark.parametrize("text", ["", "[1]", "id: [", "id: x", "\x00", "{}", "a: &a [*a]"])
def test_a_broken_incident_is_refused_in_one_line(whystall: Run, text: str) -> None:
    done = whystall("kb", "add", "-", input=text)
    assert one_line(done).startswith("error: bad_argument: - is no incident: ")
    assert done.returncode == 2
