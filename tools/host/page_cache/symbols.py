"""Kernel functions of the page cache, by purpose.

The sets cover Linux 5.10 to 6.18: folios replaced pages between 5.16 and 6.10, and which small functions are inlined
differs from build to build. A function belongs here if it serves only the page cache (`RECLAIM`: only reclaim); its
callees are counted with it. Sources: mm/vmscan.c, mm/filemap.c, mm/readahead.c, mm/truncate.c, mm/page-writeback.c,
fs/iomap/buffered-io.c and fs/buffer.c of Linux.
"""

from __future__ import annotations

# Reclaiming pages: kswapd, direct reclaim, reclaim at a cgroup limit.
RECLAIM = frozenset(
    {
        "balance_pgdat",
        "do_try_to_free_pages",
        "evict_folios",
        "kswapd",
        "lru_gen_shrink_node",
        "mem_cgroup_reclaim",
        "reclaim_throttle",
        "shrink_active_list",
        "shrink_folio_list",
        "shrink_inactive_list",
        "shrink_list",
        "shrink_lruvec",
        "shrink_node",
        "shrink_node_memcgs",
        "shrink_page_list",
        "shrink_slab",
        "throttle_direct_reclaim",
        "try_to_free_mem_cgroup_pages",
        "try_to_free_pages",
        "try_to_shrink_lruvec",
    }
)
# Looking up, adding and removing pages, readahead, buffered reads and writes, throttling of writers.
CACHE = frozenset(
    {
        "__filemap_add_folio",
        "__filemap_get_folio",
        "__filemap_get_folio_mpol",
        "__filemap_remove_folio",
        "__iomap_write_begin",
        "add_to_page_cache_lru",
        "balance_dirty_pages",
        "balance_dirty_pages_ratelimited",
        "balance_dirty_pages_ratelimited_flags",
        "block_write_begin",
        "delete_from_page_cache_batch",
        "do_page_cache_ra",
        "ext4_buffered_write_iter",
        "ext4_da_write_begin",
        "ext4_da_write_end",
        "filemap_add_folio",
        "filemap_fault",
        "filemap_get_pages",
        "filemap_get_read_batch",
        "filemap_map_pages",
        "filemap_read",
        "filemap_remove_folio",
        "filemap_update_page",
        "force_page_cache_ra",
        "force_page_cache_readahead",
        "generic_file_buffered_read",
        "generic_file_read_iter",
        "generic_perform_write",
        "grab_cache_page_write_begin",
        "invalidate_mapping_pages",
        "iomap_file_buffered_write",
        "iomap_readahead",
        "iomap_write_begin",
        "iomap_write_end",
        "iomap_write_iter",
        "mapping_try_invalidate",
        "ondemand_readahead",
        "page_cache_async_ra",
        "page_cache_ra_order",
        "page_cache_ra_unbounded",
        "page_cache_sync_ra",
        "pagecache_get_page",
        "read_pages",
        "truncate_inode_pages_range",
        "xfs_file_buffered_write",
    }
)
# Copying to and from user memory; sockets use the same functions, so only below one of `CACHE`.
COPY = frozenset(
    {
        "_copy_from_iter",
        "_copy_to_iter",
        "copy_folio_from_iter_atomic",
        "copy_page_from_iter_atomic",
        "copy_page_to_iter",
        "copy_user_enhanced_fast_string",
        "copy_user_generic",
        "copy_user_generic_unrolled",
        "fault_in_iov_iter_readable",
        "fault_in_readable",
        "iov_iter_copy_from_user_atomic",
        "rep_movs_alternative",
        "__arch_copy_from_user",
        "__arch_copy_to_user",
    }
)
