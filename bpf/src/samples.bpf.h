/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Samples the running thread and its stacks by a timer on each CPU: a software perf event, which runs in the timer's
 * interrupt and does not nest. bpf_get_stack starts from the registers of the interrupted code, so stacks have no
 * frames of the interrupt.
 */
#ifndef WHYSTALL_SAMPLES_H
#define WHYSTALL_SAMPLES_H

#include "task_state.bpf.h"
#include "regs.bpf.h"
#include "stacks.bpf.h"
#include "python.bpf.h"
#include "switches.bpf.h"

/* The context of a perf event's program begins with the user's view of the registers (uapi/asm/ptrace.h). */
static __always_inline bool was_user_mode(const __u64 *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs[17] & 3;		/* cs */
#else
	return !(regs[33] & 0xf);	/* pstate */
#endif
}

SEC("perf_event")
int on_tick(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u64 id = bpf_get_current_pid_tgid(), now, kstack = 0, ustack = 0, pystack = 0;
	struct sample_record *record;
	__u32 tgid = id >> 32, tid = id;
	bool first;

	if (!window_open())
		return 0;
	count(SEEN_TICKS);
	if (!tid)
		count(SEEN_IDLE_TICKS);
	if (tgid && tgid == config.self_tgid)
		count(SEEN_SELF_TICKS);
	if (config.current_btf && config.switches && live.looking && tid)
		read_clock(current_task(), bpf_ktime_get_ns());
	if (!has_timeline(tgid))
		return 0;
	if (live.sample_one_in > 1 && bpf_get_prandom_u32() % live.sample_one_in)
		return 0;
	now = bpf_ktime_get_ns();
	count(SEEN_SAMPLES);
	first = !bpf_map_lookup_elem(&threads, &tid);
	name_thread(task, tgid, tid);
	if (!was_user_mode(ctx))
		kstack = stack_here(ctx, SCRATCH_SAMPLE, STACK_KERNEL);
	/* an exiting thread may have no memory any more */
	if (BPF_CORE_READ(task, mm) && !(BPF_CORE_READ(task, flags) & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))) {
		ustack = stack_here(ctx, SCRATCH_SAMPLE, STACK_USER);
		pystack = python_stack_here(SCRATCH_SAMPLE);
	}
	record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record) {
		count(LOST_RING_SAMPLE);
		return 0;
	}
	record->type = RECORD_SAMPLE;
	record->flags = pystack && python_collects(tgid, tid) ? SAMPLE_COLLECTS : 0;
	record->at = now;
	record->kstack = kstack;
	record->ustack = ustack;
	record->pystack = pystack;
	record->tgid = tgid;
	record->tid = tid;
	/* a new thread's process may end soon: its symbols are read at once */
	bpf_ringbuf_submit(record, first ? BPF_RB_FORCE_WAKEUP : ring_flags());
	count(SEEN_RECORDS);
	return 0;
}

#endif
