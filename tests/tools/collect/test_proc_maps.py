"""Which file lies behind an address."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from whystall.tools.collect.proc_maps import mapped_file

LINES = (
    b"7f0000000000-7f0000002000 rw-s 00001000 08:01 42                         /data/a b\\012c\n"
    b"7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n"
    b"7f0000003000-7f0000004000 r-xp 00000000 fe:00 7                          /data/gone (deleted)\n"
    b"7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0                          [stack]\n"
)


def test_an_address_is_found_in_the_file_that_holds_it(tmp_path: Path) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "maps").write_bytes(LINES)
    found = mapped_file(9, 0x7F0000000010, str(tmp_path))
    assert found == ("/data/a b\\x0ac", "8:1", 42, 0x1010, False)
    gone = mapped_file(9, 0x7F0000003FFF, str(tmp_path))
    assert gone is not None
    assert (gone.path, gone.deleted) == ("/data/gone", True)
    for nowhere in (0x7F0000002000, 0x7F0000004000, 0x7FFD00000000, 0):
        assert mapped_file(9, nowhere, str(tmp_path)) is None
    assert mapped_file(10, 0x7F0000000010, str(tmp_path)) is None


def test_a_mapping_of_our_own_is_found(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(b"x" * 8192)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as area:
        address = ctypes.addressof(ctypes.c_char.from_buffer(area, 4096))
        found = mapped_file(os.getpid(), address)
    assert found is not None
    assert (found.path, found.offset, found.ino) == (str(path), 4096, path.stat().st_ino)
