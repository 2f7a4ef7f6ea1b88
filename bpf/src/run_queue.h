/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. Totals and histograms of waits for a CPU. */
#ifndef WHYSTALL_RUN_QUEUE_H
#define WHYSTALL_RUN_QUEUE_H

#include "histogram.h"

HASH_MAP(queue_totals, struct queue_key, struct queue_total, 16384);
HASH_MAP(queue_slots, struct queue_slot_key, __u64, 32768);

/* Adds `waits` of one thread that took `all_ns` in total. */
static __always_inline void add_waits(struct task_struct *task, __u32 tgid, __u32 tid, __u64 waits, __u64 all_ns)
{
	__u64 ns = all_ns / waits, *slot;
	struct queue_key key = { .tgid = tgid, .tid = tid };
	struct queue_slot_key place = { .tgid = tgid, .slot = slot_of(ns) };
	struct queue_total first = { .count = waits, .total_ns = all_ns, .max_ns = ns }, *total;

	if (is_self(tgid)) {
		count(SELF_WAITS);
		return;
	}
	total = queue_totals_lookup(&key);
	if (total) {	/* a thread gets one CPU at a time, so it has one writer */
		total->count += waits;
		total->total_ns += all_ns;
		if (ns > total->max_ns)
			total->max_ns = ns;
		READ_COMM(total->comm, task);	/* it may have executed another program since */
	} else {
		READ_COMM(first.comm, task);
		if (queue_totals_update(&key, &first)) {
			count(LOST_WAITS_FULL);
			return;
		}
	}
	slot = queue_slots_make(&place, LOST_WAITS_FULL);
	if (slot)
		__sync_fetch_and_add(slot, waits);
}

#endif
