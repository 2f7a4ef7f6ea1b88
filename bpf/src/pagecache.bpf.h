/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The page cache by its tracepoints: pages that each process reads, faults in, adds and dirties, per file, and pages
 * that leave it. Pages are base pages: a folio of order n is 2^n of them. tmpfs, which caches nothing, is left out.
 */
#ifndef WHYSTALL_PAGECACHE_H
#define WHYSTALL_PAGECACHE_H

#include "page_faults.bpf.h"

/* Does `work` for a folio's pages (at most 4096), chunk by chunk. */
static __always_inline __u64 folio_work(struct pages *pages, __u64 first, __u64 last, __u32 work, bool plain)
{
	__u64 dev = (__u64)pages->file.dev << 32 | pages->file.gen, sum = 0;

	for (__u32 i = 0; i < 8; i++) {
		__u64 chunk = first >> CHUNK_SHIFT;
		__u64 end = last >> CHUNK_SHIFT == chunk ? last & (CHUNK_PAGES - 1) : CHUNK_PAGES - 1;

		sum += CHUNK_WORK(plain, pages->file.ino, dev, chunk, CHUNK_RANGE(first & (CHUNK_PAGES - 1), end), work);
		first = (chunk + 1) << CHUNK_SHIFT;
		if (first > last)
			break;
	}
	return sum;
}

/* Pages are added to the cache: by readahead, or by writes. */
static __always_inline int page_add(__u64 *ctx, bool plain)
{
	struct pages pages = {};
	struct page_state *state;
	struct page_use *use;
	struct actor actor;
	__u64 last, done;

	find_actor(&actor);
	if (actor.self) {
		count(SELF_ADDED);
		return 0;
	}
	if (!pages_of((void *)ctx[0], &pages))
		return 0;
	count(SEEN_PAGES);
	use = use_of(&pages.file, pages.inode, &actor);
	if (!use)
		return 0;
	last = pages.first + pages.number - 1;
	__sync_fetch_and_add(&use->added, pages.number);
	if (!have_chunk(&pages.file, pages.first >> CHUNK_SHIFT, actor.target)
	    || (last >> CHUNK_SHIFT != pages.first >> CHUNK_SHIFT
		&& !have_chunk(&pages.file, last >> CHUNK_SHIFT, actor.target))) {
		__sync_fetch_and_add(&use->untracked, pages.number);
		return 0;
	}
	__sync_fetch_and_add(&use->tracked, pages.number);
	done = folio_work(&pages, pages.first, last, CHUNK_ADD, plain);
	__sync_fetch_and_add(&use->refaulted, done & 0xffff);
	/* pages for a call or fault that has been counted already */
	state = page_state_of(actor.task, actor.tid);
	if (state && state->inode == (__u64)pages.inode && state->calls == read_calls(actor.task)
	    && state->index <= last && state->last >= pages.first) {
		__u64 from = state->index > pages.first ? state->index : pages.first;
		__u64 until = state->last < last ? state->last : last;

		folio_work(&pages, from, until, CHUNK_USED, plain);
	}
	return 0;
}

/* Pages leave the cache: reclaimed by a task in reclaim (kswapd too), else dropped. */
static __always_inline int page_delete(__u64 *ctx, bool plain)
{
	struct pages pages = {};
	struct page_file *file;
	struct inode *inode;
	struct actor actor;
	bool reclaimed;
	__u64 done;

	find_actor(&actor);
	reclaimed = OF_TASK(actor.task, flags) & PF_MEMALLOC;
	if ((actor.self && !reclaimed) || !pages_of((void *)ctx[0], &pages))
		return 0;
	count(SEEN_PAGES);
	file = page_files_lookup(&pages.file);
	if (!file) {
		file = page_files_make(&pages.file, LOST_PAGE_FILES_FULL);
		if (!file)
			return 0;
		inode = pages.inode;
		if (!BPF_CORE_READ(inode, i_sb, s_bdev))
			file->flags = PAGE_FILE_NO_DISK;
		if (pages.file.ino)
			name_page_file((__u64)pages.inode);
	}
	if (reclaimed)
		__sync_fetch_and_add(&file->reclaimed, pages.number);
	else
		__sync_fetch_and_add(&file->dropped, pages.number);
	done = folio_work(&pages, pages.first, pages.first + pages.number - 1, reclaimed ? CHUNK_RECLAIM : CHUNK_DROP,
			  plain);
	__sync_fetch_and_add(&file->judged, done & 0xffff);
	__sync_fetch_and_add(&file->one_pass, done >> 16);
	return 0;
}

/* Pages become dirty, all of a folio at once, as the kernel counts them. Writing counts as use. */
static __always_inline int page_dirty(__u64 *ctx, bool plain)
{
	struct pages pages = {};
	struct page_state *state;
	struct page_use *use;
	struct actor actor;
	__u64 last;

	find_actor(&actor);
	if (actor.self || !pages_of((void *)ctx[0], &pages))
		return 0;
	count(SEEN_PAGES);
	use = use_of(&pages.file, pages.inode, &actor);
	if (!use)
		return 0;
	__sync_fetch_and_add(&use->dirtied, pages.number);
	last = pages.first + pages.number - 1;
	state = page_state_of(actor.task, actor.tid);
	/* pages just read or faulted in by the thread were counted as used then */
	if (!state || state->inode != (__u64)pages.inode || state->first > last || state->last < pages.first)
		folio_work(&pages, pages.first, last, CHUNK_TOUCH, plain);
	return 0;
}

PAGE_PROGRAM(on_page_add, "tp_btf/mm_filemap_add_to_page_cache", page_add)
PAGE_PROGRAM(on_page_delete, "tp_btf/mm_filemap_delete_from_page_cache", page_delete)
/* Its name before 5.18. */
PAGE_PROGRAM(on_page_dirty, "tp_btf/writeback_dirty_folio", page_dirty)
PAGE_PROGRAM(on_page_dirty_old, "tp_btf/writeback_dirty_page", page_dirty)

/*
 * (bio): pages are written to a device. Counted only at the file system's own device: devices stacked below it report
 * the same pages again.
 */
SEC("tp_btf/block_bio_queue")
int on_bio(__u64 *ctx)
{
	struct bio *bio = (struct bio *)ctx[0];
	struct address_space *mapping;
	struct page_file *value;
	struct bio_vec *vector;
	struct inode *inode;
	struct file_key file;
	unsigned long head;
	struct page *page;
	__u64 bytes;

	if (!window_open())
		return 0;
	if ((bio->bi_opf & 0xff) != 1)	/* REQ_OP_WRITE */
		return 0;
	bytes = bio->bi_iter.bi_size;
	vector = bio->bi_io_vec;
	if (!bytes || !vector)
		return 0;
	page = BPF_CORE_READ(vector, bv_page);
	if (!page)
		return 0;
	head = BPF_CORE_READ(page, compound_head);
	if (head & 1)
		page = (struct page *)(head - 1);
	mapping = BPF_CORE_READ(page, mapping);
	if (!mapping || (__u64)mapping & 3)
		return 0;
	inode = BPF_CORE_READ(mapping, host);
	if (!inode || !page_key(inode, &file) || !file.ino
	    || BPF_CORE_READ(inode, i_sb, s_dev) != BPF_CORE_READ(bio, bi_bdev, bd_dev))
		return 0;
	value = page_files_make(&file, LOST_PAGE_FILES_FULL);
	if (!value)
		return 0;
	__sync_fetch_and_add(&value->written_back, (bytes + (1UL << config.page_shift) - 1) >> config.page_shift);
	return 0;
}

#endif
