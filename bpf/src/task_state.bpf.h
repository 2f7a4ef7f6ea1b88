/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * State of a thread in a system call or off the CPU: in task-local storage where the kernel has it, else in a hash map
 * by tid.
 */
#ifndef WHYSTALL_TASK_STATE_H
#define WHYSTALL_TASK_STATE_H

#include "host.bpf.h"

#define PLACES 8	/* a power of two */

/* Stacks that were read at a place, see stack_reuse.bpf.h. */
struct place_stacks {
	__u64 at, kstack, ustack, pystack;
};

#define NEAR_PLACES 8	/* a power of two */
#define BRIEF_PREEMPTED (NEAR_PLACES + 1)

/* The stacks of a place that is recognised by registers alone. */
struct near_place {
	__u64 at, kstack, ustack, pystack;
};

struct thread_state {
	/* what a brief wait changes comes first, in few cache lines; off_start 0: the thread runs */
	__u64 off_start, off_run_delay;
	__u64 off_runs;			/* sched_info.pcount then */
	/*
	 * off_brief: the index in `near`, plus one, of the place of this wait, of which only the time is recorded so far, or
	 * BRIEF_PREEMPTED; then all such waits and preemptions since others. off_tick: jiffies at the switch away.
	 */
	__u64 off_brief, off_tick;
	__u64 off_end;			/* set if already added to the call; 0: not yet */
	__u64 wake;			/* 0: not woken yet */
	__u64 brief_count, brief_ns, brief_run_ns;
	__u64 last_near, next_near;
	__u64 near_keys[NEAR_PLACES];
	__u64 preempted_at, preempted_count, preempted_ns;
	/* the call in flight; call_start 0: none */
	__u64 call_start;
	__u64 call_off[OFF_CLASS_COUNT];
	__u64 longest_ns, longest_stack;
	struct file_key closing;	/* close: the file, as it was on entry */
	__u64 closing_dentry, closing_mnt;
	__s32 call_nr;
	__u8 call_seeded, entered, known, off_seeded;
	/* the time off the CPU */
	__u64 kstack, ustack, pystack, futex, file_pointer;
	struct file_key file;
	__s32 off_nr;
	__u32 off_class;
	__u32 off_flags, pad;
	__s64 asked_ns;			/* time-out of the call; -1: none */
	/* the waker */
	__u32 waker_tgid, waker_tid;
	__s32 waker_nr, fd;
	__u32 wake_context, pad2;
	char waker_comm[COMM_BYTES];
	/* last fault on a mapped file whose page was not mapped in */
	struct file_key fault_file;
	__u64 fault_dentry, fault_time;
	__u64 places[PLACES], next_place;
	struct place_stacks place_stacks[PLACES];
	struct near_place near[NEAR_PLACES];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_state);
} state_storage SEC(".maps");

HASH_MAP(state_hash, __u32, struct thread_state, 16384);

#include "threads.h"

/*
 * When the call in flight began; 0: none. Read once for each use: at the end of the window the walk and the thread
 * itself, on another CPU, may end a call at the same time.
 */
static __always_inline __u64 call_began(struct thread_state *state)
{
	return *(volatile __u64 *)&state->call_start;
}

static __always_inline struct thread_state *state_of(struct task_struct *task, __u32 tid)
{
	if (config.task_storage)
		return bpf_task_storage_get(&state_storage, task, 0, 0);
	return bpf_map_lookup_elem(&state_hash, &tid);
}

static __always_inline struct thread_state *make_state(struct task_struct *task, __u32 tid)
{
	struct thread_state *state;

	if (config.task_storage) {
		state = bpf_task_storage_get(&state_storage, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	} else {
		return state_hash_make(&tid, LOST_NO_STATE);
	}
	if (!state)
		count(LOST_NO_STATE);
	return state;
}

static __always_inline struct thread_state *named_state(struct task_struct *task, __u32 tgid, __u32 tid)
{
	struct thread_state *state = make_state(task, tid);

	if (state && !state->known) {
		state->known = 1;
		name_thread(task, tgid, tid);
	}
	return state;
}

#endif
