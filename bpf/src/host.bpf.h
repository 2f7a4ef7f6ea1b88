/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared by the programs of the host object: the table of system calls, buffers too big for the stack. */
#ifndef WHYSTALL_HOST_H
#define WHYSTALL_HOST_H

#include "common.bpf.h"
#include "histogram.h"

const volatile struct syscall_row rows[SYSCALL_ROWS] SEC(".rodata.rows") = {};

static __always_inline const volatile struct syscall_row *row_of(__s32 nr)
{
	__u64 index = (__u32)nr;

	if (index >= SYSCALL_ROWS)
		return 0;
	asm volatile("" : "+r"(index));	/* keeps the address from being formed before the check */
	return &rows[index & (SYSCALL_ROWS - 1)];
}

/*
 * Buffers too big for the stack, one per CPU and kind of context, since a kind cannot interrupt itself on a CPU: hooks
 * with preemption off, the wake-up hook (also in interrupts), the walk over threads (preemptible), the interrupt of the
 * sampling timer, hooks of the page cache (interrupted by that timer only), and uprobes (preemptible; their programs keep
 * each other out).
 */
enum scratch_user { SCRATCH_HOOK, SCRATCH_WAKE, SCRATCH_WALK, SCRATCH_SAMPLE, SCRATCH_PAGES, SCRATCH_CALL,
		    SCRATCH_USERS };

/* Files of a call other than its main one. */
enum scratch_key { KEY_FILE2, KEY_DIR, KEY_DIR2, KEY_COUNT };

struct scratch {
	struct file_key keys[KEY_COUNT];
	union {
		struct stack_record stack;
		struct {
			struct path_record path;
			char slack_path[256];
		};
		struct {
			struct file_record file;
			char slack_file[256];
		};
		/* built in the ring buffer; listed here to be in the object's BTF */
		struct call_record call;
		struct segment_record segment;
		struct block_record block;
		struct sample_record sample;
	};
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SCRATCH_USERS);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline struct scratch *scratch(__u32 user)
{
	return bpf_map_lookup_elem(&scratches, &user);
}

/* Wakes the reader only when much has gathered: a wake-up costs more than a record. */
static __always_inline __u64 ring_flags(void)
{
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= config.wakeup_bytes ? BPF_RB_FORCE_WAKEUP
										  : BPF_RB_NO_WAKEUP;
}

#endif
