"""What the kernel side saw, as columns."""

from __future__ import annotations

from typing import cast

from whystall.bpf.capture import BlockIo, Capture
from whystall.tools.collect.ebpf_decode import block_tables


class Seen:
    """A capture of block requests alone."""

    def __init__(self, *ios: BlockIo) -> None:
        self.block_slots: list[object] = []
        self.block_totals: list[object] = []
        self.block_open: list[BlockIo] = []
        self.block_ios = list(ios)


def test_a_flush_has_no_place_on_the_disk() -> None:
    write = BlockIo(1, "write", 10, 20, 90, 4096, 512, 7, 7, b"a")
    flush = write._replace(op="flush", sector=(1 << 64) - 1, bytes=0)
    slow = block_tables(cast(Capture, Seen(write, flush)), lambda dev: "disk")["slow"]
    assert slow["sector"].to_list() == [4096, -1]
