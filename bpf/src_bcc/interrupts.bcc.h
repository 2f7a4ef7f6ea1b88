/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Hooks of interrupts and softirqs. */
#if INTERRUPTS

#include "interrupts.h"

/* (irq, action) */
int on_irq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	irq_starts(IRQ_HARDIRQ);
	return 0;
}

/* (irq, action, result) */
int on_irq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct irqaction *action = (struct irqaction *)ctx->args[1];

	irq_ends((__u64)action, IRQ_HARDIRQ, action);
	return 0;
}

/* (number) */
int on_softirq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	irq_starts(IRQ_SOFTIRQ);
	return 0;
}

int on_softirq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	irq_ends((__u32)ctx->args[0], IRQ_SOFTIRQ, 0);
	return 0;
}
#endif
