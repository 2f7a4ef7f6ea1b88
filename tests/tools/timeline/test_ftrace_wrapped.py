"""Traces as systrace, atrace and Chrome wrap them, archives that hold none, and events with impossible instants."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from pathlib import Path

import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.ftrace.text import read
from whystall.tools.timeline.open_trace import open_trace
from whystall.tools.timeline.sched import SchedTrace

HEAD = "# tracer: nop\n#\n#            TASK-PID    CPU#    TIMESTAMP  FUNCTION\n#\n"
SWITCH = "prev_comm=a prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=b\"c' next_pid=8 next_prio=120"
LINES = (
    "     hwc_eventmon-336   [000] 50260.929925: 0: C|124|VSYNC|1\n"
    f"               a-7     [000] 50260.935656: sched_switch: {SWITCH}\n"
    "     hwc_eventmon-336   [000] 50260.946573: 0: C|124|VSYNC|0\n"
    "      InputReader-419   [000] 50262.538578: 0: C|360|iq|1\n"
)
DUMMY = "           dummy-0000  [000] 0.0: 0: trace_event_clock_sync: parent_ts=0.0\n"


def put(tmp_path: Path, content: str | bytes, name: str = "trace") -> Path:
    place = tmp_path / name
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    return place


def check(trace: SchedTrace) -> None:
    assert trace.table("markers").select("pid", "name", "value").rows() == [
        (124, "VSYNC", 1),
        (124, "VSYNC", 0),
        (360, "iq", 1),
    ]
    assert trace.table("switches").height == 1
    assert "b\"c'" in trace.table("names")["comm"].to_list()
    assert (trace.start_ns, trace.end_ns) == (50260929925000, 50262538578000)
    assert trace.odd.count == 0, trace.odd


@pytest.mark.parametrize("quotes", [False, True])
@pytest.mark.parametrize("end", ['\\n";\n', '         \\n";\n', '";\n'])
def test_a_page_with_the_text_in_a_string(tmp_path: Path, quotes: bool, end: str) -> None:
    """As systrace of 2012 wrote it; it escaped line feeds only."""
    body = (HEAD + LINES + DUMMY).replace('"', '\\"' if quotes else '"').replace("\n", "\\n\\\n")
    script = f'  <script>\n  var linuxPerfData = "\\\n{body}{end}  </script>\n'
    page = f"<!DOCTYPE HTML>\n<html>\n<body>\n{script}</body>\n</html>"
    trace = open_trace(put(tmp_path, page))
    check(trace)
    assert [code for code, _ in trace.notes] == ["far_off"]
    assert "1 of 5 events, at 0.000000 s: 14 h" in trace.notes[0][1]


def test_a_page_whose_text_is_escaped(tmp_path: Path) -> None:
    body = (HEAD + LINES).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    section = f'  <script class="trace-data" type="application/text">\n{body}  </script>\n'
    check(open_trace(put(tmp_path, f"<!DOCTYPE html>\n<html>\n{section}</html>\n")))


def test_a_page_without_such_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no event") as caught:
        open_trace(put(tmp_path, "<!DOCTYPE html>\n<html>\n<script id='viewer-data'>H4sIAAAAAAAA</script>\n</html>\n"))
    assert "made from" in caught.value.remedy


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r\r\n"])
@pytest.mark.parametrize("level", [1, 6, 9])
def test_compressed_output_of_atrace(tmp_path: Path, ending: bytes, level: int) -> None:
    """adb shell puts carriage returns before line feeds, also within compressed data."""
    packed = zlib.compress((HEAD + LINES).encode() + b"#\n" * 5000 + bytes(range(32, 127)) * 300 + b"\n", level)
    content = (b"capturing trace... done\nTRACE:\n" + packed).replace(b"\n", ending)
    trace = open_trace(put(tmp_path, content))
    assert trace.odd.count == 1  # the filler
    assert (trace.table("markers").height, trace.table("switches").height) == (3, 1)


def test_atrace_that_breaks_off(tmp_path: Path) -> None:
    lines = "".join(f"  a-7     [000] {50260 + n}.929925: 0: C|124|VSYNC|{n}\n" for n in range(5000))
    packed = zlib.compress(lines.encode())
    trace = read(put(tmp_path, b"TRACE:\n" + packed[: len(packed) // 2]))
    assert 1000 < trace.table("markers").height < 5000
    assert "cut_short" in dict(trace.notes)


def test_atrace_without_compression(tmp_path: Path) -> None:
    check(open_trace(put(tmp_path, f"capturing trace... done\r\nTRACE:\r\n{HEAD}{LINES}".replace("\n", "\r\n"))))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_text_within_json(tmp_path: Path, pack: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chrome's JSON (Trace Event Format): the string `systemTraceEvents`."""
    content = {"traceEvents": [{"ph": "X", "name": '"x"', "ts": n} for n in range(3000)]}
    text = json.dumps(content | {"systemTraceEvents": HEAD + LINES, "metadata": {"a": 'b"'}}).encode()
    place = put(tmp_path, pack(text))  # type: ignore[operator]
    check(open_trace(place))
    for block in (4096, 4099):
        monkeypatch.setattr("whystall.tools.timeline.ftrace.source.BLOCK", block)
        check(read(place))


@pytest.mark.parametrize("content", [b"{'1': '2'}", b'{"traceEvents": []}', b'{"systemTraceEvents": 5}'])
def test_json_without_it_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ToolError, match="JSON without") as caught:
        open_trace(put(tmp_path, content))
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_an_archive_of_schedviz_is_refused(tmp_path: Path) -> None:
    """Its trace.sh packs formats, topology and trace_pipe_raw of each CPU."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in ("formats/header_page", "metadata.textproto", "traces/cpu0"):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(ToolError, match="archive of tar") as caught:
        open_trace(put(tmp_path, out.getvalue(), "trace.tar.gz"))
    assert "SchedViz" in caught.value.remedy


def lines(instants: list[float]) -> str:
    return "".join(f"  a-7     [000] {at:.6f}: cpu_idle: state={n % 3} cpu_id=0\n" for n, at in enumerate(instants))


STEADY = [15_000 + n / 1000 for n in range(500)]


@pytest.mark.parametrize(
    ("instants", "left_out"),
    [
        (STEADY, 0),
        ([*STEADY, STEADY[-1] + 50_000], 1),
        ([STEADY[0] - 14_000, *STEADY], 1),
        ([*STEADY[:200], 1.0, *STEADY[200:]], 1),
        ([*STEADY[:200], 99_999.0, 1.0, *STEADY[200:]], 2),
        # in order, and more than one: an idle CPU's older events
        ([1.0, 1.1, *STEADY], 0),
        # a pause is no outlier
        ([*STEADY[:250], *(at + 20 for at in STEADY[250:])], 0),
        ([*STEADY[:250], *(at + 50_000 for at in STEADY[250:])], 0),
        ([1.0, 7200.0, 7200.5], 0),
        ([7.0, 7.0, 7.0, 7.0, 7.0], 0),
    ],
)
def test_only_impossible_instants_are_left_out(tmp_path: Path, instants: list[float], left_out: int) -> None:
    trace = read(put(tmp_path, lines(instants)))
    power = trace.table("power")
    assert power.height == len(instants) - left_out
    assert (trace.start_ns, trace.end_ns) == (power["at_ns"].min(), power["at_ns"].max())
    assert ("far_off" in dict(trace.notes)) == (left_out > 0)
    if left_out:
        assert dict(trace.notes)["far_off"].startswith(f"{left_out} of {len(instants)} events, at ")
