/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Configuration, counters, the ring buffer, and who is looked at. */
#ifndef WHYSTALL_COMMON_H
#define WHYSTALL_COMMON_H

#include "kernel.bpf.h"

volatile struct live live SEC(".data.live") = {};

/* Hooks come and go one by one, which takes milliseconds to seconds: all look from one instant to another. */
static __always_inline bool looking(void)
{
	return live.window_start && !live.window_end;
}

#define HASH_MAP(map_name, key_type, value_type, entries)	\
	struct {						\
		__uint(type, BPF_MAP_TYPE_HASH);		\
		__uint(max_entries, entries);			\
		__type(key, key_type);				\
		__type(value, value_type);			\
	} map_name SEC(".maps")

HASH_MAP(targets, __u32, __u8, 1024);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 21);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

static __always_inline void count_more(enum counter which, __u64 by)
{
	__u32 zero = 0;
	struct counters *c = bpf_map_lookup_elem(&counters, &zero);

	if (c)
		__sync_fetch_and_add(&c->count[which], by);	/* interrupts may count too */
}

static __always_inline void count(enum counter which)
{
	count_more(which, 1);
}

static __always_inline bool is_target(__u32 tgid)
{
	if (tgid == config.target)
		return true;
	return live.more_targets && bpf_map_lookup_elem(&targets, &tgid);
}

static __always_inline bool is_traced(__u32 tgid)
{
	return config.target ? is_target(tgid) : tgid && tgid != config.self_tgid;
}

/* A new process of a target becomes one. */
static __always_inline void follow_child(struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = child->tgid;
	__u8 one = 1;

	if (tgid == parent->tgid || !is_target(parent->tgid))
		return;
	if (bpf_map_update_elem(&targets, &tgid, &one, BPF_ANY))
		count(LOST_TARGETS);
	else
		live.more_targets = 1;
}

#endif
