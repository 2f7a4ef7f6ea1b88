/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The time of hooks by the process for which they run, measured for a moment now and then. */
#ifndef WHYSTALL_COSTS_H
#define WHYSTALL_COSTS_H

#include "common.bpf.h"

HASH_MAP(process_costs, __u32, struct process_cost, 1);

/* Returns when a hook began to work for a process; 0: it is not measured. */
static __always_inline __u64 measured_from(void)
{
	return live.measuring ? bpf_ktime_get_ns() : 0;
}

/* Adds the time since then, without that of reading the clock. Not inlined, as it hardly ever runs. */
static __noinline int add_cost(__u32 tgid, __u64 since)
{
	__u64 now = bpf_ktime_get_ns(), reading = bpf_ktime_get_ns() - now, ns = now - since;
	struct process_cost *cost = process_costs_lookup(&tgid), first = { .runs = 1 };

	ns = reading < ns ? ns - reading : 0;
	if (!cost) {
		first.ns = ns;
		process_costs_update(&tgid, &first);
		return 0;
	}
	__sync_fetch_and_add(&cost->ns, ns);
	__sync_fetch_and_add(&cost->runs, 1);
	return 0;
}

static __always_inline void measured(__u32 tgid, __u64 since)
{
	if (since)
		add_cost(tgid, since);
}

#endif
