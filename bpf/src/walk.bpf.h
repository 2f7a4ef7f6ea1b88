/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Walks all threads. At the start, threads already off the CPU get an open segment and call, so that threads blocked for
 * the whole window are recorded. Later so do those of newly followed processes, from their last switch away. At the end,
 * when no hook counts any more, open segments and calls are recorded.
 */
#ifndef WHYSTALL_WALK_H
#define WHYSTALL_WALK_H

#include "syscalls.bpf.h"

/*
 * Returns since when a thread has been off the CPU, by the scheduler's accounting: when it last updated the thread's
 * run time, at the switch away. The CPU's time of tasks (without interrupts) is behind its clock by a known amount.
 */
static __always_inline __u64 left_at(struct task_struct *task, __u64 now)
{
	__u64 clock, at;

	if (!live.clock_offset || !bpf_core_field_exists(task->se.cfs_rq)
	    || !bpf_core_field_exists(task->se.cfs_rq->rq->clock_task))
		return now;
	clock = task->se.cfs_rq->rq->clock;
	at = task->se.exec_start + (clock - task->se.cfs_rq->rq->clock_task) + live.clock_offset;
	return at < live.window_start ? live.window_start : at < now ? at : now;
}

static __always_inline void seed(struct task_struct *task, __u32 tgid, __u32 tid, __u64 since)
{
	unsigned int run_state = task_state(task);
	const volatile struct syscall_row *row;
	struct thread_state *state;
	unsigned long runs = task->sched_info.pcount;
	struct pt_regs *regs;
	__s32 nr;

	if (run_state & STATE_DEAD)
		return;
	state = named_state(task, tgid, tid);
	if (!state)
		return;
	if (state->off_start) {
		if (!live.walk_followed || state->off_runs == runs)
			return;
		state->off_start = 0;	/* from an earlier time in which its process was followed */
	}
	if (task->on_cpu)
		return;	/* the call of a running thread is unknown until its first exit */
	state->off_end = 0;
	state->off_brief = 0;
	state->off_runs = runs;
	state->off_run_delay = task->sched_info.run_delay;
	state->off_class = off_class_of(false, run_state);
	find_wait(task, state, false, bpf_ktime_get_ns());
	state->off_seeded = since == live.window_start;
	state->wake = 0;
	state->ustack = 0;
	state->pystack = state->off_class == OFF_R ? 0 : python_stack_of(task);
	state->kstack = state->off_class == OFF_R ? 0 : stack_of_task(task);
	if (config.syscalls && is_traced(tgid) && !state->entered && has_user_side(task) && !task_is_compat(task)) {
		regs = saved_regs(task);
		nr = regs_syscall(regs);
		row = row_of(nr);
		if (row && (config.target || row->flags & ROW_FILE_OP)) {
			begin_before(state, nr);
		}
	}
	state->off_tick = bpf_jiffies64();
	state->off_start = since;
	if (task->on_cpu || task->sched_info.pcount != runs) {	/* it ran meanwhile: the state is outdated */
		state->off_start = 0;
		state->call_start = 0;
	}
}

static __always_inline void finish(struct task_struct *task, __u32 tgid, __u32 tid)
{
	struct thread_state *state = state_of(task, tid);
	const volatile struct syscall_row *row;
	struct found_file found = {};
	struct pt_regs *regs;
	__u64 end = live.window_end;
	bool wanted = config.target;
	__u64 start;

	if (!state)
		return;
	name_thread(task, tgid, tid);
	if (state->off_start)
		end_segment(task, state, end, RECORD_OPEN, 0);
	start = call_began(state);
	if (!start || end <= start)
		return;
	row = row_of(state->call_nr);
	regs = saved_regs(task);
	if (!row || regs_syscall(regs) != state->call_nr)	/* never emit a call that has ended */
		return;
	if (!wanted && row->fd != NO_ARG)	/* all processes: only calls on files */
		wanted = find_task_file(task, fd_arg(regs, row->fd), &found) && is_storage(found.mode);
	else
		wanted = true;
	if (!wanted)
		return;
	add_to_totals(state, tgid, tid, end - start, 0);
	if (end - start >= config.call_min_ns)
		emit_call(task, regs, state, end, 0);
	state->call_start = 0;
}

/* Records a wait in progress, until now, and leaves it as it is. */
static __always_inline void report(struct task_struct *task, __u32 tgid, __u32 tid, __u64 now)
{
	struct thread_state *state = state_of(task, tid);
	struct segment_record *record;
	struct off_key key = {};
	__u64 start, runs;
	struct file *file;

	if (!state)
		return;
	name_thread(task, tgid, tid);
	start = *(volatile __u64 *)&state->off_start;
	runs = OF_TASK(task, sched_info.pcount);
	if (!start || now <= start || unreported_end(task, state, now))
		return;
	if (state->off_brief)
		complete_wait(task, state, now);
	fill_key(&key, task, state);
	record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record) {
		count(LOST_RING_SEGMENT);
		return;
	}
	fill_segment(record, task, state, &key, start, now, wait_within(state, now, runnable_wait(task, state)));
	complete_segment(record, state, now, state->off_flags | RECORD_OPEN);
	if (*(volatile __u64 *)&state->off_start != start || OF_TASK(task, sched_info.pcount) != runs) {
		bpf_ringbuf_discard(record, 0);	/* it has just ended: the record is a mixture */
		return;
	}
	bpf_ringbuf_submit(record, ring_flags());
	count(SEEN_RECORDS);
	if (state->off_flags & RECORD_FAULT_FILE)
		emit_file(0, state->fault_dentry, SCRATCH_WALK);
	file = waiting_file(state);
	if (file)
		emit_open_file(file, SCRATCH_WALK);
}

/*
 * Without hooks at switches: a thread that is off the CPU and has not run since the last look begins a wait; one that has
 * run since has ended its wait. Both instants are those of the scheduler's accounting; if the thread ran more than once,
 * the wait seems to end at its last arrival on a CPU.
 */
static __always_inline void look(struct task_struct *task, __u32 tgid, __u32 tid, __u64 now)
{
	struct thread_state *state = named_state(task, tgid, tid);
	__u64 runs = task->sched_info.pcount;

	if (!state)
		return;
	if (state->off_start && state->off_runs != runs)
		end_segment(task, state, now, 0, 0);
	if (!state->off_start && state->off_runs == runs && !task->on_cpu)
		seed(task, tgid, tid, left_at(task, now));
	state->off_runs = runs;
}

SEC("iter/task")
int walk(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 tgid, tid;

	if (!task)
		return 0;
	tgid = task->tgid;
	tid = task->pid;
	if (!has_timeline(tgid) || (live.walk_stage == WALK_LOOK && level_of(tgid)))
		return 0;
	if (live.walk_stage == WALK_LOOK)
		look(task, tgid, tid, bpf_ktime_get_ns());
	else if (live.walk_stage == WALK_REPORT)
		report(task, tgid, tid, bpf_ktime_get_ns());
	else if (live.walk_stage)
		finish(task, tgid, tid);
	else if (!live.walk_followed)
		seed(task, tgid, tid, live.window_start);
	else if (target_kind(tgid) == TRACED_WAKER)
		seed(task, tgid, tid, left_at(task, bpf_ktime_get_ns()));
	return 0;
}

#endif
