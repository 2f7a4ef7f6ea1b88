"""Readers of stack samples against texts as programs write them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.protobuf import message, number, text, varint
from whystall.tools.stacks.events import choose_event
from whystall.tools.stacks.formats import format_at, read
from whystall.tools.stacks.model import NO_STACK, StackProfile
from whystall.tools.stacks.readers import folded
from whystall.tools.stacks.tree import Part, call_tree

# As perf 6.1 writes them: -g; -F +srcline with an inlined frame and the unwinder's end; a tracepoint with arguments.
PERF = """\
# ========
# captured on    : Sun Nov 22 03:55:27 2026
# ========
#
python3 32600 15496.972026:    5025125 cpu-clock:
\t           fc2f5 _PyEval_EvalFrameDefault+0x1785 (/usr/lib/libpython3.11.so.1.0)
\t    7f904ffbd640 [unknown] ([unknown])

worker 1 2 32666/32670 [001] 15499.898405123:    5025125  cpu-clock:
\tffffffff8112a3b0 vfs_write+0x10 ([kernel.kallsyms])
\t           3f0d1 __GI_getenv+0x21
  getenv.c:38 (inlined)
\t          149d32 [unknown] (/usr/bin/perf (deleted))
  perf[149d32]
\t            1000 py::save:/job/train.py+0xb (/tmp/perf-32666.map)
\tffffffffffffffff [unknown] ([unknown])

swapper     0 [000] d..2. 15500.000001: sched:sched_switch: prev_comm=swapper/0 prev_pid=0 ==> next_comm=a b
\tffffffff81000000 __schedule+0x1 ([kernel.kallsyms])

lone 5 [000] 15500.000002:     250000 cycles:u:  7f9050 operator()(int) const+0x1f (/usr/bin/lone)
swapper     0 [000]    15501.000001: PERF_RECORD_LOST lost 7
what is this
"""


def put(tmp_path: Path, content: str | bytes) -> Path:
    """A file."""
    place = tmp_path / "profile"
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    return place


def weights(profile: StackProfile, event: str = "") -> dict[str, float]:
    """The weight of each path, its labels joined."""
    tree = call_tree(Part(profile, choose_event(profile, event)))
    return {
        ";".join(tree.label(up) for up in tree.path(node)): float(tree.own[0, node])
        for node in range(len(tree))
        if tree.own[0, node]
    }


def kinds(profile: StackProfile) -> dict[str, str]:
    return dict(profile.frames.select("name", "kind").iter_rows())


def odd(profile: StackProfile) -> int:
    return int(dict(profile.notes).get("odd_lines", "0"))


def test_folded_lines_of_all_kinds(tmp_path: Path) -> None:
    place = put(
        tmp_path,
        "main;f 1\r\nmain;f  2.5 \nmain;operator new(unsigned long) 3\nmain;gemm_[G] 1\nmain;[GPU_Kernel]gemm 1\n"
        "main;GPU:gemm 1\nmain;NPU:x 1\nmain;GPU:[idle] 1\nsys;read_[k] 2\nmain;jit_[j] 1\nmain;inner_[i] 1\n"
        'process 12:"python3 a.py";thread (0x7F12);save (train.py:212) 4\nmain;memcpy (libc.so.6) 1\n'
        "保存;<script>alert(1)</script> 1e-3\nzero 0\n"
        "nan nan\nminus -5\ninf inf\nhuge 1e400\nno count\n;; 3\n 7\n\n",
    )
    assert format_at(place).name == "folded"
    profile = read(place)
    assert odd(profile) == 7
    found = weights(profile)
    assert found["main;f"] == 3.5
    assert found["main;GPU:gemm"] == 3
    assert found["保存;<script>alert(1)</script>"] == 0.001
    assert found['process 12:"python3 a.py";thread (0x7F12);save (train.py:212)'] == 4
    assert profile.frames.filter(profile.frames["name"] == "save").select("file", "line").row(0) == ("train.py", 212)
    assert kinds(profile) == {
        **dict.fromkeys(["main", "f", "operator new(unsigned long)", "sys", "jit", "保存"], "other"),
        **dict.fromkeys(["<script>alert(1)</script>", "zero"], "other"),
        **dict.fromkeys(["GPU:gemm", "NPU:x"], "device"),
        **dict.fromkeys(["inner", "memcpy"], "native"),
        **dict.fromkeys(['process 12:"python3 a.py"', "thread (0x7F12)"], "thread"),
        **{"GPU:[idle]": "idle", "read": "kernel", "save": "python"},
    }


def test_two_counts_a_line_are_before_and_after(tmp_path: Path) -> None:
    profile = read(put(tmp_path, "a;b 1 2\na;c 0.5 0\nodd x\n"))
    assert (odd(profile), weights(profile, "before"), weights(profile, "after")) == (
        1,
        {"a;b": 1, "a;c": 0.5},
        {"a;b": 2},
    )
    with pytest.raises(ToolError, match="several events") as caught:
        choose_event(profile)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert weights(read(put(tmp_path, "a;foo 1 2\nb 3\n"))) == {"a;foo 1": 2, "b": 3}  # a name that ends with a number


def test_large_folded_files_read_in_parts_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    names = [f"f{number}" for number in range(30)]
    expected: dict[str, float] = {}
    lines = []
    for _ in range(4000):
        path = ";".join(chance.choice(names) for _ in range(chance.randrange(1, 9)))
        expected[path] = expected.get(path, 0) + 1.5
        lines.append(f"{path} 1.5\n")
    place = put(tmp_path, gzip.compress("".join(lines).encode()))
    monkeypatch.setattr("whystall.tools.stacks.readers.text.BLOCK", 4096)
    monkeypatch.setattr(folded.Text.__init__, "__defaults__", (4096,))
    monkeypatch.setattr(folded, "_TOGETHER", 500)
    assert weights(folded.read(place)) == expected
    monkeypatch.setattr(folded, "MOST_NODES", 1000)
    with pytest.raises(ToolError, match="different calls"):
        folded.read(place)


def test_folded_lines_that_look_like_something_else(tmp_path: Path) -> None:
    lines = ['"quoted;x" 1', "#hash;x 2", "null 3", "a,b\tc;x 4", "with\x01control;x 5", "with\x01control;x 5"]
    data = "\n".join(lines).encode() + b"\n\n\n\xff;x 6\n" + b"again;x 0.5\n" * 1000 + b"again;x nan\n" * 7
    profile = folded.read(put(tmp_path, data))
    assert (odd(profile), weights(profile)) == (
        7,
        {'"quoted;x"': 1, "#hash;x": 2, "null": 3, "a,b\\x09c;x": 4, "with\\x01control;x": 10}
        | {"\\xff;x": 6, "again;x": 500},
    )


def test_perf_script(tmp_path: Path) -> None:
    place = put(tmp_path, PERF)
    assert format_at(place).name == "perf_script"
    profile = read(place)
    assert odd(profile) == 1
    assert weights(profile, "cpu-clock") == {
        "[unknown];_PyEval_EvalFrameDefault": 5025125,
        "save (train.py);[perf (deleted)];__GI_getenv;vfs_write": 5025125,
    }
    assert weights(profile, "sched:sched_switch") == {"__schedule": 1}
    assert weights(profile, "cycles:u") == {"operator()(int) const": 250000}
    assert profile.events.rows()[0] == (0, "cpu-clock", "ns", 5025125.0)
    assert profile.threads.select("pid", "tid", "comm").rows()[:3] == [
        (-1, 32600, "python3"),
        (32666, 32670, "worker 1 2"),
        (-1, 0, "swapper"),
    ]
    assert profile.samples["at_ns"].to_list() == [
        15496972026000,
        15499898405123,
        15500000001000,
        15500000002000,
        15501000001000,
    ]
    lost = profile.samples.filter(profile.samples["stack"] == NO_STACK)
    assert (lost["weight"].to_list(), profile.events["unit"][lost["event"][0]]) == ([7.0], "lost")
    assert choose_event(profile) == 0
    assert kinds(profile)["vfs_write"] == "kernel"
    assert kinds(profile)["save"] == "python"


def test_perf_script_without_call_chains_and_instants(tmp_path: Path) -> None:
    """Then perf indents the command, and the only frame stands behind."""
    place = put(
        tmp_path,
        "         python3  1234 cpu-clock:  ffffffff81000061 do_x+0x39 ([kernel.kallsyms])\n"
        "              dd  1235 cpu-clock:            7f0001 main (/bin/dd)\n"
        "              dd  1235 cpu-clock:            7f0001 main (/bin/dd)\n",
    )
    assert format_at(place).name == "perf_script"
    profile = read(place)
    assert (weights(profile), odd(profile)) == ({"do_x": 1, "main": 2}, 0)
    assert profile.threads["comm"].to_list() == ["python3", "dd"]


def pprof_file() -> bytes:
    """Two sample types, an inlined line, a mapping without symbols, labels; fields in any order."""
    strings = [
        "",
        "samples",
        "count",
        "cpu",
        "nanoseconds",
        "outer",
        "inlined",
        "/job/x.py",
        "/lib/libz.so",
        "thread",
        "w 1",
    ]
    strings += ["pid"]
    lines = message(4, number(1, 2) + number(2, 7)) + message(4, number(1, 1) + number(2, 9))
    return b"".join(
        [
            message(2, message(1, varint(2) + varint(1)) + message(2, varint(3) + varint(30_000_000))),
            message(2, number(1, 1) + number(2, 1) + number(2, 10_000_000) + message(3, number(1, 9) + number(2, 10))),
            message(2, number(1, 1) + number(2, 5)),  # a value too few
            message(2, number(1, 77) + number(2, 1) + number(2, 1)),  # a location that is not there
            message(2, number(1, 1) + number(2, -1) + number(2, 0)),  # negative
            message(1, number(1, 1) + number(2, 2)),
            message(1, number(1, 3) + number(2, 4)),
            message(3, number(1, 1) + number(5, 8)),
            message(4, number(1, 1) + lines),
            message(4, number(1, 2) + number(2, 1) + number(3, 0x4F2)),
            message(5, number(1, 1) + number(2, 5) + number(4, 7)),
            message(5, number(1, 2) + number(2, 6) + number(4, 7)),
            *(text(6, value) for value in strings),
            message(11, number(1, 3) + number(2, 4)),
            number(12, 10_000_000),
        ]
    )


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_pprof(tmp_path: Path, pack: object) -> None:
    place = put(tmp_path, pack(pprof_file()))  # type: ignore[operator]
    assert format_at(place).name == "pprof"
    profile = read(place)
    assert odd(profile) == 3
    assert profile.events.rows() == [(0, "cpu", "ns", 1e7), (1, "samples", "samples", 0.0)]
    outer = "outer (x.py:9);inlined (x.py:7)"
    assert weights(profile) == {f"{outer};0x4f2": 3e7, outer: 1e7}
    assert weights(profile, "samples") == {f"{outer};0x4f2": 3, outer: 1}
    assert profile.threads.select("pid", "tid", "comm").rows() == [(-1, -1, "w 1")]


def test_pprof_that_explodes_is_refused(tmp_path: Path) -> None:
    line = message(4, number(1, 1))
    location = message(4, number(1, 1) + line * 5000)
    sample = message(2, message(1, b"\x01\x01") + message(2, b"\x01"))
    strings = b"".join(text(6, value) for value in ("", "cpu", "count", "f"))
    bomb = message(1, number(1, 1) + number(2, 2)) + location + message(5, number(1, 1) + number(2, 3)) + strings
    deep = read(put(tmp_path, bomb + message(2, message(1, b"\x01" * 3) + message(2, b"\x01")) + sample))
    assert odd(deep) == 1
    many = b"".join(
        message(2, message(1, varint(1) + b"\x01" * 0 + varint(n)) + message(2, b"\x01")) for n in range(1, 2)
    )
    many += b"".join(message(2, message(1, b"\x01" + varint(9)) + message(2, b"\x01")) for _ in range(3))
    assert odd(read(put(tmp_path, bomb + many))) == 3


def test_speedscope_evented_and_sampled(tmp_path: Path) -> None:
    frames = [{"name": "main", "file": "/job/a.py", "line": 3}, {"name": "f"}]
    evented = {
        "type": "evented",
        "name": "t (5)",
        "unit": "milliseconds",
        "startValue": 0,
        "endValue": 10,
        "events": [
            {"type": "O", "at": 0, "frame": 0},
            {"type": "O", "at": 2, "frame": 1},
            {"type": "C", "at": 5, "frame": 0},
            {"type": "C", "at": 5, "frame": 1},
            {"type": "O", "at": 1, "frame": 1},
            "x",
            {"type": "C", "at": 10, "frame": 0},
        ],
    }
    sampled = {"type": "sampled", "name": 'Thread 9 "w"', "unit": "none", "startValue": 0, "endValue": 3}
    sampled |= {"samples": [[0, 1], [9], [0], [0]], "weights": [1.5, 1, -2, "x"]}
    place = put(tmp_path, json.dumps({"shared": {"frames": frames}, "profiles": [evented, sampled]}))
    assert format_at(place).name == "speedscope"
    profile = read(place)
    assert odd(profile) == 6
    assert weights(profile, "wall") == {"main (a.py:3)": 7e6, "main (a.py:3);f": 3e6}
    assert weights(profile, "samples") == {"main (a.py:3);f": 1.5}
    assert sorted(profile.samples.filter(profile.samples["event"] == 0)["at_ns"]) == [0, 2_000_000, 5_000_000]
    assert profile.threads.select("tid", "comm").rows() == [(5, "t"), (9, "w")]


CHROME = [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
    {"ph": "X", "name": "outer", "pid": 1, "tid": 2, "ts": "10", "dur": 10},
    {"ph": "B", "name": "inner", "pid": 1, "tid": 2, "ts": 12.5},
    {"ph": "E", "pid": 1, "tid": 2, "ts": 15},
    {"ph": "E", "pid": 1, "tid": 2, "ts": 16},
    {"ph": "X", "name": "late", "pid": 1, "tid": 2, "ts": 18, "dur": 5},
    {"ph": "X", "name": "back", "pid": 1, "tid": 2, "ts": 18, "dur": -5},
    {"ph": "X", "name": 5, "pid": 1, "tid": 2, "ts": 18, "dur": 5},
    {"ph": "C", "name": "counter", "pid": 1, "ts": 1, "args": {"a": 1}},
]


@pytest.mark.parametrize("shape", ["object", "list", "open"])
def test_chrome_events(tmp_path: Path, shape: str) -> None:
    content = json.dumps({"traceEvents": CHROME} if shape == "object" else CHROME)
    place = put(tmp_path, content if shape != "open" else content[:-1] + ",\n")
    assert format_at(place).name == "chrome"
    profile = read(place)
    assert odd(profile) == 3
    # what outlasts the call it began in ends with it
    assert weights(profile) == {"outer": 5500, "outer;inner": 2500, "outer;late": 2000}
    assert profile.threads.select("pid", "tid", "comm").rows() == [(1, 2, "main")]


def test_of_damaged_chrome_events_what_came_before_is_read(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": f"f{n}", "pid": 1, "tid": 2, "ts": 10 * n, "dur": 5} for n in range(200)]
    content = json.dumps({"traceEvents": events}).replace('"f120"', '"f120')
    profile = read(put(tmp_path, content))
    assert (profile.samples.height, odd(profile)) == (120, 1)
    orphan = put(tmp_path, json.dumps([{"ph": "E", "pid": 5, "tid": 6, "ts": 1}, *events[:1]]))
    assert (read(orphan).samples.height, odd(read(orphan))) == (1, 1)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"PERFILE2xxxx", "perf script -i"),
        (b"some words\nand more of them\n", "known format"),
        (b'{"a": 1}', "known format"),
        (b"\x1f\x8b\x08\x00", "damaged"),
        (bytes(range(256)) * 40, "usable profile"),
        (b'{"traceEvents": []}', "no calls"),
        (b'{"shared":{"frames":[]},"profiles":[]}', "no samples"),
    ],
)
def test_what_holds_no_stacks_is_reported(tmp_path: Path, content: bytes, part: str) -> None:
    with pytest.raises(ToolError, match=part) as caught:
        read(put(tmp_path, content))
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_what_is_no_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        read(tmp_path / "absent")
    assert caught.value.code is ErrorCode.IO_ERROR
    with pytest.raises(ToolError, match="regular file"):
        read(Path("/dev/zero"))


def test_a_packed_file_that_breaks_off_gives_what_was_there(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f"main;f{number} 1\n" for number in range(200_000)).encode())
    profile = read(put(tmp_path, packed[: len(packed) * 3 // 4]))
    assert odd(profile) == 1
    assert profile.samples.height > 10_000


def test_zstd(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    assert weights(read(put(tmp_path, zstandard.compress(b"main;f 12\n")))) == {"main;f": 12}


@pytest.mark.parametrize("text", ["main;a -5\nmain;b nan\nmain;c 10\n", "main;a -5\nmain;b nan\nmain;c inf\n"])
def test_negative_and_non_finite_counts_are_odd_lines_of_folded_stacks(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text, encoding="utf-8")
    assert format_at(tmp_path / "x").name == "folded"
