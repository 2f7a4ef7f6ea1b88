"""The collector device_log: the kernel's buffer, the journal, and files."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from whystall.tools.collect.device_log import DeviceLog
from whystall.tools.collect.kernel_log import KernelLog
from whystall.tools.collect.log_file import recording_of_log
from whystall.tools.contract.errors import ToolError
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.store import Recording

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=812, name=python3, GPU has fallen off the bus."


class Ring(KernelLog):
    """The kernel's buffer, record by record; `denied`: it may not be read."""

    def __init__(self, *records: str, denied: bool = False) -> None:
        self._records, self.denied, self.overwritten = [one.encode() for one in records], denied, 0

    def records(self, most: int = 100) -> list[bytes]:
        taken, self._records = self._records[:most], self._records[most:]
        return taken

    def close(self) -> None:
        self._records = []


def entry(us: int, text: str, facility: int = 0) -> bytes:
    values = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": str(facility), "_SOURCE_MONOTONIC_TIMESTAMP": str(us)}
    return json.dumps(values | {"MESSAGE": text}).encode()


def read(ring: Ring, journal: Callable[[], Iterable[bytes]] = lambda: ()) -> Capture:
    return DeviceLog(lambda: ring, journal, lambda: 9_000_000).read()


def codes(capture: Capture) -> dict[str, str]:
    return dict(capture.not_seen)


def absent() -> Iterable[bytes]:
    raise FileNotFoundError("journalctl")


def test_a_buffer_since_the_start_needs_no_journal() -> None:
    capture = read(Ring("6,0,1,-;Linux version 6.8", f"3,7,5000000,-;{LOST}"), absent)
    (event,) = capture.tables["events"].to_dicts()
    assert (event["code"], event["device"], event["last_us"]) == (79, "0000:3b:00.0", 5_000_000)
    assert capture.tables["processes"].rows() == [(0, 812, "python3")]
    (source,) = capture.tables["sources"].to_dicts()
    assert (source["source"], source["whole"], source["from_us"], source["until_us"]) == ("kmsg", True, 1, 9_000_000)
    assert capture.not_seen == []
    assert capture.proven


def test_what_the_buffer_lost_is_read_from_the_journal() -> None:
    journal = [entry(1, "Linux version 6.8"), entry(2_000_000, LOST), entry(5_000_000, LOST)]
    capture = read(Ring(f"3,700,5000000,-;{LOST}"), lambda: journal)
    assert capture.tables["events"]["count"].to_list() == [1, 1]  # of the journal, what the buffer has not
    assert capture.tables["events"]["last_us"].to_list() == [2_000_000, 5_000_000]
    assert capture.tables["sources"]["source"].to_list() == ["kmsg", "journal"]
    assert codes(capture) == {}


def test_without_a_journal_the_loss_is_stated() -> None:
    assert codes(read(Ring(f"3,700,5000000,-;{LOST}"), absent)) == {"log_overwritten": "the last 4 s are left"}


@pytest.mark.parametrize(("recent_s", "asked"), [(3, False), (5, True), (0, True)])
def test_a_recent_time_needs_no_journal_if_the_buffer_has_it(recent_s: int, asked: bool) -> None:
    calls = []
    ring = Ring(f"3,700,5000000,-;{LOST}")
    capture = DeviceLog(lambda: ring, lambda: calls.append(1) or [], lambda: 9_000_000, recent_s=recent_s).read()
    assert bool(calls) == asked == ("log_overwritten" in codes(capture))


def test_without_rights_the_journal_answers_or_nothing_does() -> None:
    capture = read(Ring(denied=True), lambda: [entry(2_000_000, LOST)])
    assert capture.tables["events"]["code"].to_list() == [79]
    assert codes(capture) == {"not_permitted": "/dev/kmsg"}
    nothing = read(Ring(denied=True), absent)
    assert nothing.tables["events"].is_empty()
    assert not nothing.proven
    assert codes(nothing) == {"not_permitted": "/dev/kmsg"}


def test_what_programs_write_is_left_out_and_stated() -> None:
    capture = read(Ring("6,0,1,-;Linux version 6.8", f"12,7,5000000,-;{LOST}"))
    assert capture.tables["events"].is_empty()
    assert codes(capture) == {"log_forged": "1"}
    journal = [entry(2_000_000, LOST, facility=1)]
    assert codes(read(Ring("6,700,5000000,-;x"), lambda: journal)) == {"log_forged": "1"}


def test_a_real_log_is_read_without_an_error() -> None:
    capture = DeviceLog().read()
    assert capture.proven or "not_permitted" in codes(capture)


# --- files ---------------------------------------------------------------------------------------------------------


def of_file(tmp_path: Path, content: bytes) -> Recording:
    path = tmp_path / "kernel.log"
    path.write_bytes(content)
    return recording_of_log(path)


def spots(recording: Recording) -> set[str]:
    return {spot.code for spot in recording.manifest.collectors["device_log"].not_seen}


def test_a_file_is_read_plain_packed_and_in_utf_16(tmp_path: Path) -> None:
    text = f"[    0.000000] Linux version 6.8\n[ 5000.000000] {LOST}\n[ 6000.000000] eth0: up\n"
    for content in (text.encode(), gzip.compress(text.encode()), text.encode("utf-16"), text.rstrip().encode()):
        recording = of_file(tmp_path, content)
        assert recording.table("device_log.events")["code"].to_list() == [79]
        (source,) = recording.table("device_log.sources").to_dicts()
        assert (source["lines"], source["from_us"], source["until_us"]) == (3, 0, 6_000_000_000)
        assert source["whole"]


def test_lines_across_blocks_are_read_whole(tmp_path: Path) -> None:
    filler = b"[ 1.000000] x\n" * 80_000  # more than a block
    recording = of_file(tmp_path, filler + f"[ 2.000000] {LOST}\n".encode() + filler)
    assert recording.table("device_log.events")["count"].to_list() == [1]
    assert recording.table("device_log.sources")["lines"].to_list() == [160_001]


def test_a_file_that_is_no_log_is_stated(tmp_path: Path) -> None:
    assert spots(of_file(tmp_path, b"")) == {"log_damaged"}
    assert spots(of_file(tmp_path, bytes(range(256)) * 2000)) == {"log_damaged", "log_form_unknown"}
    assert spots(of_file(tmp_path, b"dear diary\n" * 50)) == {"log_form_unknown"}
    endless = of_file(tmp_path, b"NVRM: Xid (PCI:0000:3b:00): 13, " + b"x" * (3 << 20))  # one line of three blocks
    assert endless.table("device_log.events")["code"].to_list() == [13]


def test_a_truncated_packed_file_gives_what_it_has(tmp_path: Path) -> None:
    lines = "".join(
        f"[{second}.000000] NVRM: Xid (PCI:0000:3b:00): 13, {os.urandom(20).hex()}\n" for second in range(40_000)
    )
    packed = gzip.compress(lines.encode())
    recording = of_file(tmp_path, packed[: len(packed) // 2])
    assert spots(recording) >= {"log_damaged"}
    assert recording.table("device_log.sources")["lines"][0] > 0


@pytest.mark.parametrize("name", ["none.log", "folder", "a\0b"])
def test_what_cannot_be_opened_is_an_error_with_a_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ToolError) as error:
        recording_of_log(tmp_path / name)
    assert error.value.remedy


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError):
        recording_of_log(tmp_path / "pipe")
