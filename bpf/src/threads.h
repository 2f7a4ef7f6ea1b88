/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Shared with bpf/src_bcc. Names of threads, and the time of a system call in flight (in `struct thread_state`). */
#ifndef WHYSTALL_THREADS_H
#define WHYSTALL_THREADS_H

HASH_MAP(threads, __u32, struct thread_info_value, 16384);

/* Records the thread's present name, which may have changed. */
static __always_inline void name_thread(struct task_struct *task, __u32 tgid, __u32 tid)
{
	struct thread_info_value value = { .tgid = tgid };

	value.flags = READ(task, flags) & PF_KTHREAD ? RECORD_KTHREAD : 0;
	READ_COMM(value.comm, task);
	if (threads_update(&tid, &value))
		count(LOST_THREADS_FULL);
}

static __always_inline void start_call(struct thread_state *state, __s32 nr, __u64 start)
{
	state->call_nr = nr;
	state->longest_ns = 0;
	state->longest_stack = 0;
	__builtin_memset(state->call_off, 0, sizeof(state->call_off));
	state->closing.ino = 0;
	state->call_start = start;
}

#endif
