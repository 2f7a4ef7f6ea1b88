/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Shared with bpf/src_bcc. Handlers of interrupts and softirqs, from entry to exit. On one CPU handlers of a kind do not
 * nest, and totals are per CPU, so each has one writer.
 */
#ifndef WHYSTALL_INTERRUPTS_H
#define WHYSTALL_INTERRUPTS_H

#include "histogram.h"

HASH_MAP(irq_totals, struct irq_key, struct irq_total, 16384);
HASH_MAP(irq_slots, struct irq_slot_key, __u64, 16384);
HASH_MAP(irq_names, __u64, struct irq_name, 4096);

struct irq_running {
	__u64 start[IRQ_KIND_COUNT];	/* 0: none runs */
	__u64 nested_ns;	/* time of interrupts within the running softirq */
};

CPU_VALUE(irq_runs, struct irq_running);

static __always_inline void irq_starts(enum irq_kind kind)
{
	struct irq_running *running = irq_runs_here();

	if (!running)
		return;
	if (kind == IRQ_SOFTIRQ)
		running->nested_ns = 0;
	running->start[kind] = bpf_ktime_get_ns();
}

static __always_inline void name_irq(__u64 id, struct irqaction *action)
{
	struct irq_name name = {};

	bpf_probe_read_kernel_str(name.text, sizeof(name.text), READ(action, name));
	if (irq_names_update(&id, &name))
		count(LOST_INTERRUPTS_FULL);
}

/* Counts a handler at its end; `action`: of an interrupt; 0: a softirq. Returns its time without nested handlers, ns. */
static __always_inline __u64 irq_ends(__u64 id, enum irq_kind kind, struct irqaction *action)
{
	struct irq_slot_key place = { .id = id, .kind = kind };
	struct irq_key key = { .id = id, .kind = kind, .cpu = bpf_get_smp_processor_id() };
	struct irq_running *running = irq_runs_here();
	__u64 now = bpf_ktime_get_ns(), window = window_start(), start, ns, nested = 0, *slot;
	struct irq_total first = { .count = 1 }, *total;

	if (!running)
		return 0;
	start = running->start[kind];
	running->start[kind] = 0;
	if (!start || !window || start < window || start > now)	/* it started before the window */
		return 0;
	ns = now - start;
	if (kind == IRQ_SOFTIRQ)
		nested = running->nested_ns < ns ? running->nested_ns : ns;
	else if (running->start[IRQ_SOFTIRQ])
		running->nested_ns += ns;
	total = irq_totals_lookup(&key);
	if (total) {
		total->count++;
		total->total_ns += ns;
		if (ns > total->max_ns)
			total->max_ns = ns;
	} else {
		first.total_ns = ns;
		first.max_ns = ns;
		if (irq_totals_update(&key, &first)) {
			count(LOST_INTERRUPTS_FULL);
			return ns - nested;
		}
		if (action)
			name_irq(id, action);
	}
	place.slot = slot_of(ns);
	slot = irq_slots_make(&place, LOST_INTERRUPTS_FULL);
	if (slot)
		__sync_fetch_and_add(slot, 1);
	return ns - nested;
}

#endif
