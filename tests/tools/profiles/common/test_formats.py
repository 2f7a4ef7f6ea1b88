"""The registries of formats: one answer in every order, several answers refused, hostile beginnings in linear time."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flight_dumps
import pytest
import rank_tables
from ascend_job import database, prof_directory, text_directory, timeline
from nsys_export import Export

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Format, Head, format_of
from whystall.tools.stacks import formats as stacks
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.convert import convert
from whystall.tools.timeline import open_trace, profiles

ALL: tuple[Format[Any], ...] = (*stacks.FORMATS, *profiles.FORMATS)
DATA = Path(__file__).parents[2] / "timeline" / "data" / "ftrace"
INSPECTOR = {
    "header": {"id": "0x1", "rank": 3, "n_ranks": 8, "nnodes": 1},
    "metadata": {"dump_timestamp_us": 1_700_000_000_000_000, "hostname": "node-1", "pid": 7},
    "coll_perf": {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 4096, "coll_exec_time_us": 400},
}


def stack_samples(tmp_path: Path, format: str) -> Path:
    """A file of `format` (of `stacks.FORMATS`)."""
    made = Builder()
    stack = made.stack([made.frame("main"), made.frame("load")])
    made.sample(stack, made.event("cpu-clock", "ns"), 1e6, at_ns=5, span_ns=10**6, thread=made.thread(1, 1, "train"))
    path = tmp_path / f"stacks_{format}"
    convert(made.profile("test"), 0, path, format)  # type: ignore[arg-type]
    return path


def samples(tmp_path: Path) -> dict[str, Path]:
    """A file or directory of every format, by the format's name."""
    found = {one.name: stack_samples(tmp_path, one.name) for one in stacks.FORMATS}
    found["ascend"] = text_directory(tmp_path)
    found["msprof"] = prof_directory(tmp_path)
    for name, content in (
        ("kineto", {"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "op", "ts": 1}]}),
        ("ascend_text", timeline()),
        ("nccl_inspector", INSPECTOR),
    ):
        found[name] = tmp_path / f"{name}.json"
        found[name].write_text(json.dumps(content))
    found["ascend_db"] = tmp_path / "some.db"
    database(found["ascend_db"])
    export = Export()
    export.session()
    export.kernel("gemm", 10, 5, launched=1)
    found["nsys"] = export.write(tmp_path / "export.sqlite")
    found["nsys_report"] = tmp_path / "report.nsys-rep"
    found["nsys_report"].write_bytes(b"NVIDIA")
    dumps = flight_dumps.write(tmp_path / "dumps", flight_dumps.Rank(0, {"0": ("default_pg", (0, 1))}).does("0"))
    (found["flight_recorder"],) = dumps.iterdir()
    found["table"] = rank_tables.plain(tmp_path / "ranks.csv", rank_tables.job())
    rank_tables.ascend_exports(tmp_path / "exports", rank_tables.job())
    found["ascend_export"] = next(one.parents[1] for one in (tmp_path / "exports").rglob("step_trace_time.csv"))
    return found


def test_every_format_is_found_in_every_order(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    found = samples(tmp_path)
    assert found.keys() == {one.name for one in ALL}
    chance = random.Random(5)
    for _ in range(10):
        order = chance.sample(ALL, len(ALL))
        for name, path in found.items():
            of_kind = [one for one in order if getattr(one, "directory", False) == path.is_dir()]
            best = format_of(Head(path), of_kind)
            assert best is not None
            assert best.name == name


def test_traces_of_the_kernel_in_every_order() -> None:
    for formats in (open_trace.FORMATS, open_trace.FORMATS[::-1]):
        for file, name in (("linux61.dat", "trace-cmd"), ("linux61_pipe.txt", "ftrace")):
            best = format_of(Head(DATA / file), formats)
            assert best is not None
            assert best.name == name


def test_a_file_of_two_formats_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "both.json"
    path.write_text(json.dumps(INSPECTOR | {"pg_config": {}}))
    for formats in (profiles.FORMATS, profiles.FORMATS[::-1]):
        with pytest.raises(ToolError, match="several formats: flight_recorder, nccl_inspector") as caught:
            format_of(Head(path), formats)
        assert caught.value.code is ErrorCode.BAD_TRACE
    with pytest.raises(ToolError, match="several formats"):
        profiles.open_profile(path)


def test_a_file_of_two_formats_does_not_hide_the_others_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "both.json").write_text(json.dumps(INSPECTOR | {"pg_config": {}}))
    (tmp_path / "rank1.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}))
    found = {one.path.name: one for one in profiles.candidates(tmp_path)}
    assert found.keys() == {"both.json", "rank1.json"}
    with pytest.raises(ToolError, match="several formats"):
        found["both.json"].read()


SIZE = 1 << 18
HOSTILE = {
    "spaces": b"a" + b" " * SIZE,
    "spaces_only": b" " * SIZE + b"x",
    "spaces_between_numbers": b"a 1 " + b" " * SIZE + b"1:",
    "words": b"a " * (SIZE // 2),
    "numbers": b"1 " * (SIZE // 2),
    "times": b"a 1 " + b"1.000: " * (SIZE // 7),
    "pids": b"a " + b"1/" * (SIZE // 2),
    "long_number": b"a " + b"1" * SIZE,
    "colons": b"a 1 b" + b":" * SIZE,
    "dots": b"a 1 " + b"." * SIZE,
    "brackets": b"a 1 " + b"[1] " * (SIZE // 4),
    "tabs": b"\t" * SIZE + b"1 ",
    "frames": b" 1 " * (SIZE // 3),
    "minus": b"a;b" + b" -1" * (SIZE // 3) + b"x",
    "nan": b"a;b" + b" nan" * (SIZE // 4) + b"x",
    "semicolons": b";" * SIZE,
    "heads_of_events": b'{"a":{' + b'"traceEvents":[],' * (SIZE // 17),
    "nested_heads": b'{"a":' + b'{"traceEvents":[' * (SIZE // 16),
    "schema": b'{"' + b'"$schema":"' * (SIZE // 11),
    "schema_spaces": b'{"$schema"' + b" " * SIZE + b":",
    "shared": b'{"a":1,' + b'"shared":{' * (SIZE // 10),
    "phases": b"[{" + b'"ph":' * (SIZE // 5) + b" " * 100,
    "open_braces": b"{" * SIZE,
    "open_lists": b"[" * SIZE,
    "categories": b'[{"' + b'"cat":' * (SIZE // 6) + b" " * 1000,
    "control": b"\x0a\x01" * (SIZE // 2),
    "lengths": b"\x0a\xff" * (SIZE // 2),
    "pickle": b"\x80\x04\x95" + b"}" * SIZE,
    "scripts": b"<html>\n" + b"<script " * (SIZE // 8) + b"\n",
    "script_classes": b"<html>\n<script" + b' class="trace-data"' * (SIZE // 19) + b"\n",
}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail when the block takes longer: quadratic time takes minutes here, linear time well below a second."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
def test_detection_takes_linear_time(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rank3.json"
    path.write_bytes(HOSTILE[name])
    with within(30):
        for one in ALL:
            one.detect(Head(path))
        for opened in (open_trace.open_trace, profiles.open_profile, stacks.read):
            try:
                opened(path)
            except ToolError:
                continue


def test_a_line_of_perf_that_tells_of_lost_events_takes_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "x.perf.txt"
    head = b"a 1/1 1.000001: 10 cycles: \n\t  1f work (/bin/a)\n\n"
    path.write_bytes(head + b"PERF_RECORD_LOST" * (SIZE // 16) + b"\n" + b"PERF_RECORD_LOST " + b"1:" * (SIZE // 2))
    with within(30):
        assert stacks.read(path).samples.height >= 1
