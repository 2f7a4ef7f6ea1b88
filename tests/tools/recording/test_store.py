"""A recording on disk is whole, ours, and harmless, or it is refused in one line."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from recordings import Scene, checkpoints

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.store import Recording, check_place


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    place = tmp_path / "rec"
    checkpoints(Scene().thread(user=60, blocked=30)).build().save(place)
    return place


def open_(place: Path) -> Recording:
    return Recording.open(place, COLLECTORS)


def test_a_recording_is_its_owners_alone(tmp_path: Path) -> None:
    recording = checkpoints(Scene().thread(user=60, blocked=30)).build()
    recording.save(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o750)
    recording.save(tmp_path / "there")
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o750


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    recording = checkpoints(Scene().thread(user=60).thread(4001, "训练é", user=1)).build()
    recording.save(tmp_path / "a" / "b" / "rec")
    read = open_(tmp_path / "a" / "b" / "rec")
    assert read.manifest == recording.manifest
    assert read.tables().keys() == recording.tables().keys()
    for name, frame in recording.tables().items():
        assert read.table(name).equals(frame), name
    assert read.table("proc.threads").filter(pl.col("comm") == "训练é").height > 0
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == ["rec"]


def test_saving_needs_no_utf_8_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "ascii")
    monkeypatch.setattr("locale.getencoding", lambda: "ascii", raising=False)
    Scene().build(host="节点").save(tmp_path / "rec")
    assert open_(tmp_path / "rec").manifest.host == "节点"


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        path = place / "manifest.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


def rewrite(table: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    def apply(place: Path) -> None:
        path = place / f"{table}.parquet"
        change(pl.read_parquet(path)).write_parquet(path)

    return apply


def truncate(place: Path) -> None:
    path = place / "syscalls.calls.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def corrupt(place: Path) -> None:
    path = place / "syscalls.calls.parquet"
    raw = bytearray(path.read_bytes())
    raw[8 : len(raw) - 600] = bytes(len(raw) - 608)
    path.write_bytes(raw)


CALLS = "syscalls.calls"


def replace(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Put something else where a file was."""

    def damage(place: Path) -> None:
        (place / name).unlink()
        make(place / name)

    return damage


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda place: (place / "manifest.json").unlink(), "no readable manifest.json"),
        (lambda place: (place / "manifest.json").write_text("{"), "manifest.json is not JSON"),
        (lambda place: (place / "manifest.json").write_bytes(b"\xff\xfe"), "manifest.json is not JSON"),
        (lambda place: (place / "manifest.json").write_text("[" * 100_000), "manifest.json is not JSON"),
        (lambda place: (place / "manifest.json").write_text("[1]"), "schema version None"),
        (lambda place: (place / "manifest.json").write_bytes(b" " * (5 << 20)), "too large"),
        (edit(lambda m: m.update(schema_version="2", new_field=1)), "schema version 2, this program reads 1"),
        (edit(lambda m: m.update(new_field=1)), "manifest.json: new_field"),
        (edit(lambda m: m.pop("window_ns")), "manifest.json: window_ns"),
        (edit(lambda m: m.update(window_ns=-5)), "manifest.json: window_ns"),
        (edit(lambda m: m["collectors"]["proc"].update(lost=-1)), "manifest.json: collectors.proc.lost"),
        (edit(lambda m: m["collectors"]["syscalls"]["rows"].update(calls=1)), "syscalls.calls has 8 rows instead of 1"),
        (edit(lambda m: m["collectors"]["syscalls"]["rows"].update({"../x": 1})), "unknown table syscalls.../x"),
        (edit(lambda m: m["collectors"].update(gpu={"engine": "x", "rows": {"t": 0}})), "unknown table gpu.t"),
        (lambda place: (place / "syscalls.calls.parquet").unlink(), "syscalls.calls.parquet cannot be read"),
        (lambda place: (place / "syscalls.calls.parquet").write_bytes(b""), "syscalls.calls.parquet cannot be read"),
        (replace("manifest.json", os.mkfifo), "manifest.json is not a regular file"),
        (replace("manifest.json", lambda p: p.symlink_to("/dev/zero")), "manifest.json is not a regular file"),
        (replace("syscalls.calls.parquet", os.mkfifo), "syscalls.calls.parquet is not a regular file"),
        (truncate, "syscalls.calls.parquet cannot be read"),
        (corrupt, "syscalls.calls.parquet cannot be read"),
        (rewrite(CALLS, lambda f: f.with_columns(more=1)), "does not have the columns"),
        (rewrite(CALLS, lambda f: f.drop("fd")), "does not have the columns"),
        (rewrite(CALLS, lambda f: f.with_columns(pl.col("tid").cast(pl.Int32))), "does not have the columns"),
        (rewrite(CALLS, lambda f: f.with_columns(tid=pl.lit(None, pl.Int64))), "has empty cells"),
        (
            rewrite("syscalls.stacks", lambda f: pl.DataFrame([(1, False, ["\x1b", None])], f.schema, orient="row")),
            "has empty cells",
        ),
        (rewrite(CALLS, lambda f: f.with_columns(end_ns=pl.col("start_ns") - 1)), "times outside its window"),
        (rewrite(CALLS, lambda f: f.with_columns(end_ns=pl.lit(1 << 60))), "times outside its window"),
        (rewrite(CALLS, lambda f: f.with_columns(start_ns=pl.lit(-5).cast(pl.Int64))), "times outside its window"),
    ],
)
def test_a_damaged_recording_is_refused(saved: Path, damage: Callable[[Path], Any], why: str) -> None:
    damage(saved)
    with pytest.raises(ToolError) as caught:
        open_(saved)
    assert caught.value.code is ErrorCode.BAD_RECORDING
    assert why in caught.value.message
    assert str(saved) in caught.value.message


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), lambda p: p.write_text("x"), lambda p: None])
def test_a_foreign_place_is_refused(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "x")
    with pytest.raises(ToolError, match="no readable manifest"):
        open_(tmp_path / "x")


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(ToolError) as caught:
        open_(Path("/tmp/a\0b"))
    assert caught.value.code is ErrorCode.BAD_RECORDING


def test_text_of_a_stranger_is_made_inert(saved: Path) -> None:
    evil = "\x1b[2Jtrain\u202e\n"
    rewrite(CALLS, lambda f: f.with_columns(comm=pl.lit(evil)))(saved)
    rewrite("syscalls.files", lambda f: f.with_columns(path=pl.lit("/d/" + evil)))(saved)
    rewrite("syscalls.stacks", lambda f: f.with_columns(frames=pl.Series([[evil, "ok"]] * f.height)))(saved)
    edit(lambda m: m.update(host=evil, kernel=evil))(saved)
    edit(lambda m: m["target"].update(comm=evil))(saved)
    edit(lambda m: m["collectors"]["proc"].update(why=evil, not_seen=[{"code": "sampled", "detail": evil}]))(saved)
    read = open_(saved)
    inert = "\\x1b[2Jtrain\\u202e\\x0a"
    assert set(read.table(CALLS)["comm"]) == {inert}
    assert set(read.table("syscalls.files")["path"]) == {"/d/" + inert}
    assert read.table("syscalls.stacks")["frames"][0].to_list() == [inert, "ok"]
    assert "\x1b" not in json.loads(json.dumps(read.manifest.model_dump(mode="json")))["host"]
    coverage = read.manifest.coverage(["proc"], []).model_dump_json()
    assert "\\u001b" not in coverage
    assert "\u202e" not in coverage


def test_a_collector_that_is_not_there_is_named(saved: Path) -> None:
    with pytest.raises(ToolError, match="'gpu'") as caught:
        open_(saved).table("gpu.x")
    assert caught.value.code is ErrorCode.MISSING_COLLECTOR


def test_an_empty_directory_is_filled_and_a_full_one_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    Scene().build().save(tmp_path / "rec")
    before = {p.name: p.read_bytes() for p in (tmp_path / "rec").iterdir()}
    for place in (tmp_path / "rec", tmp_path / "rec" / "manifest.json"):
        with pytest.raises(ToolError) as caught:
            Scene().build().save(place)
        assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert {p.name: p.read_bytes() for p in (tmp_path / "rec").iterdir()} == before


def test_the_current_directory_and_the_longest_name_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Scene().build().save(Path("x" * 255))
    assert open_(Path("x" * 255)).manifest.id == "r1"
    shutil.rmtree("x" * 255)
    with pytest.raises(ToolError):  # the place we stand in cannot be replaced, but that is no crash
        Scene().build().save(Path(".") / ".." / "here" / ".." / "here" / "x" / ("y" * 256))
    assert os.listdir() == []


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ToolError) as caught:
        Scene().build().save(tmp_path / "file" / "rec")
    assert caught.value.code is ErrorCode.IO_ERROR
    with pytest.raises(ToolError):
        Scene().build().save(tmp_path / "a" / "b" / ("y" * 256))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    class Interrupting(dict[str, pl.DataFrame]):
        def items(self) -> Any:
            yield from list(super().items())[:2]
            raise KeyboardInterrupt

    recording = Scene().build()
    recording._tables = Interrupting(recording.tables())
    with pytest.raises(KeyboardInterrupt):
        recording.save(tmp_path / "a" / "rec")
    assert list(tmp_path.iterdir()) == []


def test_a_place_is_tried_before_it_is_needed(tmp_path: Path) -> None:
    check_place(tmp_path / "deep" / "er")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file" / "x", Path("/proc/nowhere/x")):
        with pytest.raises(ToolError) as caught:
            check_place(place)
        assert caught.value.code is ErrorCode.IO_ERROR
        assert str(caught.value.message).startswith(f"cannot write {place}: ")
    with pytest.raises(ToolError, match="exists"):
        check_place(tmp_path)
