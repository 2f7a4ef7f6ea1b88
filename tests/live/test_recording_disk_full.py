"""A disk that is really full: the recording is refused with its code, and nothing stays behind."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from recordings import Scene, checkpoints

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.host import offcputime
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording

KIB = 1024


def fill(place: Path, spare: int) -> Path:
    """Fill the disk but for `spare` bytes."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * KIB)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        file.truncate(max(0, filler.stat().st_size - spare))
    return filler


def large() -> Recording:
    scene = checkpoints(Scene(window_s=60).thread(user=60, blocked=30))
    for number in range(5000):  # of no pattern that would compress away
        scene.wait(number * 7919 % 59_000 / 1000, 1 + number * 104_729 % 997 / 7, "futex", lock=number * 15_485_863)
    return scene.build()


@pytest.mark.parametrize("spare", [0, 8 * KIB, 64 * KIB])
def test_a_full_disk_is_told_and_left_as_it_was(small_disk: Callable[[str], Path], spare: int) -> None:
    disk = small_disk("512k")
    filler = fill(disk, spare)
    recording = large()
    with pytest.raises(ToolError) as caught:
        recording.save(disk / "a" / "rec")
    assert caught.value.code is ErrorCode.DISK_FULL
    assert [p.name for p in disk.iterdir()] == ["filler"]
    filler.unlink()
    recording.save(disk / "a" / "rec")
    again = Recording.open(disk / "a" / "rec", COLLECTORS)
    assert again.table("switches.segments").equals(recording.table("switches.segments"))


def test_an_artifact_on_a_full_disk_is_an_error(
    small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("512k")
    monkeypatch.setenv("WHYSTALL_HOME", str(disk))
    (disk / "artifacts").mkdir()
    fill(disk, 0)
    with pytest.raises(ToolError) as caught:
        judge(offcputime.TOOL, large(), offcputime.Params())
    assert caught.value.code is ErrorCode.DISK_FULL
    assert list((disk / "artifacts").iterdir()) == []
