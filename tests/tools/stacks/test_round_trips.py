"""What is written in a format and read again is the same profile, as far as the format can say it."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.consistent import fault
from whystall.tools.stacks.convert import FORMATS, Format, convert, format_for
from whystall.tools.stacks.formats import format_at, read
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import Part, call_tree

pytestmark = pytest.mark.thorough

HOSTILE = (
    "a;b",
    "operator new(unsigned long)",
    "<script>alert(1)</script>",
    "保存检查点",
    "x\ny",
    'q"u\\o',
    "f (int) 12",
)
ENDS = {"folded": ".folded", "pprof": ".pb.gz", "speedscope": ".speedscope.json", "perf_script": ".perf.txt"}


def profile(*, unit: str = "ns", timed: bool = False, fractions: bool = True) -> StackProfile:
    """Two threads, frames of every usual kind, hostile names, weights with fractions."""
    build = Builder()
    event = build.event("cpu-clock" if unit == "ns" else unit, unit, 0.0)
    threads = [build.thread(7, 7, "python3"), build.thread(7, 9, "worker one")]
    main = build.frame("<module>", "/job/train.py", 3, "python")
    save = build.frame("save", "/job/train.py", 212, "python")
    kernel = build.frame("vfs_write", "[kernel.kallsyms]", 0, "kernel")
    native = build.frame("memcpy", "/usr/lib/libc.so.6", 0, "native")
    device = build.frame("GPU:gemm<float>", "", 0, "device")
    names = [build.frame(name) for name in HOSTILE]
    stacks = [[main, save, kernel], [main, save], [main, native, device], *([main, name] for name in names)]
    at = 1_000_000_000
    for number, frames in enumerate(stacks * 3):
        weight = 1000.0 + 37 * number + (0.25 if fractions else 0)
        timing = {"at_ns": at, "span_ns": int(weight)} if timed else {}
        build.sample(build.stack(frames), event, weight, thread=threads[number % 2], **timing)
        at += 50_000
    return build.profile("test")


def shares(one: StackProfile, *, event: int = 0) -> dict[tuple[str, ...], float]:
    """The share of each path, by labels."""
    tree = call_tree(Part(one, event))
    return {
        tuple(tree.label(up) for up in tree.path(node)): float(tree.own[0, node] / tree.sums[0])
        for node in range(len(tree))
        if tree.own[0, node]
    }


def by_command(one: StackProfile) -> dict[tuple[str, ...], float]:
    """The share of each path below the name of its thread."""
    found: dict[tuple[str, ...], float] = {}
    for thread, comm in one.threads.select("thread", "comm").iter_rows():
        samples = one.samples.filter(pl.col("thread") == thread)
        alone = StackProfile({**one.tables, "samples": samples}, one.source)
        part = float(samples["weight"].sum() / one.samples["weight"].sum())
        found |= {(comm, *path): share * part for path, share in shares(alone).items()}
    return found


def outcome(path: Path) -> StackProfile | ErrorCode:
    """What reading gives: nothing but a profile or a `ToolError`."""
    try:
        return read(path)
    except ToolError as error:
        return error.code


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("timed", [False, True])
def test_shares_names_and_fractions_survive(tmp_path: Path, format: Format, timed: bool) -> None:
    given = profile(timed=timed)
    place = tmp_path / f"profile{ENDS.get(format, '.json')}"
    done = convert(given, 0, place, format)
    assert done.size_bytes == place.stat().st_size
    assert done.items > 0
    assert format_for(place) == format == format_at(place).name
    again = read(place)
    assert not fault(again.tables)
    assert not again.notes
    expected = shares(given)
    if format == "folded":  # commands are the outermost names
        expected = by_command(given)
    assert shares(again) == pytest.approx(expected, rel=1e-9)
    if format not in ("folded", "chrome"):
        assert again.samples["weight"].sum() == pytest.approx(given.samples["weight"].sum())


@pytest.mark.parametrize("format", ["pprof", "speedscope", "perf_script", "chrome"])
def test_threads_survive(tmp_path: Path, format: Format) -> None:
    given = profile()
    convert(given, 0, tmp_path / "out", format)
    again = read(tmp_path / "out")
    roots = [call_tree(Part(one), roots="thread") for one in (given, again)]
    first, second = (
        {tree.label(node): tree.total[0, node] for node in range(len(tree)) if not tree.depth[node]} for tree in roots
    )
    assert set(first) == {"python3 (7)", "worker one (9)"}
    assert {name: value / sum(second.values()) for name, value in second.items()} == pytest.approx(
        {name: value / sum(first.values()) for name, value in first.items()}
    )


@pytest.mark.parametrize("format", ["perf_script", "chrome"])
def test_instants_survive(tmp_path: Path, format: Format) -> None:
    given = profile(timed=True, fractions=False)
    convert(given, 0, tmp_path / "out", format)
    again = read(tmp_path / "out")
    assert again.timed
    assert sorted(again.samples["at_ns"].to_list()) == sorted(given.samples["at_ns"].to_list())
    if format == "chrome":
        assert again.samples["span_ns"].sum() == given.samples["span_ns"].sum()


def test_pprof_keeps_all_events_and_the_choice(tmp_path: Path) -> None:
    build = Builder()
    stack = build.stack([build.frame("f")])
    for name, unit, weight in (("alloc", "bytes", 512.0), ("cpu", "ns", 10.5)):
        build.sample(stack, build.event(name, unit), weight)
    convert(build.profile("test"), 1, tmp_path / "out", "pprof")
    events = read(tmp_path / "out").events
    assert events.select("name", "unit").rows() == [("cpu", "ns"), ("alloc", "bytes")]


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_breaks_off_is_reported_or_counted(tmp_path: Path, format: Format) -> None:
    convert(profile(timed=True), 0, tmp_path / "whole", format)
    data = (tmp_path / "whole").read_bytes()
    whole = read(tmp_path / "whole").samples.height
    chance = random.Random(5)
    for _ in range(60):
        (tmp_path / "cut").write_bytes(data[: chance.randrange(len(data))])
        found = outcome(tmp_path / "cut")
        assert found == ErrorCode.BAD_TRACE or (isinstance(found, StackProfile) and found.samples.height <= whole)


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_file_raises_nothing_else(tmp_path: Path, format: Format) -> None:
    convert(profile(), 0, tmp_path / "whole", format)
    data = (tmp_path / "whole").read_bytes()
    if format == "pprof":
        import gzip

        data = gzip.decompress(data)
    chance = random.Random(6)
    for _ in range(150):
        spoiled = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        (tmp_path / "bad").write_bytes(spoiled)
        found = outcome(tmp_path / "bad")
        assert found == ErrorCode.BAD_TRACE or (isinstance(found, StackProfile) and not fault(found.tables))


def test_an_empty_profile_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="empty"):
        convert(Builder().profile("test"), 0, tmp_path / "out", "folded")
    assert not list(tmp_path.iterdir())
