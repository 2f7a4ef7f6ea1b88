/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* State of a thread that uses the page cache: its last read or fault, and its stall in progress. */
#ifndef WHYSTALL_PAGE_STATE_H
#define WHYSTALL_PAGE_STATE_H

#include "task_state.bpf.h"
#include "regs.bpf.h"

struct page_state {
	/* the pages first..last of the last read or fault; a read's current batch begins at index */
	__u64 inode, calls;
	__u64 asked, index, first, last;
	__u64 fault;
	/* start of the stall in progress; 0: none */
	__u64 reclaim_start, lock_start;
	__u64 pause_end;	/* of the last pause for dirty pages */
	__u64 lock;
	struct file_key lock_file, pause_file;
	__u32 reclaim_what, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct page_state);
} page_storage SEC(".maps");

HASH_MAP(page_hash, __u32, struct page_state, 16384);

static __always_inline struct page_state *page_state_of(struct task_struct *task, __u32 tid)
{
	if (config.task_storage)
		return bpf_task_storage_get(&page_storage, task, 0, 0);
	return bpf_map_lookup_elem(&page_hash, &tid);
}

static __always_inline struct page_state *make_page_state(struct task_struct *task, __u32 tid)
{
	struct page_state *state;

	if (config.task_storage) {
		state = bpf_task_storage_get(&page_storage, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	} else {
		return page_hash_make(&tid, LOST_NO_STATE);
	}
	if (!state)
		count(LOST_NO_STATE);
	return state;
}

/* Returns the number of reads the thread has completed (CONFIG_TASK_XACCT), to distinguish calls. */
static __always_inline __u64 read_calls(struct task_struct *task)
{
	if (bpf_core_field_exists(task->ioac.syscr))
		return BPF_CORE_READ(task, ioac.syscr);
	return 0;
}

#endif
