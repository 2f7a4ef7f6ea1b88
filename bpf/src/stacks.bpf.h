/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Stacks by a 64-bit hash of their addresses. A stack is emitted once, at its first use, and costs the kernel few bytes.
 * Unlike a BPF stack map this loses nothing to collisions, and can add stacks of threads that are not running.
 */
#ifndef WHYSTALL_STACKS_H
#define WHYSTALL_STACKS_H

#include "host.bpf.h"

/* Stacks that user space knows; a dropped entry is emitted again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u8);
} stacks_emitted SEC(".maps");

#define HASH_BLOCK 4	/* addresses per turn: a turn costs more than an address */

struct hashing {
	struct stack_record *stack;
	__u64 hash;
	__u32 depth;
};

static long hash_block(__u32 i, struct hashing *hashing)
{
	__u32 first = i * HASH_BLOCK, depth = hashing->depth;
	__u64 hash = hashing->hash;

	if (i >= STACK_DEPTH / HASH_BLOCK)
		return 1;
	for (__u32 j = 0; j < HASH_BLOCK; j++) {	/* unrolled; beyond `depth` the buffer has an older stack */
		__u64 address = hashing->stack->ip[first + j];

		hash = (hash ^ (first + j < depth ? address : 0)) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 29;
	}
	hashing->hash = hash;
	return 0;
}

/*
 * Returns the id of the stack of `bytes` bytes in scratch(user_of_scratch)->stack.ip, and emits it if new; 0: lost.
 * `kind`: enum stack_kind. A global function: verified once, not at every use (since 5.6).
 */
__noinline __u64 keep_stack(__u32 user_of_scratch, __u32 bytes, __u32 kind)
{
	struct scratch *buffer = scratch(user_of_scratch);
	struct hashing hashing = { .hash = 0xcbf29ce484222325ULL + kind };
	__u32 depth = bytes / 8, size;
	__u8 one = 1;
	__u64 hash;

	if (!buffer || depth > STACK_DEPTH)
		return 0;
	hashing.stack = &buffer->stack;
	hashing.depth = depth;
	REPEAT((depth + HASH_BLOCK - 1) / HASH_BLOCK, STACK_DEPTH / HASH_BLOCK, hash_block, &hashing);
	hash = hashing.hash | 1;	/* 0 means: no stack */
	if (bpf_map_lookup_elem(&stacks_emitted, &hash))
		return hash;
	bpf_map_update_elem(&stacks_emitted, &hash, &one, BPF_ANY);
	buffer->stack.type = RECORD_STACK;
	buffer->stack.depth = depth;
	buffer->stack.kind = kind;
	buffer->stack.id = hash;
	size = __builtin_offsetof(struct stack_record, ip) + depth * 8;
	if (bpf_ringbuf_output(&ring, &buffer->stack, size, ring_flags())) {
		count(LOST_RING_STACK);
		bpf_map_delete_elem(&stacks_emitted, &hash);	/* its next use emits it */
		return 0;
	}
	return hash;
}

/* The kernel or user stack of the current task, from a hook. */
static __always_inline __u64 stack_here(void *ctx, __u32 user_of_scratch, __u32 kind)
{
	struct scratch *buffer = scratch(user_of_scratch);
	long bytes;

	if (!buffer)
		return 0;
	bytes = bpf_get_stack(ctx, buffer->stack.ip, sizeof(buffer->stack.ip),
			      kind == STACK_USER ? BPF_F_USER_STACK : 0);
	if (bytes <= 0) {
		count(LOST_STACK_WALK_FAILED);
		return 0;
	}
	return keep_stack(user_of_scratch, bytes, kind);
}

/* The kernel stack of another task, from the walk. */
static __always_inline __u64 stack_of_task(struct task_struct *task)
{
	struct scratch *buffer = scratch(SCRATCH_WALK);
	long bytes;

	if (!buffer)
		return 0;
	bytes = bpf_get_task_stack(task, buffer->stack.ip, sizeof(buffer->stack.ip), 0);
	if (bytes <= 0) {
		count(LOST_STACK_WALK_FAILED);
		return 0;
	}
	return keep_stack(SCRATCH_WALK, bytes, STACK_KERNEL);
}

#endif
