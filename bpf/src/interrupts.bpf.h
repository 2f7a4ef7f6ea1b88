/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Handlers of interrupts and softirqs, from entry to exit. On a CPU neither kind nests in its own, and a total is of
 * one CPU, so nobody else writes to it. What an architecture handles without an action (on x86 the local timer, calls
 * between CPUs) is not told here.
 */
#ifndef WHYSTALL_INTERRUPTS_H
#define WHYSTALL_INTERRUPTS_H

#include "host.bpf.h"
#include "regs.bpf.h"

HASH_MAP(irq_totals, struct irq_key, struct irq_total, 16384);
HASH_MAP(irq_slots, struct irq_slot_key, __u64, 16384);
HASH_MAP(irq_names, __u64, struct irq_name, 4096);
HASH_MAP(stolen_totals, struct stolen_key, struct stolen_total, 8192);

struct irq_running {
	__u64 began[IRQ_KINDS];	/* 0: none runs */
	__u64 nested_ns;	/* what interrupts took of the softirq that runs */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct irq_running);
} irq_runs SEC(".maps");

static __always_inline struct irq_running *irq_running(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&irq_runs, &zero);
}

static __always_inline void irq_begins(enum irq_kind kind)
{
	struct irq_running *running = irq_running();

	if (!running)
		return;
	if (kind == IRQ_SOFT)
		running->nested_ns = 0;
	running->began[kind] = bpf_ktime_get_ns();
}

static __always_inline void name_irq(__u64 id, struct irqaction *action)
{
	struct irq_name name = {};

	bpf_probe_read_kernel_str(name.text, sizeof(name.text), BPF_CORE_READ(action, name));
	if (bpf_map_update_elem(&irq_names, &id, &name, BPF_ANY))
		count(LOST_INTERRUPTS);
}

static __always_inline void add_irq_slot(__u64 id, enum irq_kind kind, __u64 ns)
{
	struct irq_slot_key key = { .id = id, .kind = kind, .slot = slot_of(ns) };
	__u64 *value = bpf_map_lookup_elem(&irq_slots, &key);
	const __u64 none = 0;

	if (!value) {
		bpf_map_update_elem(&irq_slots, &key, &none, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&irq_slots, &key);
		if (!value) {
			count(LOST_INTERRUPTS);
			return;
		}
	}
	__sync_fetch_and_add(value, 1);
}

/*
 * The interrupted thread, if it is a target's. A softirq may run at the end of what the thread does itself in a system
 * call (packets it sends to its own host): then its registers say so, and user space does not call that stolen.
 */
static __always_inline void add_stolen(__u64 id, enum irq_kind kind, __u64 ns)
{
	__u64 who = bpf_get_current_pid_tgid();
	struct stolen_key key = { .id = id, .kind = kind, .tid = who };
	struct task_struct *task;
	struct stolen_total *total;
	__u64 in_call;

	if (!config.target || !is_target(who >> 32))
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
			.count = 1, .total_ns = ns, .max_ns = ns, .in_call_ns = in_call, .tgid = who >> 32,
		};

		bpf_get_current_comm(first.comm, sizeof(first.comm));
		if (bpf_map_update_elem(&stolen_totals, &key, &first, BPF_ANY))
			count(LOST_INTERRUPTS);
	}
}

/* `action`: of an interrupt; 0: a softirq. */
static __always_inline void irq_ends(__u64 id, enum irq_kind kind, struct irqaction *action)
{
	struct irq_key key = { .id = id, .kind = kind, .cpu = bpf_get_smp_processor_id() };
	struct irq_running *running = irq_running();
	__u64 now = bpf_ktime_get_ns(), began, ns, nested = 0;
	struct irq_total *total;

	if (!running)
		return;
	began = running->began[kind];
	running->began[kind] = 0;
	if (!began || began > now)	/* it began before we looked */
		return;
	ns = now - began;
	if (kind == IRQ_SOFT)
		nested = running->nested_ns < ns ? running->nested_ns : ns;
	else if (running->began[IRQ_SOFT])
		running->nested_ns += ns;
	total = bpf_map_lookup_elem(&irq_totals, &key);
	if (total) {
		total->count++;
		total->total_ns += ns;
		if (ns > total->max_ns)
			total->max_ns = ns;
	} else {
		struct irq_total first = { .count = 1, .total_ns = ns, .max_ns = ns };

		if (bpf_map_update_elem(&irq_totals, &key, &first, BPF_ANY)) {
			count(LOST_INTERRUPTS);
			return;
		}
		if (action)
			name_irq(id, action);
	}
	add_irq_slot(id, kind, ns);
	add_stolen(id, kind, ns - nested);
}

/* (irq, action) */
SEC("tp_btf/irq_handler_entry")
int on_irq_entry(__u64 *ctx)
{
	if (!looking())
		return 0;
	irq_begins(IRQ_HARD);
	return 0;
}

/* (irq, action, result) */
SEC("tp_btf/irq_handler_exit")
int on_irq_exit(__u64 *ctx)
{
	struct irqaction *action = (struct irqaction *)ctx[1];

	if (!looking())
		return 0;
	irq_ends((__u64)action, IRQ_HARD, action);
	return 0;
}

/* (number) */
SEC("tp_btf/softirq_entry")
int on_softirq_entry(__u64 *ctx)
{
	if (!looking())
		return 0;
	irq_begins(IRQ_SOFT);
	return 0;
}

SEC("tp_btf/softirq_exit")
int on_softirq_exit(__u64 *ctx)
{
	if (!looking())
		return 0;
	irq_ends((__u32)ctx[0], IRQ_SOFT, 0);
	return 0;
}

#endif
