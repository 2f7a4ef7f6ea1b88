"""Every form that ``perf script`` prints, from the generator `perf_output`: the samples that went in come out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.stacks.perf_output import USUAL, Frame, Sample, job, written
from whystall.tools.stacks.convert import convert
from whystall.tools.stacks.formats import format_at, read
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.readers import perf_script

SAMPLES = job(400)
DEFAULT = {"comm", "pid", "tid", "cpu", "time", "period", "event", "ip", "sym", "dso"}


def put(tmp_path: Path, content: str) -> Path:
    place = tmp_path / "out.perf"
    place.write_text(content, encoding="utf-8")
    return place


def found(profile: StackProfile) -> Counter[tuple[str, tuple[str, ...]]]:
    """Samples by command and symbols, the innermost first."""
    comms = {-1: "", **dict(profile.threads.select("thread", "comm").iter_rows())}
    parent, frame = profile.stacks["parent"].to_list(), profile.stacks["frame"].to_list()
    names = profile.frames["name"].to_list()
    counted: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for thread, stack in profile.samples.select("thread", "stack").iter_rows():
        path = []
        while stack >= 0:
            path.append(names[frame[stack]])
            stack = parent[stack]
        counted[comms[thread], tuple(path)] += 1
    return counted


def expected(samples: list[Sample], fields: object = USUAL, depth: int = 99) -> Counter[tuple[str, tuple[str, ...]]]:
    comm = "comm" in fields  # type: ignore[operator]
    return Counter((one.comm if comm else "", tuple(f.symbol for f in one.frames[:depth])) for one in samples)


def odd(profile: StackProfile) -> int:
    return int(dict(profile.notes).get("odd_lines", "0"))


@pytest.mark.parametrize(
    "fields",
    [
        DEFAULT,
        DEFAULT | {"symoff"},
        DEFAULT | {"srcline"},
        DEFAULT | {"misc"},
        DEFAULT | {"brstack"},
        DEFAULT - {"dso"},
        DEFAULT - {"period"},
        DEFAULT - {"event"},
        DEFAULT - {"event", "period"},
        DEFAULT - {"time", "cpu"},
        DEFAULT - {"time", "cpu", "event", "period"},
        DEFAULT - {"comm"},
        DEFAULT - {"comm", "pid", "tid"},
        DEFAULT - {"pid", "tid"},
        {"event", "ip", "sym", "dso"},
    ],
    ids=lambda fields: ",".join(sorted(fields)),
)
def test_any_fields(tmp_path: Path, fields: set[str]) -> None:
    place = put(tmp_path, written(SAMPLES, fields))
    assert format_at(place).name == "perf_script"
    profile = read(place)
    assert (found(profile), odd(profile)) == (expected(SAMPLES, fields), 0)
    if "time" in fields:
        assert profile.samples["at_ns"].to_list() == [1000 * one.at_us for one in SAMPLES]
    if {"pid", "tid"} <= fields:
        assert set(profile.threads.select("pid", "tid").rows()) == {(one.pid, one.tid) for one in SAMPLES}
    name, unit = ("cpu-clock", "ns") if "event" in fields else ("samples", "samples")
    assert profile.events.row(0)[1] == name
    if "period" in fields and "event" in fields:
        assert profile.events.row(0)[2] == unit
        assert profile.samples["weight"].sum() == sum(one.period for one in SAMPLES)


@pytest.mark.parametrize("more", [set(), {"brstack"}])
def test_without_call_chains(tmp_path: Path, more: set[str]) -> None:
    profile = read(put(tmp_path, written(SAMPLES, DEFAULT | more, chains=False)))
    assert (found(profile), odd(profile)) == (expected(SAMPLES, depth=1), 0)


def test_whatever_the_blocks_in_which_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_script.Text.__init__, "__defaults__", (4096,))
    for text in (written(SAMPLES), written(SAMPLES).replace("\n\n", "\n"), written(SAMPLES, chains=False)):
        profile = perf_script.read(put(tmp_path, text))
        assert (sum(found(profile).values()), odd(profile)) == (400, 0)


def test_frames_without_indentation_and_without_empty_lines(tmp_path: Path) -> None:
    for change in ("\n\t", "\n\t "):
        bare = "\n".join(line.strip() for line in written(SAMPLES).replace(change, "\n\t").split("\n"))
        for text in (bare, bare.replace("\n\n", "\n")):
            place = put(tmp_path, text)
            assert format_at(place).name == "perf_script"
            profile = read(place)
            assert (found(profile), odd(profile)) == (expected(SAMPLES), 0)


@pytest.mark.parametrize("end", ["\n\n", "\n", ""])
def test_the_last_sample_counts(tmp_path: Path, end: str) -> None:
    text = written(SAMPLES).rstrip("\n") + end
    assert found(read(put(tmp_path, text))) == expected(SAMPLES)


def test_headers_and_other_records_are_no_samples(tmp_path: Path) -> None:
    """``--header``, ``--show-mmap-events``, ``--show-switch-events``."""
    header = (
        "# ========\n# captured on    : Sun Nov 22 03:55:27 2026\n# cmdline : /usr/bin/perf record -g\n# ========\n#\n"
    )
    records = (
        "python3  4000 [001] 15000.000100: PERF_RECORD_MMAP2 4000/4000: [0x7f0000(0x1000) @ 0 08:02 11 0]: r-xp /a b\n"
        "python3  4000 [001] 15000.000101: PERF_RECORD_SWITCH_CPU_WIDE OUT          next pid/tid:     0/0    \n"
    )
    text = written(SAMPLES[:200]) + records + written(SAMPLES[200:])
    profile = read(put(tmp_path, header + text))
    assert (found(profile), odd(profile)) == (expected(SAMPLES), 0)


def test_two_commands_with_one_stack_stay_apart_in_folded_stacks(tmp_path: Path) -> None:
    profile = read(put(tmp_path, written(SAMPLES)))
    convert(profile, 0, tmp_path / "out.folded", "folded")
    lines = (tmp_path / "out.folded").read_text().splitlines()
    weights = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
    by_command = Counter[str]()
    for path, weight in weights.items():
        by_command[path.partition(";")[0]] += weight
    assert by_command == {"python3": 200 * 10_101_010, "pt worker": 200 * 10_101_010}
    assert len(weights) == len(lines) == len(expected(SAMPLES))


@pytest.mark.parametrize(
    "name", ["Lorg/mozilla/ContextFactory;.call(Lorg/mozilla/Action;)V", "RegExp:[&<>;\\\"']", "a (b) c", "f+0x"]
)
def test_names_with_any_punctuation(tmp_path: Path, name: str) -> None:
    hostile = [
        replace(one, comm="a;b 12 3", frames=(*one.frames, Frame(0x7F00AB, name, 4, "/tmp/perf-7539.map")))
        for one in SAMPLES
    ]
    profile = read(put(tmp_path, written(hostile)))
    assert found(profile) == expected(hostile)
    convert(profile, 0, tmp_path / "out.folded", "folded")
    again = read(tmp_path / "out.folded")
    assert "a;b 12 3" in again.frames["name"].to_list()
    roots = again.stacks.filter(again.stacks["parent"] == -1)
    assert roots.height == 1
    symbol = f"{name} (/tmp/perf-7539.map)"
    assert any(one in (name, symbol) for one in again.frames["name"].to_list())


def test_text_of_a_tracer_is_no_perf_script(tmp_path: Path) -> None:
    line = "  train-4711  [001] d..2. 12622.506890: sched_switch: prev_comm=train prev_pid=4711 ==> next_comm=a\n"
    assert not perf_script.is_perf_script((line * 50).split("\n"))
    assert not perf_script.is_perf_script(["main;work;read 12"] * 50)
    assert not perf_script.is_perf_script(["2024-01-01 12:00:01.123: error: no such file", "  at abc (/x.py)"] * 50)


def test_hostile_lines_take_linear_time() -> None:
    """Ends at all: some patterns would need years."""
    for text in (
        "/" * 200_000,
        "a " * 100_000,
        " " * 200_000 + "a 1",
        "a 1 1.123: " + "b/" * 100_000,
        "\t" + "a/" * 100_000,
    ):
        perf_script.is_perf_script([text, "\tabc def (x)", "x 1/1 1.123: cycles: " + text, ""] * 3)
