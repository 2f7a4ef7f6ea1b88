"""What programs write into the trace: lines as atrace, Chrome and the kernel's tests of catapult have them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from whystall.tools.timeline.convert import convert
from whystall.tools.timeline.drawing.build import draw
from whystall.tools.timeline.ftrace.text import read
from whystall.tools.timeline.sched import SchedTrace
from whystall.tools.timeline.writers import chrome

HEAD = "  SurfaceFlinger-4831  [001] ...1 80909.{:06}: "


def text(tmp_path: Path, *events: str, name: str = "tracing_mark_write: ") -> SchedTrace:
    """The trace of one thread that wrote these messages, a microsecond apart."""
    path = tmp_path / "trace.txt"
    path.write_text("".join(HEAD.format(at) + name + what + "\n" for at, what in enumerate(events)))
    return read(path)


@pytest.mark.parametrize("name", ["tracing_mark_write: ", "0: ", "print:                tracing_mark_write: "])
@pytest.mark.parametrize(
    ("what", "row"),
    [
        ("B|4829|latch buffer", ("begin", 4829, "latch buffer", -1)),
        ("B|4829|Loop|arg1=1|cat1", ("begin", 4829, "Loop|arg1=1|cat1", -1)),
        ("E", ("end", -1, "", -1)),
        ("E|4829", ("end", 4829, "", -1)),
        ("E|4829|Loop||cat1", ("end", 4829, "", -1)),
        ("C|4829|com.x/y.Launcher|0", ("counter", 4829, "com.x/y.Launcher", 0)),
        ("C|4829|counter1|-10|cat1", ("counter", 4829, "counter1", -10)),
        ("S|9649|animator:alpha|1113053968", ("async_begin", 9649, "animator:alpha", 1113053968)),
        ("F|9649|animator:alpha|1113053968|arg3=3|cat1", ("async_end", 9649, "animator:alpha", 1113053968)),
        ("I|4829|vsync", ("instant", 4829, "vsync", -1)),
    ],
)
@pytest.mark.thorough
def test_messages_in_all_forms(tmp_path: Path, name: str, what: str, row: tuple[object, ...]) -> None:
    trace = text(tmp_path, what, name=name)
    assert trace.table("markers").rows() == [(80909000000000, 1, 4831, *row)]
    assert (trace.others, trace.odd.count) == ({}, 0)


@pytest.mark.parametrize("what", ["hello", "Beginning|1|x", "B", "C|1|x|many", "trace_event_clock_sync: parent_ts=0.0"])
def test_other_messages_are_events_without_a_table(tmp_path: Path, what: str) -> None:
    trace = text(tmp_path, what)
    assert (trace.table("markers").height, dict(trace.others), trace.odd.count) == (0, {"tracing_mark_write": 1}, 0)


EVENTS = ("B|4829|outer", "B|4829|inner", "E", "S|4829|copy|1", "S|4829|copy|2", "F|4829|copy|1", "C|4829|queued|3")
EVENTS += ("F|4829|copy|2", "E|4829", "E", "B|4829|left open", "I|4829|mark", "C|4829|queued|0")


def test_sections_nest_and_counters_have_values(tmp_path: Path) -> None:
    out = io.BytesIO()
    chrome.write(draw(text(tmp_path, *EVENTS)), out)
    events = [one for one in json.loads(out.getvalue()) if one.get("pid") == "Markers" and one["ph"] in "XCi"]
    start = 80909000000
    found = {(one["ph"], one.get("tid", ""), one["name"]): one for one in events}
    slices = {key[1:]: (one["ts"] - start, one["dur"]) for key, one in found.items() if key[0] == "X"}
    assert slices == {
        ("SurfaceFlinger:4831", "outer"): (0, 8),
        ("SurfaceFlinger:4831", "inner"): (1, 1),
        ("SurfaceFlinger:4831", "left open"): (10, 2),
        ("copy (4829)", "copy"): (3, 2),
        ("copy (4829) #2", "copy"): (4, 3),
    }
    assert found["X", "SurfaceFlinger:4831", "left open"]["args"] == {"open": "end"}
    counters = [(one["name"], one["ts"] - start, one["args"]["value"]) for one in events if one["ph"] == "C"]
    assert counters == [("queued (4829)", 6, 3), ("queued (4829)", 12, 0)]
    assert found["i", "SurfaceFlinger:4831", "mark"]["ts"] - start == 11


@pytest.mark.parametrize(("name", "format"), [("o.pftrace", "perfetto"), ("ftrace_data.db", "db"), ("o.txt", "text")])
def test_other_formats_hold_them_too(tmp_path: Path, name: str, format: str) -> None:
    convert(text(tmp_path, *EVENTS), tmp_path / name, format)  # type: ignore[arg-type]
    content = (tmp_path / name).read_bytes()
    assert b"inner" in content
    assert b"queued" in content
