/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Whether a hook runs in an interrupt, a softirq or a task. */
#ifndef WHYSTALL_PREEMPTION_H
#define WHYSTALL_PREEMPTION_H

#include "kernel.bpf.h"

#define IN_NMI 0xf00000
#define IN_HARDIRQ 0xf0000
#define IN_SOFTIRQ 0x100	/* serving one, not only with softirqs disabled */

/*
 * Reads this CPU's preemption count, which has 8 bits each of preemption and softirq, 4 each of interrupts and NMIs
 * (preempt.h). x86 keeps it in a per-CPU variable, whose address few kernels publish: it is found by its distance to
 * another per-CPU variable, the run queue, to which the current thread points. Returns false if it is unknown.
 */
static __always_inline bool read_preempt_count(struct task_struct *task, __u32 *n)
{
#if defined(__TARGET_ARCH_x86)
	__u64 address = config.preempt_distance;

	if (!address || !bpf_core_field_exists(task->se.cfs_rq))
		return false;
	address += (__u64)(config.current_btf ? task->se.cfs_rq->rq : BPF_CORE_READ(task, se.cfs_rq, rq));
	if (bpf_core_type_exists(struct pcpu_hot) && bpf_core_field_exists(struct pcpu_hot, preempt_count))
		address += bpf_core_field_offset(struct pcpu_hot, preempt_count);
	return !bpf_probe_read_kernel(n, sizeof(*n), (void *)address);
#else
	*n = OF_TASK(task, thread_info.preempt_count);
	return true;
#endif
}

#endif
