/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Time off the CPU: one segment from the switch away to the switch back, blocked until the thread is woken and
 * runnable from there on; and the wait for a CPU.
 */
#if SYSCALLS || SWITCHES || RUN_QUEUE

#if SWITCHES || SYSCALLS
BPF_STACK_TRACE(stacks, 8192);

/* Returns the number of a stack, distinct by kind; 0: lost. */
HERE __u64 stack_here(void *ctx, bool user)
{
	int number = stacks.get_stackid(ctx, user ? BPF_F_USER_STACK : 0);

	if (number < 0) {	/* -EEXIST: a hash collision; -EFAULT: no stack */
		count(LOST_STACK_WALK_FAILED);
		return 0;
	}
	return (__u64)(number + 1) | (user ? 1ULL << 32 : 0);
}
#endif

#include "off_cpu.h"

#if RUN_QUEUE
#include "run_queue.h"
#endif

#if SWITCHES
HERE void add_segment(void *ctx, struct task_struct *task, struct thread_state *state, __u64 start, __u64 end, __u64 wait,
		      __u32 flags)
{
	struct scratch *buffer = scratch_here();
	struct segment_record *record;
	struct off_key key = {};
	struct file *file;

	key.file = state->file;
	key.kstack = state->kstack;
	key.ustack = state->ustack;
	key.tgid = state->tgid;
	key.tid = state->tid;
	key.nr = state->off_nr;
	key.off_class = state->off_class;
	add_to_off_totals(&key, end - start, wait);
	if (end - start < SWITCH_MIN_NS || !buffer)
		return;
	record = &buffer->segment;
	__builtin_memset(record, 0, sizeof(*record));
	fill_segment(record, task, state, &key, start, end, wait);
	record->flags = flags;
	if (events.perf_submit(ctx, record, sizeof(*record)))
		count(LOST_RING_SEGMENT);
	else
		count(SEEN_RECORDS);
	file = waiting_file(state);
	if (file)
		emit_open_file(ctx, file);
}
#endif

/* A thread gets a CPU. */
HERE void switch_in(void *ctx, struct task_struct *task, struct thread_state *state, __u64 now, __u64 begin)
{
	__u64 start = state->off_start, wake = state->wake, queued = state->queued, wait = 0;

	state->off_start = 0;
	state->queued = 0;
	if (!begin)
		return;
	if (start && READ(task, sched_info.pcount) != state->off_runs) {	/* an unreported switch back */
		count(SEEN_UNREPORTED);
		return;
	}
#if RUN_QUEUE
	if (queued && now > begin && now > queued)	/* only the part within the window */
		add_waits(task, state->tgid, state->tid, 1, now - (queued > begin ? queued : begin));
#endif
#if SWITCHES || SYSCALLS
	if (start && now > start) {
		__u32 flags = state->off_flags;

		if (start < begin) {
			start = begin;
			flags |= RECORD_SEEDED;
		}
		if (state->off_class == OFF_R)
			wait = now - start;
		else if (wake)
			wait = now - (wake > start ? wake : start);
		add_to_call(state, start, now, wait);
#if SWITCHES
		if (now > start && !is_self(state->tgid))
			add_segment(ctx, task, state, start, now, wait, flags);
#endif
	}
#endif
}

#if SYSCALLS
/* Finds the call of a thread that falls asleep before the window: its entry may precede the hooks. */
HERE void find_call(struct task_struct *task, struct thread_state *state, __u64 now)
{
	const volatile struct syscall_row *row;
	int nr;

	if (!has_user_side(task) || task_is_compat(task))
		return;
	nr = regs_syscall(saved_regs(task));
	row = row_of(nr);
	if (row && (!EVERYBODY || row->flags & ROW_FILE_OP))
		start_call(state, nr, now);
}
#endif

HERE void switch_away(void *ctx, struct task_struct *task, __u32 tgid, __u32 tid, bool preempted, unsigned int run_state,
		      __u64 now)
{
	struct thread_state *state;

	if (run_state & STATE_DEAD) {
		states.delete(&tid);
		return;
	}
	state = make_state(task, tgid, tid);
	if (!state)
		return;
	if (state->off_start > 1)	/* its switch back was not reported: the time off the CPU is unknown */
		count(SEEN_UNREPORTED);
	state->off_start = now;
	state->off_runs = READ(task, sched_info.pcount);
	state->off_class = off_class_of(preempted, run_state);
	state->wake = 0;
	state->queued = state->off_class == OFF_R ? now : 0;
	state->waker_tgid = 0;
	state->waker_tid = 0;
	state->kstack = 0;
	state->ustack = 0;
#if SWITCHES || SYSCALLS
#if SWITCHES
	find_waiting_call(task, state, state->off_class);
#else
	state->off_flags = 0;
#endif
#if SYSCALLS
	if (!state->call_start && state->off_class != OFF_R && !window_start())
		find_call(task, state, now);
#endif
	if (state->off_class == OFF_R)	/* the stack of a preemption is not its cause */
		return;
	state->kstack = stack_here(ctx, false);
#if SWITCHES
	if (!(state->off_flags & RECORD_KTHREAD))
		state->ustack = stack_here(ctx, true);
#endif
#endif
}

/* (bool preempt, prev, next) and, since 5.18, prev's state */
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx->args[1], *next = (struct task_struct *)ctx->args[2];
	__u32 from = READ(prev, tgid), to = READ(next, tgid), tid;
	__u64 now = bpf_ktime_get_ns(), begin = window_start();
	struct thread_state *state;

	if (begin && is_self(from))
		count(SELF_SWITCHES);
	if (is_traced(from) || (RUN_QUEUE && is_self(from))) {	/* our own waits verify that the hooks work */
		tid = READ(prev, pid);
		switch_away(ctx, prev, from, tid, ctx->args[0] & 1, STATE_AT_SWITCH(ctx, prev), now);
	}
	if (is_traced(to) || (RUN_QUEUE && is_self(to))) {
		tid = READ(next, pid);
		state = states.lookup(&tid);
		if (state && (state->off_start || state->queued))
			switch_in(ctx, next, state, now, begin);
	}
	return 0;
}

#if SWITCHES || SYSCALLS
/* (task): runs in the waker, or in an interrupt of an unrelated thread */
int on_waking(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	__u32 tgid = READ(task, tgid), tid = READ(task, pid);
	if (is_traced(tgid))
		note_waker(states.lookup(&tid));
	return 0;
}
#endif

#if RUN_QUEUE
/* (task): a thread, also a new one, begins to wait for a CPU, unless it has one already. */
int on_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	__u32 tgid = READ(task, tgid), tid = READ(task, pid);
	struct thread_state *state;

	if (!is_traced(tgid) && !is_self(tgid))
		return 0;
	state = make_state(task, tgid, tid);
	if (state && !state->queued && (state->off_start || !READ(task, on_cpu)))
		state->queued = bpf_ktime_get_ns();
	return 0;
}
#endif
#endif
