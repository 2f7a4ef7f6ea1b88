/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Durations of handlers of interrupts and softirqs, and the time they take from targets' threads. Interrupts that an
 * architecture handles without an action (on x86 the local timer and calls between CPUs) have no tracepoint here.
 */
#ifndef WHYSTALL_INTERRUPTS_BPF_H
#define WHYSTALL_INTERRUPTS_BPF_H

#include "host.bpf.h"
#include "interrupts.h"
#include "regs.bpf.h"

HASH_MAP(stolen_totals, struct stolen_key, struct stolen_total, 8192);

/*
 * Adds `ns` to the interrupted thread if it is a target's. A softirq in a system call may be the thread's own work (such
 * as packets it sends to its own host): that time is also counted in `in_call_ns`, and not reported as stolen.
 */
static __always_inline void add_stolen(__u64 id, enum irq_kind kind, __u64 ns)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct stolen_key key = { .id = id, .kind = kind, .tid = thread };
	struct task_struct *task;
	struct stolen_total *total;
	__u64 in_call;

	if (!config.target || !is_target(thread >> 32))
		return;
	task = current_task();
	in_call = regs_syscall(saved_regs(task)) >= 0 ? ns : 0;
	total = bpf_map_lookup_elem(&stolen_totals, &key);
	if (total) {	/* a thread runs on one CPU at a time */
		total->count++;
		total->total_ns += ns;
		total->in_call_ns += in_call;
		if (ns > total->max_ns)
			total->max_ns = ns;
	} else {
		struct stolen_total first = {
			.count = 1, .total_ns = ns, .max_ns = ns, .in_call_ns = in_call, .tgid = thread >> 32,
		};

		bpf_get_current_comm(first.comm, sizeof(first.comm));
		if (bpf_map_update_elem(&stolen_totals, &key, &first, BPF_ANY))
			count(LOST_INTERRUPTS_FULL);
	}
}

static __always_inline void count_irq(__u64 id, enum irq_kind kind, struct irqaction *action)
{
	__u64 ns = irq_ends(id, kind, action);

	if (ns)
		add_stolen(id, kind, ns);
}

/* (irq, action) */
SEC("tp_btf/irq_handler_entry")
int on_irq_entry(__u64 *ctx)
{
	if (!window_open())
		return 0;
	irq_starts(IRQ_HARDIRQ);
	return 0;
}

/* (irq, action, result) */
SEC("tp_btf/irq_handler_exit")
int on_irq_exit(__u64 *ctx)
{
	struct irqaction *action = (struct irqaction *)ctx[1];

	if (!window_open())
		return 0;
	count_irq((__u64)action, IRQ_HARDIRQ, action);
	return 0;
}

/* (number) */
SEC("tp_btf/softirq_entry")
int on_softirq_entry(__u64 *ctx)
{
	if (!window_open())
		return 0;
	irq_starts(IRQ_SOFTIRQ);
	return 0;
}

SEC("tp_btf/softirq_exit")
int on_softirq_exit(__u64 *ctx)
{
	if (!window_open())
		return 0;
	count_irq((__u32)ctx[0], IRQ_SOFTIRQ, 0);
	return 0;
}

#endif
