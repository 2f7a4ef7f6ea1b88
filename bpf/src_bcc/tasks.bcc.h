/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* State of a thread in a system call, off the CPU, or waiting for one. */
#if SYSCALLS || SWITCHES || RUN_QUEUE

struct thread_state {
	/* the call in flight; call_start 0: none */
	__u64 call_start;
	__u64 call_off[OFF_CLASS_COUNT];
	__u64 longest_ns, longest_stack;
	struct file_key closing;	/* close: the file, as it was on entry */
	__u64 closing_dentry, closing_mnt;
	/* the time off the CPU; off_start 0: it runs */
	__u64 off_start;
	__u64 off_runs;			/* sched_info.pcount then (the third number of schedstat) */
	__u64 kstack, ustack, futex, file_pointer;
	struct file_key file;
	/* when it was woken, and the waker; 0: not yet */
	__u64 wake;
	__u64 queued;			/* when it began to wait for a CPU; 0: it does not wait */
	__u32 waker_tgid, waker_tid;
	__s32 call_nr, off_nr;
	__u32 off_class, off_flags;
	__u32 tgid, tid;
	char waker_comm[COMM_BYTES];
};	/* tools/collect/bcc/own_decode.py mirrors it */

BPF_HASH(states, __u32, struct thread_state, 16384);
BPF_ARRAY(empty_states, struct thread_state, 1);	/* zeroes: too big for the stack */
BPF_ARRAY(rows, struct syscall_row, SYSCALL_ROWS);

#include "regs.h"
#include "threads.h"

HERE struct thread_state *make_state(struct task_struct *task, __u32 tgid, __u32 tid)
{
	struct thread_state *state = states.lookup(&tid), *empty;
	int zero = 0;

	if (state)
		return state;
	empty = empty_states.lookup(&zero);
	if (!empty)
		return 0;
	states.insert(&tid, empty);
	state = states.lookup(&tid);
	if (!state) {
		count(LOST_NO_STATE);
		return 0;
	}
	state->tgid = tgid;
	state->tid = tid;
	name_thread(task, tgid, tid);
	return state;
}

/* Returns the registers of a user thread's system call, at the top of its kernel stack. */
HERE struct pt_regs *saved_regs(struct task_struct *task)
{
	char *stack = READ(task, stack);

	return (struct pt_regs *)(stack + THREAD_SIZE - TOP_OF_KERNEL_STACK_PADDING) - 1;
}

/* Returns the number of the system call in progress; -1 after a fault or interrupt from user mode. */
HERE __s32 regs_syscall(struct pt_regs *regs)
{
	return READ(regs, SAVED_SYSCALL);
}

HERE const volatile struct syscall_row *row_of(int nr)
{
	return rows.lookup(&nr);
}

HERE bool has_user_side(struct task_struct *task)
{
	return !(READ(task, flags) & PF_KTHREAD);
}

#define fd_arg regs_arg

/* A thread ends. */
int on_thread_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	__u32 tid = READ(task, pid);

	states.delete(&tid);	/* it may be added again by a later switch: see switch_away */
	return 0;
}
#endif
