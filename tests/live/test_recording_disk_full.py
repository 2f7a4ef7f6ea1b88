"""A disk that is really full: the recording is refused with its code, and nothing stays behind."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from recordings import Scene, checkpoints

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.host import offcputime
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording

KIB = 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "whystall-test", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


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
def test_a_full_disk_is_told_and_left_as_it_was(small_disk: Path, spare: int) -> None:
    filler = fill(small_disk, spare)
    recording = large()
    with pytest.raises(ToolError) as caught:
        recording.save(small_disk / "a" / "rec")
    assert caught.value.code is ErrorCode.DISK_FULL
    assert [p.name for p in small_disk.iterdir()] == ["filler"]
    filler.unlink()
    recording.save(small_disk / "a" / "rec")
    again = Recording.open(small_disk / "a" / "rec", COLLECTORS)
    assert again.table("switches.segments").equals(recording.table("switches.segments"))


def test_an_artifact_on_a_full_disk_is_an_error(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(small_disk))
    (small_disk / "artifacts").mkdir()
    fill(small_disk, 0)
    with pytest.raises(ToolError) as caught:
        judge(offcputime.TOOL, large(), offcputime.Params())
    assert caught.value.code is ErrorCode.DISK_FULL
    assert list((small_disk / "artifacts").iterdir()) == []
