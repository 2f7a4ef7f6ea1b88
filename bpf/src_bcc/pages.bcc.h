/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The page cache: pages that each process adds and dirties, per file, pages that leave it, pages read back after reclaim,
 * and stalls in reclaim. Pages are base pages: a folio of order n is 2^n of them. Repeated use of pages is not tracked.
 */
#if PAGE_CACHE

#define WORD_PAGES 64
/* A folio of the cache is of the size of a huge page at most, 512 pages of 4 KiB (mm: MAX_PAGECACHE_ORDER). */
#define MOST_WORDS 8

#include "page_keys.h"

struct page_word {
	struct file_key file;
	__u64 word;
};

struct pages {
	struct file_key file;
	struct inode *inode;
	__u64 first, number;
};

struct reclaim {
	__u64 start;
	__u32 what, pad;
};

HASH_MAP(page_uses, struct use_key, struct page_use, 16384);
HASH_MAP(page_files, struct file_key, struct page_file, 16384);
HASH_MAP(evicted, struct page_word, __u64, 65536);	/* a bit per page evicted by reclaim in this window */
HASH_MAP(reclaims, __u32, struct reclaim, 4096);
HASH_MAP(stall_totals, struct stall_key, struct stall_total, 4096);

HERE bool pages_of(void *object, struct pages *pages)
{
	struct address_space *mapping = CACHE_MAPPING(object);
	struct inode *inode;

	if (!mapping || (__u64)mapping & 3)
		return false;
	inode = READ(mapping, host);
	if (!inode)
		return false;
	pages->inode = inode;
	pages->first = CACHE_INDEX(object);
	pages->number = 1ULL << (cache_order(object) & 15);
	return page_key(inode, &pages->file);
}

/* Sets the bits of pages (`take`), or clears them and returns how many were set. */
HERE __u64 evicted_bits(struct pages *pages, bool take)
{
	__u64 words = pages->number / WORD_PAGES, mask = ~0ULL, sum = 0, *bits;
	struct page_word key = { .file = pages->file, .word = pages->first / WORD_PAGES };

	if (!words) {
		words = 1;
		mask = ((1ULL << pages->number) - 1) << (pages->first % WORD_PAGES);
	}
	if (words > MOST_WORDS)	/* pages of 64 KiB: the rest is not tracked */
		count(LOST_PAGE_FILES_FULL);
	for (int i = 0; i < MOST_WORDS; i++) {
		/* see REPEAT */
		asm volatile("" : "+r"(words));
		if (i >= words)
			break;
		bits = take ? evicted_make(&key, LOST_PAGE_FILES_FULL) : evicted_lookup(&key);
		if (bits && take) {
			*bits |= mask;
		} else if (bits) {
			sum += __builtin_popcountll(*bits & mask);
			*bits &= ~mask;
		}
		key.word++;
	}
	return sum;
}

HERE void name_page_file(void *ctx, struct pages *pages)
{
	struct dentry *dentry;

	if (!pages->file.ino)
		return;
	dentry = any_dentry(pages->inode);
	if (dentry)
		emit_file(ctx, 0, dentry);
}

HERE struct page_use *use_of(void *ctx, struct pages *pages, __u32 tgid)
{
	struct use_key key = { .file = pages->file, .tgid = tgid };
	struct page_use *use = page_uses_lookup(&key);

	if (use)
		return use;
	use = page_uses_make(&key, LOST_PAGE_USES_FULL);
	if (!use)
		return 0;
	bpf_get_current_comm(use->comm, sizeof(use->comm));
	name_page_file(ctx, pages);
	return use;
}

/* Returns the process; 0 for kernel threads, which work for unknown processes. */
HERE __u32 page_actor(struct task_struct *task)
{
	return READ(task, flags) & PF_KTHREAD ? 0 : READ(task, tgid);
}

int on_page_add(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct pages pages = {};
	struct page_use *use;

	if (!window_start())
		return 0;
	if (is_self(READ(task, tgid))) {
		count(SELF_ADDED);
		return 0;
	}
	if (!pages_of((void *)ctx->args[0], &pages))
		return 0;
	count(SEEN_PAGES);
	use = use_of(ctx, &pages, page_actor(task));
	if (!use)
		return 0;
	__sync_fetch_and_add(&use->added, pages.number);
	__sync_fetch_and_add(&use->untracked, pages.number);
	__sync_fetch_and_add(&use->refaulted, evicted_bits(&pages, false));
	return 0;
}

int on_page_dirty(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct pages pages = {};
	struct page_use *use;

	if (!window_start() || is_self(READ(task, tgid)) || !pages_of((void *)ctx->args[0], &pages))
		return 0;
	count(SEEN_PAGES);
	use = use_of(ctx, &pages, page_actor(task));
	if (use)
		__sync_fetch_and_add(&use->dirtied, pages.number);
	return 0;
}

/* Reclaimed by a task in reclaim (kswapd too), else dropped. */
int on_page_delete(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	bool reclaimed = READ(task, flags) & PF_MEMALLOC;
	struct page_file *file;
	struct pages pages = {};

	if (!window_start() || (is_self(READ(task, tgid)) && !reclaimed))
		return 0;
	if (!pages_of((void *)ctx->args[0], &pages))
		return 0;
	count(SEEN_PAGES);
	file = page_files_lookup(&pages.file);
	if (!file) {
		file = page_files_make(&pages.file, LOST_PAGE_FILES_FULL);
		if (!file)
			return 0;
		name_page_file(ctx, &pages);
	}
	if (!reclaimed) {
		__sync_fetch_and_add(&file->dropped, pages.number);
		return 0;
	}
	__sync_fetch_and_add(&file->reclaimed, pages.number);
	evicted_bits(&pages, true);
	return 0;
}

HERE int reclaim_begins(__u32 what)
{
	struct reclaim state = { .start = bpf_ktime_get_ns(), .what = what };
	__u32 tid = bpf_get_current_pid_tgid();

	if (reclaims.update(&tid, &state))
		count(LOST_STALLS_FULL);
	return 0;
}

HERE int reclaim_ends(__u32 what, __u64 reclaimed)
{
	__u64 id = bpf_get_current_pid_tgid(), begin = window_start(), now = bpf_ktime_get_ns(), start;
	struct stall_key key = { .tgid = id >> 32, .tid = id, .what = what };
	struct stall_total *total;
	struct reclaim *state;
	__u32 tid = id;

	state = reclaims.lookup(&tid);
	if (!state || state->what != what)
		return 0;
	start = state->start < begin ? begin : state->start;
	reclaims.delete(&tid);
	if (!begin || now <= start)
		return 0;
	total = stall_totals_make(&key, LOST_STALLS_FULL);
	if (total)
		add_to_stall(total, start, now - start, reclaimed);
	return 0;
}

int on_reclaim(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_begins(STALL_DIRECT_RECLAIM);
}

/* (pages reclaimed) */
int on_reclaim_done(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_ends(STALL_DIRECT_RECLAIM, ctx->args[0]);
}

int on_cgroup_reclaim(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_begins(STALL_CGROUP_RECLAIM);
}

int on_cgroup_reclaim_done(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_ends(STALL_CGROUP_RECLAIM, ctx->args[0]);
}
#endif
