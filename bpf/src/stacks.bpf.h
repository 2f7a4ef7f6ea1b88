/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Stacks by a 64-bit hash of their addresses, in a table of our own: unlike a
 * kernel stack map it loses nothing to collisions, and the walk can add the
 * stack of a thread that is not running.
 */
#ifndef WHYSTALL_STACKS_H
#define WHYSTALL_STACKS_H

#include "host.bpf.h"

HASH_MAP(stacks, __u64, struct stack_value, 4096);

#define HASH_BLOCK 4	/* addresses per turn: a turn costs more than an address */

struct hashing {
	struct stack_value *stack;
	__u64 hash;
	__u32 depth;
};

static long hash_block(__u32 i, struct hashing *hashing)
{
	__u32 first = i * HASH_BLOCK, depth = hashing->depth;
	__u64 hash = hashing->hash;

	if (i >= STACK_DEPTH / HASH_BLOCK)
		return 1;
	for (__u32 j = 0; j < HASH_BLOCK; j++) {	/* unrolled; behind the stack lies an older one */
		__u64 address = hashing->stack->ip[first + j];

		hash = (hash ^ (first + j < depth ? address : 0)) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 29;
	}
	hashing->hash = hash;
	return 0;
}

/* A global function: verified once, not at every use (5.6). */
__noinline __u64 keep_stack(__u32 user_of_scratch, __u32 bytes, __u32 user)
{
	struct scratch *buffer = scratch(user_of_scratch);
	struct hashing hashing = { .hash = 0xcbf29ce484222325ULL + user };
	__u32 depth = bytes / 8;
	__u64 hash;

	if (!buffer)
		return 0;
	hashing.stack = &buffer->stack;
	hashing.depth = depth;
	REPEAT((depth + HASH_BLOCK - 1) / HASH_BLOCK, STACK_DEPTH / HASH_BLOCK, hash_block, &hashing);
	hash = hashing.hash | 1;	/* never 0, which says: no stack */
	if (bpf_map_lookup_elem(&stacks, &hash))
		return hash;
	buffer->stack.depth = depth;
	buffer->stack.user = user;
	if ((__s32)bpf_map_update_elem(&stacks, &hash, &buffer->stack, BPF_NOEXIST) == -7 /* E2BIG */) {
		count(LOST_STACKS);
		return 0;
	}
	return hash;
}

/* The stack of the current task, from a hook. */
static __always_inline __u64 stack_here(void *ctx, __u32 user_of_scratch, __u64 flags)
{
	struct scratch *buffer = scratch(user_of_scratch);
	long bytes;

	if (!buffer)
		return 0;
	bytes = bpf_get_stack(ctx, buffer->stack.ip, sizeof(buffer->stack.ip), flags);
	if (bytes <= 0) {
		count(LOST_STACK_WALK);
		return 0;
	}
	return keep_stack(user_of_scratch, bytes, !!flags);
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
		count(LOST_STACK_WALK);
		return 0;
	}
	return keep_stack(SCRATCH_WALK, bytes, 0);
}

#endif
