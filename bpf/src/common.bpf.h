/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Configuration, counters, the ring buffer, and which processes are observed. */
#ifndef WHYSTALL_COMMON_H
#define WHYSTALL_COMMON_H

#include "kernel.bpf.h"

volatile struct live live SEC(".data.live") = {};

/* Hooks are attached one by one, which takes up to seconds; all of them count only while the window is open. */
static __always_inline bool window_open(void)
{
	return live.window_start && !live.window_end;
}

/*
 * A hash map, and its functions for the headers shared with bpf/src_bcc: BCC has no map functions of this form, so
 * tools/collect/bcc/own_source.py expands the same lines for it. NAME_make looks up, or inserts zeroes.
 */
#define HASH_MAP(map_name, key_type, value_type, entries)					\
	struct {										\
		__uint(type, BPF_MAP_TYPE_HASH);						\
		__uint(max_entries, entries);							\
		__type(key, key_type);								\
		__type(value, value_type);							\
	} map_name SEC(".maps");								\
	MAP_FUNCTION value_type *map_name##_lookup(const key_type *key)				\
	{											\
		return bpf_map_lookup_elem(&map_name, key);					\
	}											\
	MAP_FUNCTION int map_name##_update(const key_type *key, const value_type *value)	\
	{											\
		return bpf_map_update_elem(&map_name, key, value, BPF_ANY);			\
	}											\
	static const value_type map_name##_zeroes = {0};						\
	MAP_FUNCTION value_type *map_name##_make(const key_type *key, enum counter lost)	\
	{											\
		value_type *value = bpf_map_lookup_elem(&map_name, key);			\
												\
		if (value)									\
			return value;								\
		bpf_map_update_elem(&map_name, key, &map_name##_zeroes, BPF_NOEXIST);		\
		value = bpf_map_lookup_elem(&map_name, key);					\
		if (!value)									\
			count(lost);								\
		return value;									\
	}											\
	struct map_name##_declared {}

/* One value per CPU, and NAME_here(), which returns that of this CPU. */
#define CPU_VALUE(map_name, value_type)								\
	struct {										\
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);					\
		__uint(max_entries, 1);								\
		__type(key, __u32);								\
		__type(value, value_type);							\
	} map_name SEC(".maps");								\
	MAP_FUNCTION value_type *map_name##_here(void)						\
	{											\
		const __u32 zero = 0;								\
												\
		return bpf_map_lookup_elem(&map_name, &zero);					\
	}											\
	struct map_name##_declared {}

#define MAP_FUNCTION static __always_inline __attribute__((unused))

CPU_VALUE(counters, struct counters);

static __always_inline void count_more(enum counter which, __u64 by)
{
	struct counters *here = counters_here();

	if (here)
		__sync_fetch_and_add(&here->count[which], by);	/* interrupts may count too */
}

static __always_inline void count(enum counter which)
{
	count_more(which, 1);
}

static __always_inline __u64 window_start(void)
{
	return live.window_start;
}

HASH_MAP(targets, __u32, __u8, 1024);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 21);
} ring SEC(".maps");

static __always_inline bool is_self(__u32 tgid)
{
	return tgid && tgid == config.self_tgid;
}

/* Returns an enum traced_as; 0: none. */
static __always_inline __u8 target_kind(__u32 tgid)
{
	__u8 *kind;

	if (tgid == config.target)
		return TRACED_TARGET;
	kind = live.more_targets ? bpf_map_lookup_elem(&targets, &tgid) : 0;
	return kind ? *kind : 0;
}

static __always_inline bool is_target(__u32 tgid)
{
	return target_kind(tgid) == TRACED_TARGET;
}

/* Whether all events of the process are recorded. */
static __always_inline bool is_traced(__u32 tgid)
{
	return config.target ? is_target(tgid) : tgid && tgid != config.self_tgid;
}

/* Whether its switches and samples are recorded: also those of followed wakers. */
static __always_inline bool has_timeline(__u32 tgid)
{
	return config.target ? target_kind(tgid) : tgid && tgid != config.self_tgid;
}

/*
 * Returns with which of `live.details`, plus one, the hooks at switches record a process; 0: not at all. Processes whose
 * ids have the same lowest bits share the level with the most detail. The table is in plain memory: most switches and
 * wake-ups are those of other processes, and end here.
 */
static __always_inline __u32 level_of(__u32 tgid)
{
	return config.limited ? live.levels[tgid & (PROCESS_SLOTS - 1)] : 1;
}

static __always_inline volatile struct detail *detail_at(__u32 level)
{
	__u64 at = level - 1;

	asm volatile("" : "+r"(at));	/* keeps the address from being formed before the bound */
	return &live.details[at & (DETAIL_LEVELS - 1)];
}

/* Records a process that is newly traced with the detail of another one. */
static __always_inline void share_level(__u32 tgid, __u32 with)
{
	__u32 level = level_of(with), own = level_of(tgid);

	if (config.limited && level && (!own || level < own))
		live.levels[tgid & (PROCESS_SLOTS - 1)] = level;
}

/* Makes a new process of a target a target. */
static __always_inline void follow_child(struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = child->tgid;
	__u8 one = TRACED_TARGET;

	if (tgid == parent->tgid || !is_target(parent->tgid))
		return;
	if (bpf_map_update_elem(&targets, &tgid, &one, BPF_ANY)) {
		count(LOST_TARGETS_FULL);
		return;
	}
	live.more_targets = 1;
	share_level(tgid, parent->tgid);
}

#endif
