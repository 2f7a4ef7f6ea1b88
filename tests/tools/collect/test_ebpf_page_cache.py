"""From the maps of the page cache to columns."""

from __future__ import annotations

from typing import Any

from whystall.bpf.capture import Capture, File, FileKey, Thread
from whystall.bpf.capture_pages import PageFile, Pages, PageUse, SizeSlot, Stall
from whystall.tools.collect.ebpf_decode import Files
from whystall.tools.collect.ebpf_page_cache import page_capture, page_tables
from whystall.tools.collect.tables import PAGE_CACHE

DISK = 8 << 20 | 1
KEY, LOST, DEVICE = FileKey(DISK, 11, 1), FileKey(DISK, 12, 1), FileKey(8 << 20, 0, 0)


def file(key: FileKey = KEY, path: bytes = b"/data/set.bin", flags: int = 0) -> File:
    return File(key, path, flags, 4096, 0o100644, b"ext4")


def capture(pages: Pages | None = None, **other: Any) -> Capture:
    values: dict[str, Any] = {
        "window_start": 0,
        "window_end": 10,
        "files": {KEY: file()},
        "threads": {8: Thread(8, 7, b"wri\x1bter", False)},
        "stacks": {},
        "results": {} if pages is None else {Pages: pages},
        "lost": {},
        "seen": {"pages": 5, "self_added": 1},
        "hooks": ("on_page_add",),
        "variants": {},
    }
    return Capture(**(values | other))


def use(key: FileKey | None, pid: int = 7, mapped: int = 0, **values: int) -> PageUse:
    names = ("accessed", "again", "added", "refaulted", "dirtied", "tracked", "untracked")
    names += ("direct_bytes", "read_bytes", "write_bytes")
    return PageUse(key, pid, b"reader", mapped=mapped, **{name: values.get(name, 0) for name in names})


def pages(**values: Any) -> Pages:
    given: dict[str, Any] = {"uses": [], "files": [], "stalls": [], "sizes": [], "absent": [], "reads_reported": True}
    return Pages(**(given | values))


def tables(seen: Pages) -> dict[str, list[dict[str, Any]]]:
    whole = capture(seen)
    made = page_tables(seen, whole, Files(whole, lambda pid, address: None), lambda dev: f"sd{dev & 0xF}")
    assert {name: frame.schema for name, frame in made.items()} == PAGE_CACHE
    return {name: frame.to_dicts() for name, frame in made.items()}


def test_rows_of_a_file_carry_its_number() -> None:
    made = tables(
        pages(
            uses=[use(KEY, accessed=4, added=3, tracked=2, untracked=1), use(KEY, 9, tracked=5, added=5), use(None, 3)],
            files=[PageFile(KEY, 6, 1, 2, 1, 4, 8)],
            sizes=[SizeSlot(KEY, 7, True, True, 12, 2, 9000)],
        )
    )
    assert [(row["file"], row["pid"], row["added"]) for row in made["use"]] == [(0, 7, 3), (0, 9, 5), (-1, 3, 0)]
    (gone,) = made["evictions"]
    assert (gone["file"], gone["tracked"], gone["untracked"]) == (0, 7, 1)
    assert (gone["reclaimed"], gone["dropped"], gone["judged"], gone["one_pass"]) == (6, 1, 2, 1)
    assert (gone["touched_once"], gone["written_back"]) == (4, 8)
    (size,) = made["sizes"]
    assert (size["operation"], size["direct"], size["low_bytes"], size["high_bytes"]) == ("write", True, 4096, 8192)
    assert made["files"][0]["path"] == "/data/set.bin"


def test_a_file_without_a_path_and_a_block_device_have_a_name() -> None:
    made = tables(pages(uses=[use(LOST), use(DEVICE), use(DEVICE, 8)]))
    assert [row["file"] for row in made["use"]] == [0, 1, 1]
    assert [row["path"] for row in made["files"]] == ["[inode 12]", "/dev/sd0"]


def test_where_faults_are_not_told_nothing_is_said_to_be_used_once() -> None:
    made = tables(pages(uses=[use(KEY, mapped=-1, accessed=4)], files=[PageFile(KEY, 6, 0, 6, 6, 4, -1)]))
    (gone,) = made["evictions"]
    assert (gone["judged"], gone["one_pass"], gone["touched_once"], gone["written_back"]) == (6, -1, -1, -1)


def test_stalls_are_named() -> None:
    made = tables(pages(stalls=[Stall(None, 7, 8, "cgroup_reclaim", 2, 500, 400, 5, 64, True)]))
    (stall,) = made["stalls"]
    assert (stall["pid"], stall["tid"], stall["file"], stall["what"]) == (7, 8, -1, "cgroup_reclaim")
    assert (stall["count"], stall["total_ns"], stall["max_ns"], stall["pages"]) == (2, 500, 400, 64)
    assert (stall["longest_at_ns"], stall["in_flight"]) == (5, True)
    assert "\x1b" not in stall["comm"]


def test_what_is_absent_is_told_and_life_is_a_page_of_our_own() -> None:
    seen = pages(absent=["lock:contention_begin"])
    for own, proven in ((1, True), (0, False)):
        whole = capture(seen, seen={"pages": 5, "self_added": own})
        made = page_capture(seen, whole, Files(whole, lambda pid, address: None), str, 3)
        assert (made.proven, made.lost, made.seen) == (proven, 3, 5)
        assert made.not_seen == [("event_absent", "lock:contention_begin")]
