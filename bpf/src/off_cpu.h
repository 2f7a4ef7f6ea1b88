/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. Segments off the CPU: their class, what the thread waits for, totals and records. */
#ifndef WHYSTALL_OFF_CPU_H
#define WHYSTALL_OFF_CPU_H

#include "threads.h"

HASH_MAP(off_totals, struct off_key, struct off_total, 16384);

#define STATE_DEAD 0xb0		/* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD: the thread never runs again */

static __always_inline __u32 off_class_of(bool preempted, unsigned int state)
{
	if (preempted || !(state & 0xffff))
		return OFF_R;
	if (state & 2)	/* TASK_UNINTERRUPTIBLE; with TASK_NOLOAD it is the idle wait of a kernel thread */
		return state & 0x400 ? OFF_S : OFF_D;
	return state & 1 ? OFF_S : OFF_OTHER;
}

/* Records the system call that a thread waits in, and its file or futex. Returns false if it is in none. */
static __always_inline bool find_waiting_call(struct task_struct *task, struct thread_state *state, __u32 off_class)
{
	const volatile struct syscall_row *row;
	struct found_file found = {};
	struct pt_regs *regs;

	state->off_nr = NO_SYSCALL;
	state->off_flags = 0;
	state->futex = 0;
	state->file_pointer = 0;
	__builtin_memset(&state->file, 0, sizeof(state->file));
	if (!has_user_side(task)) {
		state->off_flags = RECORD_KTHREAD;
		return true;
	}
	if (task_is_compat(task))
		return true;
	regs = saved_regs(task);
	state->off_nr = regs_syscall(regs);
	if (state->call_start)
		state->off_flags |= RECORD_IN_CALL;
	row = row_of(state->off_nr);
	if (!row) {
		state->off_nr = NO_SYSCALL;
		return false;
	}
	if (row->flags & ROW_FUTEX)
		state->futex = regs_arg(regs, 0);
	if (row->fd != NO_ARG && off_class != OFF_R && find_task_file(task, fd_arg(regs, row->fd), &found)) {
		state->file = found.key;
		state->file_pointer = (__u64)found.file;
		if ((found.mode & S_IFMT) == S_IFREG)
			state->off_flags |= RECORD_REGULAR;
	}
	return true;
}

/* Adds a segment to the system call in flight, if it lies in one; `wait`: the part that it was runnable, ns. */
static __always_inline void add_to_call(struct thread_state *state, __u64 start, __u64 end, __u64 wait)
{
	__u64 duration = end - start;
	__u32 off_class = state->off_class & 3;

	if (!state->call_start || start < state->call_start)
		return;
	state->call_off[off_class] += duration - wait;
	state->call_off[OFF_R] += wait;
	if (duration > state->longest_ns) {
		state->longest_ns = duration;
		state->longest_stack = state->kstack;
	}
}

static __always_inline void add_to_off_totals(struct off_key *key, __u64 duration, __u64 wait)
{
	struct off_total *total = off_totals_lookup(key);

	if (total) {	/* a thread runs on one CPU at a time: it has one writer */
		total->count++;
		total->total_ns += duration;
		total->run_ns += wait;
		if (duration > total->max_ns)
			total->max_ns = duration;
	} else {
		struct off_total first = {
			.count = 1, .total_ns = duration, .max_ns = duration, .run_ns = wait,
		};

		if (off_totals_update(key, &first))
			count(LOST_OFF_TOTALS_FULL);
	}
}

/* Fills a record; identity, file, call and stacks are those of the key. */
static __always_inline void fill_segment(struct segment_record *record, struct task_struct *task,
					 struct thread_state *state, struct off_key *key, __u64 start, __u64 end,
					 __u64 wait)
{
	record->type = RECORD_SEGMENT;
	record->start = start;
	record->end = end;
	record->run_ns = wait;
	record->tgid = key->tgid;
	record->tid = key->tid;
	record->nr = key->nr;
	record->off_class = key->off_class;
	record->file = key->file;
	record->futex = state->futex;
	record->kstack = key->kstack;
	record->ustack = key->ustack;
	record->pystack = key->pystack;
	record->wake = state->wake > start && state->wake < end ? state->wake : 0;
	record->asked_ns = -1;
	record->fd = -1;
	record->waker_nr = -1;
	record->wake_context = WAKE_UNKNOWN;
	record->ran_tgid = 0;
	__builtin_memset(record->ran_comm, 0, COMM_BYTES);
	record->waker_tgid = state->waker_tgid;
	record->waker_tid = state->waker_tid;
	__builtin_memcpy(record->waker_comm, state->waker_comm, COMM_BYTES);
	READ_COMM(record->comm, task);
}

/* Returns the open file that the thread waited for; 0 if the descriptor has another file by now. */
static __always_inline struct file *waiting_file(struct thread_state *state)
{
	struct file *file = (struct file *)state->file_pointer;
	struct file_key key = {};

	if (!file)
		return 0;
	inode_key(READ(file, f_inode), &key);
	return key.ino == state->file.ino && key.dev == state->file.dev ? file : 0;
}

/* Records the current thread as the waker of a blocked thread that has none yet; returns whether it did. */
static __always_inline bool note_waker(struct thread_state *state)
{
	__u64 id = bpf_get_current_pid_tgid();

	if (!state || !state->off_start || state->off_class == OFF_R || state->wake)
		return false;
	state->waker_tgid = id >> 32;
	state->waker_tid = id;
	bpf_get_current_comm(state->waker_comm, sizeof(state->waker_comm));
	state->wake = bpf_ktime_get_ns();
	return true;
}

#endif
