/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Calls of functions of an accelerator's library (launch, copy, synchronise), by thread, Python stack and function: their
 * number and time, summed here. Launches come at 100,000 per second, so that a stack is read at one of so many calls,
 * chosen at random, some hundred times per second and thread: the calls since the one before count at this stack. Of
 * rarer calls each stack is read.
 *
 * A library may call itself, and a runtime the driver: the outermost call counts. It is recognised by the stack pointer,
 * which lies lower in calls that it makes; so a return that was not reported does no harm later.
 *
 * Needs bpf_get_attach_cookie (since 5.15, 7adfc6c9b315), and atomic exchange (5.12).
 */
#ifndef WHYSTALL_ACCELERATOR_H
#define WHYSTALL_ACCELERATOR_H

#include "task_state.bpf.h"
#include "regs.bpf.h"
#include "python.bpf.h"
#include "tasks.bpf.h"
#include "user_regs.bpf.h"

#define CALLS_WALK_NS 10000000		/* between two stacks of a thread and function, at least on average */
#define CALLS_LATEST_NS 10000000000	/* calls are counted at the latest after this time, if more follow */
#define CALLS_MOST_ONE_IN 65536

struct accelerator_pending_key {
	__u32 tid, function;
};

/* Calls since the last stack that was read. left: until the next one; one_in: so many are passed on average. */
struct accelerator_pending {
	__u64 count, total_ns, max_ns;
	__u64 walked;
	__u32 left, one_in;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct accelerator_pending_key);
	__type(value, struct accelerator_pending);
} accelerator_pending SEC(".maps");

HASH_MAP(accelerator_totals, struct accelerator_key, struct accelerator_total, 8192);

/* Whether the buffers of SCRATCH_CALL of this CPU are in use: programs of uprobes may be preempted. */
CPU_VALUE(accelerator_busy, __u64);

static __always_inline bool accelerator_hit(__u32 tgid)
{
	if (!window_open())
		return false;
	count(ACCELERATOR_HITS);
	return is_traced(tgid);
}

SEC("uprobe")
int on_accelerator_entry(struct user_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), sp = ctx->sp;
	struct accelerator_call *call, fresh = {};
	__u32 tid = id;

	if (!accelerator_hit(id >> 32))
		return 0;
	call = bpf_map_lookup_elem(&accelerator_calls, &tid);
	if (call && call->function && sp < call->sp)
		return 0;
	fresh.sp = sp;
	fresh.function = bpf_get_attach_cookie(ctx);
	fresh.since = bpf_ktime_get_ns();
	if (call)
		*call = fresh;
	else
		bpf_map_update_elem(&accelerator_calls, &tid, &fresh, BPF_ANY);
	return 0;
}

/* Counts the calls that are pending at the current stack. */
static __always_inline void count_calls(__u64 id, __u32 function, struct accelerator_pending *pending, __u64 now)
{
	struct accelerator_key key = { .tgid = id >> 32, .tid = id, .function = function };
	__u64 *busy = accelerator_busy_here(), since = now - pending->walked;
	struct accelerator_total *total;

	if (!busy || __sync_lock_test_and_set(busy, 1))
		return;	/* at one of the next calls */
	key.pystack = python_stack_here(SCRATCH_CALL);
	*busy = 0;
	total = accelerator_totals_make(&key, LOST_ACCELERATOR_FULL);
	if (total) {
		total->count += pending->count;
		total->total_ns += pending->total_ns;
		if (pending->max_ns > total->max_ns)
			total->max_ns = pending->max_ns;
	}
	name_thread((struct task_struct *)bpf_get_current_task(), id >> 32, id);
	if (!pending->one_in)
		pending->one_in = 1;
	if (since < CALLS_WALK_NS && pending->one_in < CALLS_MOST_ONE_IN)
		pending->one_in *= 2;
	else if (since > 4 * CALLS_WALK_NS && pending->one_in > 1)
		pending->one_in /= 2;
	pending->left = 1 + bpf_get_prandom_u32() % (2 * pending->one_in - 1);
	pending->walked = now;
	pending->count = pending->total_ns = pending->max_ns = 0;
}

SEC("uretprobe")
int on_accelerator_return(struct user_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), sp = ctx->sp, now, took;
	struct accelerator_pending_key key = { .tid = id };
	struct accelerator_pending *pending, fresh = {};
	struct accelerator_call *call;
	__u32 tid = id;

	if (!accelerator_hit(id >> 32))
		return 0;
	call = bpf_map_lookup_elem(&accelerator_calls, &tid);
	if (!call || !call->function || sp < call->sp)
		return 0;
#if defined(__TARGET_ARCH_x86)
	if (sp == call->sp)	/* the outermost call has removed its return address */
		return 0;
#endif
	now = bpf_ktime_get_ns();
	took = now - call->since;
	key.function = call->function;
	pending = bpf_map_lookup_elem(&accelerator_pending, &key);
	if (!pending) {
		bpf_map_update_elem(&accelerator_pending, &key, &fresh, BPF_ANY);
		pending = bpf_map_lookup_elem(&accelerator_pending, &key);
	}
	if (pending) {
		pending->count++;
		pending->total_ns += took;
		if (took > pending->max_ns)
			pending->max_ns = took;
		if (pending->left > 1 && now - pending->walked < CALLS_LATEST_NS)
			pending->left--;
		else
			count_calls(id, key.function, pending, now);
	}
	call->function = 0;
	return 0;
}

#endif
