"""Transcripts: what stands in them, how they grow, and which files are refused."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.diagnosis import transcript as format
from whystall.agent_server.diagnosis import transcript_files
from whystall.agent_server.diagnosis.transcript import CaseOpened, TranscribedModel, Transcript, TranscriptFile
from whystall.agent_server.diagnosis.transcript_reader import read
from whystall.agent_server.llm.wire import Function, LlmError, Message, Reply, ToolCall
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.toolbox import registry

CASE = CaseOpened(target="pid 1", duration=10, live=False, profiled=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def begun(symptom: str = "slow") -> Transcript:
    """A transcript that has begun."""
    return transcript_files.begin(symptom, load_causes(), registry().all())


def diagnosed(id: str) -> Diagnosis:
    """A diagnosis that holds nothing."""
    return Diagnosis(id=id, created="2026-01-02T03:04:05Z", target="pid 1", verdict=Verdict.INCONCLUSIVE)


def finished() -> Path:
    """The file of a whole transcript."""
    written = begun()
    written.case(CASE)
    written.end(diagnosed(written.id))
    written.close()
    return transcript_files.path_of(written.id)


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_is_read_by_its_owner_only_and_each_line_says_what_it_is() -> None:
    path = finished()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [record["type"] for record in lines(path)] == ["header", "case", "end"]
    header = lines(path)[0]
    assert header["id"] == path.stem
    assert header["symptom"] == "slow"
    told, end = read(path)
    assert told.case is not None
    assert told.case.model_copy(update={"at_s": None}) == CASE
    times = [record["at_s"] for record in lines(path)]
    assert times == sorted(times)
    assert end.diagnosis == path.stem


def test_a_conversation_is_written_once_however_often_it_is_sent() -> None:
    written = begun()
    functions = [Function(name="look", description="looks", parameters={"type": "object"})]
    messages = [Message(role="system", content="s" * 1000)]
    for turn in range(50):
        messages.append(Message(role="user", content=f"{turn} " + "u" * 1000))
        written.request(messages, functions)
    messages[1] = Message(role="user", content="another")
    written.request(messages, [*functions, functions[0].model_copy(update={"name": "other"})])
    written.close()
    requests = [r for r in lines(transcript_files.path_of(written.id)) if r["type"] == "request"]
    whole: list[dict[str, Any]] = []
    for request in requests:
        whole = [*whole[: request["kept"]], *request["messages"]]
    assert [Message.model_validate(m) for m in whole] == messages
    assert [r["kept"] for r in requests] == [0, *range(2, 51), 1]
    assert [r["functions"] is not None for r in requests] == [True, *[False] * 49, True]
    assert sum(len(json.dumps(r)) for r in requests[:50]) < 2 * 51 * 1200


async def _overheard(answers: list[Reply | LlmError]) -> Transcript:
    class Scripted:
        name = "scripted"

        async def complete(self, messages: Any, functions: Any) -> Reply:
            answer = answers.pop(0)
            if isinstance(answer, LlmError):
                raise answer
            return answer

    written = begun()
    written.case(CASE.model_copy(update={"model": "scripted"}))
    model = TranscribedModel(Scripted(), written)
    assert model.name == "scripted"
    while answers:
        with suppress(LlmError):
            await model.complete([Message(role="user", content="go on")], [])
    written.struck([("number", "it took 99 s")])
    written.end(diagnosed(written.id))
    written.close()
    return written


def test_half_a_surrogate_pair_spoils_no_line() -> None:
    """A model may write the escape of one, and Python takes it for a character."""
    written = begun()
    written.case(CASE)
    written.reply(Reply(content=json.loads(r'"a\ud83d b"'), calls=[]))
    written.end(diagnosed(written.id))
    written.close()
    told, _ = read(transcript_files.path_of(written.id))
    assert told.answers[0].reply.content == "a? b"  # type: ignore[union-attr]


@pytest.mark.anyio
async def test_what_a_model_answers_or_fails_to_is_kept() -> None:
    reply = Reply(content="\u4f60 \U0001f600 \x1b[2J", calls=[ToolCall(id="1", name="look", arguments="{nonsense")])
    written = await _overheard([reply, LlmError("timeout", "60 s")])
    path = transcript_files.path_of(written.id)
    assert path.read_bytes().isascii()
    assert b"\x1b" not in path.read_bytes()
    told, _ = read(path)
    assert told.answers[0].reply == reply  # type: ignore[union-attr]
    assert told.answers[1].code == "timeout"  # type: ignore[union-attr]
    assert told.answers[1].message == "60 s"  # type: ignore[union-attr]
    assert [(c.code, c.text) for c in told.struck[0].claims] == [("number", "it took 99 s")]


def test_a_killed_process_leaves_what_it_had_done(home: Path) -> None:
    program = """
import sys, time
from whystall.agent_server.diagnosis import transcript_files
from whystall.agent_server.diagnosis.transcript import CaseOpened
written = transcript_files.begin("slow", {}, [])
written.case(CaseOpened(target="pid 1", duration=10, live=True, profiled=False))
print(written.id, flush=True)
time.sleep(600)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    path = transcript_files.path_of(child.stdout.readline().strip())
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert [record["type"] for record in lines(path)] == ["header", "case"]
    with pytest.raises(ToolError, match="ends after line 2") as error:
        read(path)
    assert error.value.code is ErrorCode.BAD_RECORDING


def test_it_ends_where_it_has_grown_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "MAX_BYTES", 20_000)
    written = begun()
    written.case(CASE)
    for _ in range(10):
        written.reply(Reply(content="x" * 5000))
    written.end(diagnosed(written.id))
    written.close()
    path = transcript_files.path_of(written.id)
    assert path.stat().st_size < 21_000
    assert lines(path)[-1]["type"] == "cut"
    with pytest.raises(ToolError, match="it was cut at"):
        read(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_ends_the_transcript_and_nothing_else() -> None:
    header = format.Header(whystall="1", id="20260101T000000-000000", created="", symptom="", causes="", tools="")
    written = TranscriptFile(open("/dev/full", "wb", buffering=0), "whystall://transcripts/x", header)  # noqa: SIM115
    assert written.uri is None
    assert written.fault == os.strerror(28)
    written.case(CASE)
    written.close()


def test_without_a_place_nothing_is_kept(home: Path) -> None:
    home.mkdir()
    (home / "transcripts").write_text("in the way")
    written = begun()
    assert written.uri is None
    assert transcript_files.is_id(written.id)
    written.case(CASE)
    written.end(diagnosed(written.id))
    written.close()
    assert transcript_files.ids() == []


def test_the_oldest_go_when_there_are_too_many(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_files, "KEPT", 3)
    directory = home / "transcripts"
    directory.mkdir(parents=True)
    old = [f"2020010{day}T000000-00000{day}" for day in range(1, 6)]
    for id in old:
        (directory / f"{id}.jsonl").write_text("{}\n")
    (directory / "notes.txt").write_text("of somebody")
    (directory / "notes.jsonl").write_text("of somebody")
    new = begun().id
    assert transcript_files.ids() == [new, old[4], old[3]]
    assert (directory / "notes.txt").exists()
    assert (directory / "notes.jsonl").exists()
    monkeypatch.setattr(transcript_files, "KEPT_BYTES", 2)
    latest = begun().id
    assert transcript_files.ids() == [latest]


@pytest.mark.parametrize(
    "id", ["", "x", "../knowledge.db", "20260101T000000-000000", "20260101T000000-000000.jsonl", "/etc/passwd", "a\0b"]
)
def test_an_id_leads_nowhere_else(id: str, home: Path) -> None:
    finished()
    (home / "knowledge.db").write_text("secret")
    with pytest.raises(ToolError) as error:
        transcript_files.path_of(id)
    assert error.value.code is ErrorCode.NOT_FOUND


def test_a_link_is_no_transcript(home: Path) -> None:
    finished()
    (home / "transcripts" / "20260101T000000-000000.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(ToolError):
        transcript_files.path_of("20260101T000000-000000")


def _header(**changes: Any) -> bytes:
    plain = {
        "type": "header",
        "schema_version": "1",
        "whystall": "1",
        "id": "20260101T000000-000000",
        "created": "",
        "symptom": "",
        "causes": "",
        "tools": "",
    }
    return json.dumps({**plain, **changes}).encode() + b"\n"


_OPENED = json.dumps(CASE.model_dump(mode="json")).encode() + b"\n"
_END = json.dumps(format.ending(diagnosed("x")).model_dump(mode="json")).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it is empty"),
        (b"\n", "its first line is no header"),
        (b"no JSON\n", "its first line is no header"),
        (b"\x1f\x8b\x08\x00\x00", "its first line is no header"),
        (_OPENED + _END, "its first line is no header"),
        (_header(schema_version="5") + _OPENED + _END, "version 5 of the format"),
        (_header(schema_version=1) + _OPENED + _END, "its first line is no header"),
        (_header(more="x") + _OPENED + _END, "line 1 cannot be used"),
        (_header() + _END, "it has no case"),
        (_header() + _OPENED + _OPENED + _END, "a second case"),
        (_header() + _END + _OPENED + _END, "does not belong there"),
        (_header() + _OPENED + _header() + _END, "does not belong there"),
        (_header() + _OPENED, "ends after line 2"),
        (_header() + _OPENED + _END[:-20], "ends after line 2"),
        (_header() + _OPENED + b'{"type": "plugin", "run": "rm"}\n' + _END, "line 3 cannot be used"),
        (_header() + _OPENED + b'{"type": "look"}\n' + _END, "line 3 cannot be used"),
        (_header() + b"[" * 100_000 + b"\n" + _END, "line 2 cannot be used"),
        (_header() + b'{"type": "case", "\x1b]0;x": 1}\n' + _END, "line 2 cannot be used"),
        (_header() + _OPENED.replace(b"10", b"1e999") + _END, "line 2 cannot be used"),
        (_header() + b"\xff\xfe\n" + _END, "line 2 cannot be used"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_transcript_is_refused_in_a_line(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "given.jsonl"
    path.write_bytes(content)
    with pytest.raises(ToolError, match=told) as error:
        read(path)
    assert error.value.code is ErrorCode.BAD_RECORDING
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (os.mkfifo, ErrorCode.BAD_RECORDING),
        (lambda path: path.mkdir(), ErrorCode.IO_ERROR),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 1 << 40), ErrorCode.BAD_RECORDING),
        (lambda path: path.symlink_to("/dev/zero"), ErrorCode.BAD_RECORDING),
        (lambda path: None, ErrorCode.IO_ERROR),
    ],
    ids=["pipe", "directory", "huge", "device", "nothing"],
)
def test_what_is_no_file_is_refused(make: Callable[[Path], object], code: ErrorCode, tmp_path: Path) -> None:
    path = tmp_path / "given.jsonl"
    make(path)
    with pytest.raises(ToolError) as error:
        read(path)
    assert error.value.code is code
