/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reads and writes of files by system calls: sizes, bytes, and pages where the kernel does not report them. */
#ifndef WHYSTALL_PAGE_CALLS_H
#define WHYSTALL_PAGE_CALLS_H

#include "stalls.bpf.h"

HASH_MAP(size_totals, struct size_key, struct size_total, 16384);
HASH_MAP(size_totals_others, struct size_key, struct size_total, 65536);

static __always_inline __u8 log_of(__u64 value)
{
	__u8 log = 0;

	if (value >> 32) { value >>= 32; log += 32; }
	if (value >> 16) { value >>= 16; log += 16; }
	if (value >> 8) { value >>= 8; log += 8; }
	if (value >> 4) { value >>= 4; log += 4; }
	if (value >> 2) { value >>= 2; log += 2; }
	return log + (value >> 1 & 1);
}

static __always_inline void add_size(void *map, struct size_key *key, __u64 bytes)
{
	struct size_total *total = bpf_map_lookup_elem(map, key);

	if (!total) {
		bpf_map_update_elem(map, key, &size_totals_zeroes, BPF_NOEXIST);
		total = bpf_map_lookup_elem(map, key);
		if (!total) {
			count(LOST_SIZES_FULL);
			return;
		}
	}
	__sync_fetch_and_add(&total->count, 1);
	__sync_fetch_and_add(&total->bytes, bytes);
}

/* Derives the pages of a read from its call, on kernels without that event; reads by io_uring are then unknown. */
static __always_inline void read_pages(struct actor *actor, struct page_use *use, struct file_key *key,
				       struct inode *inode, __u64 position, __u64 bytes, bool plain)
{
	__u64 first = position >> config.page_shift, last = (position + bytes - 1) >> config.page_shift, from = first;
	struct page_state *state = make_page_state(actor->task, actor->tid);

	if (state) {
		if (state->inode == (__u64)inode && !state->fault && state->last == first
		    && position & ((1UL << config.page_shift) - 1))
			from = first + 1;	/* see continues_in_page */
		state->inode = (__u64)inode;
		state->first = first;
		state->index = first;
		state->last = last;
		state->fault = 0;
		state->calls = ~0ULL;	/* the call is over: pages added later are not for it */
	}
	if (from > last)
		return;
	__sync_fetch_and_add(&use->accessed, last - from + 1);
	__sync_fetch_and_add(&use->again, touch(key, from, last, actor->target, plain));
}

static __always_inline int page_call(__u64 *ctx, bool plain)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	const volatile struct syscall_row *row;
	struct found_file found = {};
	__s64 returned = ctx[1];
	struct size_key size = {};
	struct page_use *use;
	struct file_key key;
	struct inode *inode;
	struct actor actor;
	struct file *file;
	__u64 position;
	__u32 mode;

	if (returned <= 0)
		return 0;
	row = row_of(regs_syscall(regs));
	if (!row || !(row->flags & (ROW_READS | ROW_WRITES)))
		return 0;
	find_actor(&actor);
	if (actor.self || task_is_compat(actor.task)
	    || !find_task_file(actor.task, fd_arg(regs, row->fd), &found))
		return 0;
	mode = found.mode & S_IFMT;
	if (mode != S_IFREG && mode != S_IFBLK)
		return 0;
	file = found.file;
	inode = content_of(file);
	if (!inode || !page_key(inode, &key))
		return 0;
	use = use_of(&key, inode, &actor);
	if (!use)
		return 0;
	size.file = key;
	size.tgid = actor.tgid;
	size.write = !!(row->flags & ROW_WRITES);
	size.direct = !!(BPF_CORE_READ(file, f_flags) & O_DIRECT_BIT);
	size.log = log_of(returned);
	if (config.target && !actor.target)
		add_size(&size_totals_others, &size, returned);
	else
		add_size(&size_totals, &size, returned);
	if (size.direct)
		__sync_fetch_and_add(&use->direct_bytes, returned);
	if (size.write) {
		__sync_fetch_and_add(&use->write_bytes, returned);
		return 0;
	}
	__sync_fetch_and_add(&use->read_bytes, returned);
	if (config.pages_reported || size.direct)
		return 0;
	if (row->offset != NO_ARG)
		position = regs_arg(regs, row->offset);
	else	/* also sendfile without an offset argument */
		position = BPF_CORE_READ(file, f_pos) - returned;
	if (!(row->flags & ROW_POSITION) && row->offset == NO_ARG && regs_arg(regs, 2)) {
		if (bpf_probe_read_user(&position, sizeof(position), (void *)regs_arg(regs, 2)))
			return 0;
		position -= returned;
	}
	read_pages(&actor, use, &key, inode, position, returned, plain);
	return 0;
}

PAGE_PROGRAM(on_page_call, "tp_btf/sys_exit", page_call)

#endif
