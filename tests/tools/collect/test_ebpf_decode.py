"""What the kernel side saw, as columns."""

from __future__ import annotations

from whystall.bpf.capture import BlockIo
from whystall.bpf.collectors.block import BlockRows
from whystall.tools.collect.ebpf_decode import block_tables


def test_a_flush_has_no_place_on_the_disk() -> None:
    write = BlockIo(1, "write", 10, 20, 90, 4096, 512, 7, 7, b"a")
    flush = write._replace(op="flush", sector=(1 << 64) - 1, bytes=0)
    slow = block_tables(BlockRows(block_ios=[write, flush]), lambda dev: "disk")["slow"]
    assert slow["sector"].to_list() == [4096, -1]
