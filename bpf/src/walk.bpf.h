/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Walks all threads twice. At the start, threads already off the CPU get an open segment and call, so that threads blocked
 * for the whole window are recorded. At the end, when no hook counts any more, open segments and calls are recorded.
 */
#ifndef WHYSTALL_WALK_H
#define WHYSTALL_WALK_H

#include "syscalls.bpf.h"

static __always_inline void seed(struct task_struct *task, __u32 tgid, __u32 tid)
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
	if (!state || state->off_start)
		return;
	if (task->on_cpu)
		return;	/* the call of a running thread is unknown until its first exit */
	state->off_end = 0;
	state->off_runs = runs;
	state->off_run_delay = task->sched_info.run_delay;
	state->off_class = off_class_of(false, run_state);
	find_wait(task, state);
	state->off_seeded = 1;
	state->wake = 0;
	state->wake_stack = 0;
	state->ustack = 0;
	state->pystack = state->off_class == OFF_R ? 0 : python_stack_of(task);
	state->kstack = state->off_class == OFF_R ? 0 : stack_of_task(task);
	if (config.syscalls && !state->entered && has_user_side(task) && !task_is_compat(task)) {
		regs = saved_regs(task);
		nr = regs_syscall(regs);
		row = row_of(nr);
		if (row && (config.target || row->flags & ROW_FILE_OP)) {
			begin_before(state, nr);
		}
	}
	state->off_start = live.window_start;
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

	if (!state)
		return;
	name_thread(task, tgid, tid);
	if (state->off_start)
		end_segment(task, state, end, RECORD_OPEN);
	if (!state->call_start || end <= state->call_start)
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
	add_to_totals(state, tgid, tid, end - state->call_start, 0);
	if (end - state->call_start >= config.call_min_ns)
		emit_call(task, regs, state, end, 0);
	state->call_start = 0;
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
	if (!is_traced(tgid))
		return 0;
	if (live.walk_stage)
		finish(task, tgid, tid);
	else
		seed(task, tgid, tid);
	return 0;
}

#endif
