/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What ends a wait: the waker, and the context in which the wake-up runs. The preemption count distinguishes
 * interrupts and softirqs from tasks. Hooks at the start of an interrupt or softirq note per CPU which one it is. If the
 * count is unknown, the notes provide both; interrupts without a note (calls between CPUs) hardly ever wake a thread.
 */
#ifndef WHYSTALL_WAKERS_H
#define WHYSTALL_WAKERS_H

#include "preemption.bpf.h"
#include "switches.bpf.h"

/* The completion event of a request directly precedes the wake-ups of the threads that wait for it. */
#define BLOCK_TO_WAKE_NS 1000000

/* include/linux/interrupt.h */
enum softirq { SOFTIRQ_TIMER = 1, SOFTIRQ_NET_TX, SOFTIRQ_NET_RX, SOFTIRQ_BLOCK, SOFTIRQ_POLL, SOFTIRQ_HRTIMER = 8 };

struct wake_marks {
	__u64 block_at;		/* last completion of a request on this CPU, and its context */
	__u32 block_tid, block_bits;
	__u32 softirq;		/* number of the running one plus one; 0: none runs. With a preemption count: of the last */
	__u16 hrtimer;		/* a timer's function runs in its interrupt */
	__u16 hardirq;		/* a device's handler runs; noted only if the preemption count is unknown */
};

CPU_VALUE(wake_marks, struct wake_marks);

/* Returns the marks of this CPU; NULL outside of the window. */
static __always_inline struct wake_marks *marks_in_window(void)
{
	if (!window_open())
		return 0;
	return wake_marks_here();
}

/* (timer, now) */
SEC("tp_btf/hrtimer_expire_entry")
int on_timer_entry(__u64 *ctx)
{
	struct hrtimer *timer = (struct hrtimer *)ctx[0];
	struct wake_marks *marks;

	if (!window_open() || (bpf_core_field_exists(timer->is_soft) && timer->is_soft))
		return 0;	/* the softirq is noted */
	marks = wake_marks_here();
	if (marks)
		marks->hrtimer = 1;
	return 0;
}

/* (timer): it may have been freed */
SEC("tp_btf/hrtimer_expire_exit")
int on_timer_exit(__u64 *ctx)
{
	struct wake_marks *marks = marks_in_window();

	if (marks)
		marks->hrtimer = 0;
	return 0;
}

/* (number) */
SEC("tp_btf/softirq_entry")
int on_serving(__u64 *ctx)
{
	struct wake_marks *marks = marks_in_window();

	if (marks)
		marks->softirq = (__u32)ctx[0] + 1;
	return 0;
}

SEC("tp_btf/softirq_exit")
int on_served(__u64 *ctx)
{
	struct wake_marks *marks = marks_in_window();

	if (marks)
		marks->softirq = 0;
	return 0;
}

/* (irq, action) */
SEC("tp_btf/irq_handler_entry")
int on_device_entry(__u64 *ctx)
{
	struct wake_marks *marks = marks_in_window();

	if (marks)
		marks->hardirq = 1;
	return 0;
}

/* (irq, action, result) */
SEC("tp_btf/irq_handler_exit")
int on_device_exit(__u64 *ctx)
{
	struct wake_marks *marks = marks_in_window();

	if (marks)
		marks->hardirq = 0;
	return 0;
}

/* Returns which of IN_NMI, IN_HARDIRQ and IN_SOFTIRQ this CPU is. */
static __always_inline __u32 interrupts_here(struct wake_marks *marks)
{
	__u32 n = 0;

	if (read_preempt_count(current_task(), &n))
		return n & (IN_NMI | IN_HARDIRQ | IN_SOFTIRQ);
	if (marks->hrtimer || marks->hardirq)
		return IN_HARDIRQ;
	return marks->softirq ? IN_SOFTIRQ : 0;
}

/* Before the threads that wait for the request are woken. */
SEC("tp_btf/block_rq_complete")
int on_completion(__u64 *ctx)
{
	struct wake_marks *marks = marks_in_window();

	if (!marks)
		return 0;
	marks->block_bits = interrupts_here(marks);
	marks->block_tid = bpf_get_current_pid_tgid();
	marks->block_at = bpf_ktime_get_ns();
	return 0;
}

/* Whether a task wakes the thread by a signal: one is pending before the wake-up. Stopped threads are woken by nothing else. */
static __always_inline bool by_signal(struct task_struct *task, __u32 off_class)
{
	unsigned long pending;

	if (off_class == OFF_D)
		return false;
	if (off_class == OFF_OTHER && task_state(task) & 4 /* __TASK_STOPPED */)
		return true;
	pending = task->pending.signal.sig[0] | task->signal->shared_pending.signal.sig[0];
	return pending & ~task->blocked.sig[0];
}

static __always_inline __u32 context_of_softirq(struct wake_marks *marks, bool block)
{
	switch (marks->softirq) {
	case SOFTIRQ_TIMER + 1:
	case SOFTIRQ_HRTIMER + 1:
		return WAKE_TIMER;
	case SOFTIRQ_NET_TX + 1:
	case SOFTIRQ_NET_RX + 1:
		return WAKE_NETWORK;
	case SOFTIRQ_BLOCK + 1:
	case SOFTIRQ_POLL + 1:
		return WAKE_BLOCK;
	}
	return block ? WAKE_BLOCK : WAKE_INTERRUPT;
}

/* Returns an enum wake_context of the wake-up of a thread at `now`. */
static __always_inline __u32 context_of(struct task_struct *task, __u32 off_class, __u64 now)
{
	struct wake_marks *marks = wake_marks_here();
	__u32 tid = bpf_get_current_pid_tgid(), n;
	bool block;

	if (!marks || !config.wake_contexts)
		return WAKE_UNKNOWN;
	n = interrupts_here(marks);
	block = marks->block_tid == tid && marks->block_bits == n && now - marks->block_at < BLOCK_TO_WAKE_NS;
	if (n & (IN_NMI | IN_HARDIRQ)) {
		if (marks->hrtimer)
			return WAKE_TIMER;
		return block ? WAKE_BLOCK : WAKE_INTERRUPT;
	}
	if (n)
		return context_of_softirq(marks, block);
	if (by_signal(task, off_class))
		return WAKE_SIGNAL;
	return block ? WAKE_BLOCK : WAKE_TASK;
}

/* Returns the system call of the current thread, -1: none. */
static __always_inline __s32 waker_call(struct task_struct *waker)
{
	if (OF_TASK(waker, flags) & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) || task_is_compat(waker))
		return NO_SYSCALL;
	return regs_syscall(saved_regs(waker));
}

/*
 * Records the process of the current thread from now on if it woke a traced thread on its own behalf: as a task, or by
 * sending to a socket of this host, which delivers in a softirq.
 */
static __always_inline void follow_waker(struct task_struct *waker, struct task_struct *woken, struct thread_state *state)
{
	const volatile struct syscall_row *row;
	struct followed_record record = {};
	__u8 kind = TRACED_WAKER;
	__u64 *number;
	bool kernel;

	if (!state->waker_tgid || is_self(state->waker_tgid) || target_kind(state->waker_tgid))
		return;
	if (state->wake_context == WAKE_NETWORK) {
		row = row_of(state->waker_nr);
		if (state->waker_nr < 0 || !row || !(row->flags & ROW_SENDS))
			return;
	} else if (state->wake_context != WAKE_TASK && state->wake_context != WAKE_SIGNAL) {
		return;
	}
	kernel = OF_TASK(waker, flags) & PF_KTHREAD;
	number = kernel ? (__u64 *)&live.followed_kernel : (__u64 *)&live.followed_users;
	if (*number >= (kernel ? MOST_FOLLOWED_KERNEL : MOST_FOLLOWED_USERS)) {
		count(SEEN_NOT_FOLLOWED);
		return;
	}
	if (bpf_map_update_elem(&targets, &state->waker_tgid, &kind, BPF_NOEXIST))
		return;	/* another CPU did at the same time */
	__sync_fetch_and_add(number, 1);
	live.more_targets = 1;
	share_level(state->waker_tgid, woken->tgid);
	record.type = RECORD_FOLLOWED;
	record.tgid = state->waker_tgid;
	record.at = state->wake;
	record.tid = state->waker_tid;
	record.woken_tgid = woken->tgid;
	__builtin_memcpy(record.comm, state->waker_comm, COMM_BYTES);
	/* user space reads its symbols and finds its threads that are off the CPU */
	if (bpf_ringbuf_output(&ring, &record, sizeof(record), BPF_RB_FORCE_WAKEUP))
		count(LOST_RING_SEGMENT);
	else
		count(SEEN_RECORDS);
}

/* The current thread, or an interrupt, wakes a thread. */
static __always_inline void wake(struct task_struct *task, __u32 level)
{
	struct thread_state *state = state_of(task, task->pid);
	volatile struct detail *detail = detail_at(level);
	__u64 ticks = detail->wake_min_ticks, min_ns = detail->wake_min_ns;
	struct task_struct *waker;

	if (!state || !state->off_start)
		return;
	if (ticks && bpf_jiffies64() - state->off_tick < ticks)
		return;
	if (!has_timeline(task->tgid))
		return;
	if (min_ns && bpf_ktime_get_ns() - state->off_start < min_ns)
		return;
	if (!note_waker(state))
		return;
	waker = current_task();
	state->waker_nr = waker_call(waker);
	state->wake_context = context_of(task, state->off_class, state->wake);
	if (config.follow_wakers && config.target && state->wake - state->off_start >= live.follow_min_ns)
		follow_waker(waker, task, state);
}

/* Runs in the waker, or in an interrupt of an unrelated thread. */
SEC("tp_btf/sched_waking")
int on_waking(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 tgid = task->tgid, level = level_of(tgid);
	__u64 since;

	if (!level || !window_open())
		return 0;
	since = measured_from();
	wake(task, level);
	measured(tgid, since);
	return 0;
}

#endif
