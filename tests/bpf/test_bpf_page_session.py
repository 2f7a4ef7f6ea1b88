"""What is hooked for the page cache on which kernel, and how the maps are read."""

from __future__ import annotations

import ctypes as ct

import pytest

from whystall.bpf import capture_pages as cap
from whystall.bpf import layout as lay
from whystall.bpf.capture import FileKey
from whystall.bpf.collectors.page_cache import KernelPages

# Arguments of the events in the type information of Debian's kernels of that name, and of 6.18.
_RECLAIM = {
    "vmscan:mm_vmscan_direct_reclaim_begin": 2,
    "vmscan:mm_vmscan_direct_reclaim_end": 1,
    "vmscan:mm_vmscan_memcg_reclaim_begin": 2,
    "vmscan:mm_vmscan_memcg_reclaim_end": 1,
    "filemap:mm_filemap_add_to_page_cache": 1,
    "filemap:mm_filemap_delete_from_page_cache": 1,
    "raw_syscalls:sys_exit": 2,
}
_6_1 = _RECLAIM | {
    "vmscan:mm_vmscan_throttled": 4,
    "writeback:balance_dirty_pages": 12,
    "writeback:writeback_dirty_folio": 2,
    "lock:contention_begin": 2,
    "lock:contention_end": 2,
    "block:block_bio_queue": 1,
}
_6_12 = _6_1 | {
    "filemap:mm_filemap_get_pages": 3,
    "filemap:mm_filemap_map_pages": 3,
    "filemap:mm_filemap_fault": 2,
}
KERNELS = {
    "5.10": KernelPages(
        _RECLAIM
        | {"writeback:balance_dirty_pages": 12, "writeback:writeback_dirty_page": 2, "block:block_bio_queue": 2},
        atomics=False,
    ),
    "6.1": KernelPages(_6_1, atomics=True),
    "6.12": KernelPages(_6_12, atomics=True),
    "6.18": KernelPages(_6_12 | {"writeback:balance_dirty_pages": 8}, atomics=True),
}


def test_a_new_kernel_tells_everything() -> None:
    for version, throttle in (("6.12", "on_throttle_old"), ("6.18", "on_throttle")):
        kernel = KERNELS[version]
        programs = kernel.programs()
        assert kernel.absent() == []
        assert kernel.reads_reported
        assert kernel.maps_reported
        assert {name for name in programs if name.startswith("on_throttle") and name != "on_throttled"} == {throttle}
        assert not [name for name in programs if name.endswith("_plain")]
        assert programs.index("on_direct_begin") < programs.index("on_direct_end")
        assert programs.index("on_page_delete") < programs.index("on_page_add")


def test_an_old_kernel_says_what_it_does_not_tell() -> None:
    kernel = KERNELS["5.10"]
    assert kernel.absent() == [
        "block:block_bio_queue",  # with two arguments, and without the device
        "filemap:mm_filemap_fault",
        "filemap:mm_filemap_get_pages",
        "filemap:mm_filemap_map_pages",
        "lock:contention_begin",
        "lock:contention_end",
        "vmscan:mm_vmscan_throttled",
    ]
    programs = kernel.programs()
    assert {"on_page_add_plain", "on_page_delete_plain", "on_page_dirty_old_plain", "on_page_call_plain"} <= set(
        programs
    )
    assert not {"on_page_add", "on_page_dirty", "on_page_dirty_plain", "on_bio"} & set(programs)
    assert not kernel.reads_reported
    assert not kernel.maps_reported
    assert KERNELS["6.1"].absent() == [
        "filemap:mm_filemap_fault",
        "filemap:mm_filemap_get_pages",
        "filemap:mm_filemap_map_pages",
    ]


def test_an_event_with_other_arguments_is_not_hooked() -> None:
    strange = KernelPages(_6_12 | {"writeback:balance_dirty_pages": 9, "filemap:mm_filemap_get_pages": 4}, True)
    assert strange.absent() == ["filemap:mm_filemap_get_pages", "writeback:balance_dirty_pages"]


KEY = FileKey(254 << 20, 77, 5)
OTHER = FileKey(254 << 20 | 1, 78, 0)


def raw(key: FileKey) -> lay.FileKey:
    return lay.FileKey(ino=key.ino, dev=key.dev, gen=key.gen)


def words(*pages: int) -> ct.Array[ct.c_uint64]:
    bits = sum(1 << page for page in pages)
    return (ct.c_uint64 * lay.CHUNK_WORDS)(*((bits >> 64 * i) & (2**64 - 1) for i in range(lay.CHUNK_WORDS)))


def chunk(key: FileKey, number: int, added: ct.Array[ct.c_uint64], more: ct.Array[ct.c_uint64]) -> tuple[bytes, bytes]:
    return bytes(lay.ChunkKey(file=raw(key), chunk=number)), bytes(lay.PageChunk(added=added, more=more))


def test_pages_used_once_are_those_that_came_and_were_not_used_more() -> None:
    items = [
        chunk(KEY, 0, words(0, 1, 63, 64, 511), words(1, 2, 511)),
        chunk(KEY, 9, words(5), words()),
        chunk(OTHER, 0, words(3), words(3)),
    ]
    assert cap.touched_once(items) == {KEY: 4, OTHER: 0}


def page_file(flags: int = 0) -> bytes:
    return bytes(lay.PageFile(reclaimed=10, dropped=4, judged=9, one_pass=8, written_back=3, flags=flags))


@pytest.mark.parametrize(
    ("key", "flags", "told", "written"),
    [
        (KEY, 0, True, 3),
        (KEY, 0, False, -1),
        (KEY, lay.PAGE_FILE_NO_DISK, True, -1),
        (FileKey(254 << 20, 0, 0), 0, True, -1),
    ],
)
def test_what_was_written_back_is_told_only_where_it_is_known(
    key: FileKey, flags: int, told: bool, written: int
) -> None:
    (row,) = cap.files([(bytes(raw(key)), page_file(flags))], {}, told)
    assert row == cap.PageFile(key, 10, 4, 9, 8, 0, written)


def test_a_file_of_which_nothing_left_is_told_all_the_same() -> None:
    rows = cap.files([(bytes(raw(KEY)), page_file())], {KEY: 2, OTHER: 7}, True)
    assert rows == [cap.PageFile(KEY, 10, 4, 9, 8, 2, 3), cap.PageFile(OTHER, 0, 0, 0, 0, 7, 0)]


def test_uses_stalls_and_sizes() -> None:
    use = lay.PageUse(*range(1, 12), b"reader")
    none = lay.UseKey(file=raw(FileKey(0, 0, 0)), tgid=0)
    key = lay.UseKey(file=raw(KEY), tgid=42)
    known, unknown = cap.uses([(bytes(key), bytes(use)), (bytes(none), bytes(use))], True)
    assert known == cap.PageUse(KEY, 42, b"reader", *range(1, 12))
    assert (unknown.file, unknown.tgid) == (None, 0)
    assert [use.mapped for use in cap.uses([(bytes(key), bytes(use))], False)] == [-1]
    stall_key = lay.StallKey(file=raw(FileKey(0, 0, 0)), tgid=7, tid=8, what=1)
    stall = lay.StallTotal(2, 500, 400, 123456, 64, 1)
    assert cap.stalls([(bytes(stall_key), bytes(stall))]) == [
        cap.Stall(None, 7, 8, "cgroup_reclaim", 2, 500, 400, 123456, 64, True)
    ]
    size_key = lay.SizeKey(file=raw(OTHER), tgid=7, write=1, direct=0, log=20)
    assert cap.sizes([(bytes(size_key), bytes(lay.SizeTotal(3, 3 << 20)))]) == [
        cap.SizeSlot(OTHER, 7, True, False, 20, 3, 3 << 20)
    ]
