/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Handlers of interrupts and softirqs, from entry to exit. On a CPU neither kind nests in its own, and a total is of
 * one CPU, so nobody else writes to it.
 */
#if INTERRUPTS

struct own_irq_began {
	__u64 at[IRQ_KINDS];	/* 0: none runs */
};

BPF_PERCPU_ARRAY(irq_began, struct own_irq_began, 1);
BPF_HASH(irq_totals, struct irq_key, struct irq_total, 16384);
BPF_HASH(irq_slots, struct irq_slot_key, __u64, 16384);
BPF_HASH(irq_names, __u64, struct irq_name, 4096);

HERE void irq_begins(enum irq_kind kind)
{
	int zero = 0;
	struct own_irq_began *began = irq_began.lookup(&zero);

	if (began)
		began->at[kind] = bpf_ktime_get_ns();
}

HERE void add_irq_slot(__u64 id, enum irq_kind kind, __u64 ns)
{
	struct irq_slot_key key = { .id = id, .kind = kind, .slot = slot_of(ns) };
	__u64 none = 0, *value = irq_slots.lookup(&key);

	if (!value) {
		irq_slots.insert(&key, &none);
		value = irq_slots.lookup(&key);
		if (!value) {
			count(LOST_INTERRUPTS);
			return;
		}
	}
	__sync_fetch_and_add(value, 1);
}

HERE void irq_ends(__u64 id, enum irq_kind kind, struct irqaction *action)
{
	struct irq_key key = { .id = id, .kind = kind, .cpu = bpf_get_smp_processor_id() };
	int zero = 0;
	struct own_irq_began *began = irq_began.lookup(&zero);
	__u64 now = bpf_ktime_get_ns(), begin = window_start(), since;
	struct irq_total first = { .count = 1 }, *total;
	struct irq_name name = {};

	if (!began)
		return;
	since = began->at[kind];
	began->at[kind] = 0;
	if (!begin || since < begin || now < since)	/* it began before we looked */
		return;
	total = irq_totals.lookup(&key);
	if (total) {
		total->count++;
		total->total_ns += now - since;
		if (now - since > total->max_ns)
			total->max_ns = now - since;
	} else {
		first.total_ns = now - since;
		first.max_ns = now - since;
		if (irq_totals.update(&key, &first)) {
			count(LOST_INTERRUPTS);
			return;
		}
		if (action) {
			bpf_probe_read_kernel_str(name.text, sizeof(name.text), (void *)READ(action, name));
			if (irq_names.update(&id, &name))
				count(LOST_INTERRUPTS);
		}
	}
	add_irq_slot(id, kind, now - since);
}

/* (irq, action) */
int on_irq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	irq_begins(IRQ_HARD);
	return 0;
}

/* (irq, action, result) */
int on_irq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct irqaction *action = (struct irqaction *)ctx->args[1];

	irq_ends((__u64)action, IRQ_HARD, action);
	return 0;
}

/* (number) */
int on_softirq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	irq_begins(IRQ_SOFT);
	return 0;
}

int on_softirq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	irq_ends((__u32)ctx->args[0], IRQ_SOFT, 0);
	return 0;
}
#endif
