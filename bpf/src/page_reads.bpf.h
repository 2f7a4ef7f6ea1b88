/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Pages requested by calls such as read(2). */
#ifndef WHYSTALL_PAGE_READS_H
#define WHYSTALL_PAGE_READS_H

#include "page_uses.bpf.h"

struct touching {
	struct file_key file;
	__u64 first, last;
	__u64 again;
	bool target;
};

/* Touches those pages of first..last that lie in their chunk number `which` >> 1; `which` & 1: used by a target. */
static __always_inline __u64 touch_in_chunk(__u64 ino, __u64 dev, __u64 first, __u64 last, __u32 which, bool plain)
{
	struct file_key file = { .ino = ino, .dev = dev >> 32, .gen = dev };
	__u64 chunk = (first >> CHUNK_SHIFT) + (which >> 1), start = chunk << CHUNK_SHIFT;
	__u32 from = first > start ? first - start : 0;
	__u32 until = last - start < CHUNK_PAGES ? last - start : CHUNK_PAGES - 1;

	if (!have_chunk(&file, chunk, which & 1))
		return 0;
	return CHUNK_WORK(plain, ino, dev, chunk, CHUNK_RANGE(from, until), CHUNK_TOUCH) & 0xffff;
}

/* Global functions, verified once: inlined in a loop they exceed the million steps of the verifier of 5.10. */
__noinline __u64 touch_pages(__u64 ino, __u64 dev, __u64 first, __u64 last, __u32 which)
{
	return touch_in_chunk(ino, dev, first, last, which, false);
}

static long touch_step(__u32 i, struct touching *touching)
{
	touching->again += touch_pages(touching->file.ino, (__u64)touching->file.dev << 32 | touching->file.gen,
				       touching->first, touching->last, i << 1 | touching->target);
	return 0;
}

#ifdef NO_KERNEL_FUNCTIONS
__noinline __u64 touch_pages_plain(__u64 ino, __u64 dev, __u64 first, __u64 last, __u32 which)
{
	return touch_in_chunk(ino, dev, first, last, which, true);
}

static long touch_step_plain(__u32 i, struct touching *touching)
{
	touching->again += touch_pages_plain(touching->file.ino,
					     (__u64)touching->file.dev << 32 | touching->file.gen, touching->first,
					     touching->last, i << 1 | touching->target);
	return 0;
}
#else
#define touch_step_plain touch_step
#endif

/* Marks pages as used; returns how many had been used before in this window. */
static __always_inline __u64 touch(struct file_key *file, __u64 first, __u64 last, bool target, bool plain)
{
	struct touching touching = { .file = *file, .first = first, .last = last, .target = target };
	__u64 chunks = (last >> CHUNK_SHIFT) - (first >> CHUNK_SHIFT) + 1;

	if (chunks == 1 && plain)
		touch_step_plain(0, &touching);
	else if (chunks == 1)
		touch_step(0, &touching);
	else if (plain)
		REPEAT(chunks, TOUCH_CHUNKS, touch_step_plain, &touching);
	else
		REPEAT(chunks, TOUCH_CHUNKS, touch_step, &touching);
	return touching.again;
}

static __always_inline __u64 last_page(struct inode *inode)
{
	__s64 size = BPF_CORE_READ(inode, i_size);

	return size > 0 ? (size - 1) >> config.page_shift : 0;
}

/*
 * Whether a read starts within a page. If the last one ended there, that page is not used again, as in the kernel
 * (pos_same_folio in filemap_read): small sequential reads would count every page many times.
 */
static __always_inline bool continues_in_page(struct task_struct *task, struct inode *inode)
{
	struct file *file = file_of_call(task, inode);
	const volatile struct syscall_row *row;
	struct pt_regs *regs;
	__u64 position;

	if (!file)
		return false;
	regs = saved_regs(task);
	row = row_of(regs_syscall(regs));
	if (!row)
		return false;
	if (row->flags & ROW_POSITION)
		position = BPF_CORE_READ(file, f_pos);
	else if (row->offset != NO_ARG)
		position = regs_arg(regs, row->offset);
	else
		return false;
	return position & ((1UL << config.page_shift) - 1);
}

/*
 * (mapping, index, last): a batch of pages from `index` on is cached, of a read up to `last`, which may lie beyond the
 * end of the file ("filemap: add trace events for get_pages, map_pages, and fault"). A call reports each of its batches;
 * all its pages are counted at the first one, and page_add marks those that it adds later as used.
 */
SEC("tp_btf/mm_filemap_get_pages")
int on_pages_read(__u64 *ctx)
{
	struct address_space *mapping = (struct address_space *)ctx[0];
	__u64 index = ctx[1], asked = ctx[2], first = index, last, calls;
	struct inode *inode = BPF_CORE_READ(mapping, host);
	struct page_state *state;
	struct file_key file;
	struct actor actor;
	struct page_use *use;

	if (!window_open())
		return 0;
	find_actor(&actor);
	if (actor.self) {
		count(SELF_READ);
		return 0;
	}
	if (!inode || !page_key(inode, &file))
		return 0;
	count(SEEN_PAGES);
	last = last_page(inode);
	if (last > asked)
		last = asked;
	if (last < index)
		last = index;
	state = make_page_state(actor.task, actor.tid);
	if (state) {
		calls = read_calls(actor.task);
		if (state->inode == (__u64)inode && !state->fault) {
			if (state->calls == calls && state->asked == asked && index > state->index
			    && index <= state->last + 1) {
				state->index = index;
				if (last <= state->last)
					return 0;
				first = state->last + 1;	/* the file has grown */
			} else if (index == state->last && continues_in_page(actor.task, inode)) {
				first = index + 1;
			}
		}
		state->inode = (__u64)inode;
		state->calls = calls;
		state->asked = asked;
		state->index = index;
		state->first = first;
		state->last = last;
		state->fault = 0;
	}
	if (first > last)
		return 0;
	use = use_of(&file, inode, &actor);
	if (!use)
		return 0;
	__sync_fetch_and_add(&use->accessed, last - first + 1);
	__sync_fetch_and_add(&use->again, touch(&file, first, last, actor.target, false));
	return 0;
}

#endif
