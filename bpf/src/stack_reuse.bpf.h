/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Threads that wait many thousand times per second wait in few places. Reading stacks is most of the cost of a switch, so
 * stacks are reused for later waits of the thread that start shortly after in the same place, by its registers, the top
 * of its stack and its innermost Python frames. Only for interruptible sleep: the reason of a wait in D is in the kernel
 * stack alone.
 *
 * If even that costs too much (reuse_ns of a level), the registers alone decide, which may take one Python line for another that
 * waits for the same object shortly after. Such a wait is brief: at the switch away only its time is recorded, and at its
 * end, if it was long, what it was for.
 */
#ifndef WHYSTALL_STACK_REUSE_H
#define WHYSTALL_STACK_REUSE_H

#include "task_state.bpf.h"
#include "regs.bpf.h"
#include "python.bpf.h"

#define REUSE_NS 10000000	/* a thread that waits less than 100 times per second has all its stacks read */
#define REUSE_WORDS 8		/* of the stack: the return address of the C library's wrapper, and more */
#define REUSE_FRAMES 8
#define NEAR (1UL << 26)		/* code of the same file; programs without PIE lie at low addresses */
#define PLACE_KNOWN 1
#define PLACE_PYTHON 2		/* it has Python frames */

/* Returns `hash` with the innermost Python frames of the current thread. */
static __noinline __u64 python_place(__u64 hash)
{
	__u64 id = bpf_get_current_pid_tgid(), frame, code;
	__u32 tgid = id >> 32, bytes;
	const struct python_process *process = bpf_map_lookup_elem(&python_processes, &tgid);
	struct python_buffer *buffer = python_buffer(SCRATCH_HOOK);

	if (!process || !buffer)
		return hash;
	bytes = process->frame_bytes;
	frame = python_innermost(process, id, bpf_ktime_get_ns());
	if (!frame || bytes > PYTHON_BYTES)
		return hash;
	for (int i = 0; i < REUSE_FRAMES && frame; i++) {
		__u32 size = bytes;

		asm volatile("" : "+r"(size));	/* verifiers before 5.16 forget the bound of a spilled number */
		size &= 2 * PYTHON_BYTES - 1;
		if (bpf_probe_read_user(buffer->bytes, size, (void *)frame))
			break;
		code = word_at(buffer, process->frame_code) & ~7ULL;
		hash = mixed(hash, frame);
		hash = mixed(hash, code);
		hash = mixed(hash, word_at(buffer, process->frame_instruction));
		frame = word_at(buffer, process->frame_previous);
		if (!i)	/* temporary code may have the address of earlier code */
			hash = mixed(hash, python_code_id(process, buffer, code, tgid));
	}
	return hash | PLACE_PYTHON;
}

/* Returns a number of the place at which the current thread waits, with PLACE_*; 0: unknown. */
static __noinline __u64 place_of_wait(struct task_struct *task, struct thread_state *state)
{
	struct pt_regs *regs;
	__u64 words[REUSE_WORDS], hash = 0xcbf29ce484222325ULL, sp, ip;

	if (!state || state->off_class != OFF_S || state->off_nr < 0)
		return 0;
	regs = saved_regs(task);
	sp = regs_sp(regs);
	if (bpf_probe_read_user(words, sizeof(words), (void *)sp))
		return 0;
	ip = regs_ip(regs);
	for (int i = 0; i < REUSE_WORDS; i++)	/* addresses: numbers, such as counts and times, change with every wait */
		if (words[i] >> 32 || words[i] - ip + NEAR < 2 * NEAR)
			hash = mixed(hash, words[i]);
	hash = mixed(hash, sp);
	hash = mixed(hash, ip);
	hash = mixed(hash, state->off_nr);
	hash = mixed(hash, state->fd);
	hash = mixed(hash, state->futex);
	if (config.accelerator)
		hash = mixed(hash, accelerator_function(task->pid));
	hash &= ~(__u64)(PLACE_KNOWN | PLACE_PYTHON);
	if (config.python)
		hash = python_place(hash) & ~(__u64)PLACE_KNOWN;
	return hash | PLACE_KNOWN;
}

/* Reuses the stacks that the thread had at this place shortly before; returns false without any. */
static __always_inline bool reuse_stacks(struct thread_state *state, __u64 place, __u64 now)
{
	struct place_stacks *stacks;

	for (int i = 0; i < PLACES; i++) {
		if (state->places[i] != place)
			continue;
		stacks = &state->place_stacks[i];
		if (now - stacks->at >= REUSE_NS) {
			state->places[i] = 0;
			return false;
		}
		state->kstack = stacks->kstack;
		state->ustack = stacks->ustack;
		state->pystack = stacks->pystack;
		count(STACKS_REUSED);
		return true;
	}
	return false;
}

/* Stores the stacks just read, unless the Python stack is missing, for instance because of the cost limit. */
static __always_inline void keep_stacks(struct thread_state *state, __u64 place, __u64 now)
{
	struct place_stacks *stacks;
	__u64 at;

	if (!state->kstack || (place & PLACE_PYTHON && !state->pystack))
		return;
	at = state->next_place++ & (PLACES - 1);
	asm volatile("" : "+r"(at));
	at &= PLACES - 1;
	state->places[at] = place;
	stacks = &state->place_stacks[at];
	stacks->at = now;
	stacks->kstack = state->kstack;
	stacks->ustack = state->ustack;
	stacks->pystack = state->pystack;
}

/* Returns a number of the system call in which the current thread waits, by its registers; 0: in none. */
static __always_inline __u64 near_key(struct task_struct *task)
{
	struct pt_regs *regs = saved_regs(task);
	__s32 nr = regs_syscall(regs);
	__u64 argument, hash;

	if (nr < 0)
		return 0;
#if defined(__TARGET_ARCH_x86)
	argument = config.pt_regs_helper ? regs->di : regs_arg(regs, 0);
#else
	argument = config.pt_regs_helper ? regs->orig_x0 : regs_arg(regs, 0);
#endif
	hash = (regs_ip(regs) + argument) * 0x9e3779b97f4a7c15ULL;
	return ((hash ^ regs_sp(regs)) * 0xff51afd7ed558ccdULL ^ nr) | 1;
}

static __always_inline struct near_place *near_at(struct thread_state *state, __u64 at)
{
	asm volatile("" : "+r"(at));
	at &= NEAR_PLACES - 1;
	return &state->near[at];
}

static __always_inline __u64 *near_key_at(struct thread_state *state, __u64 at)
{
	asm volatile("" : "+r"(at));
	at &= NEAR_PLACES - 1;
	return &state->near_keys[at];
}

static __always_inline void begin_brief(struct task_struct *task, struct thread_state *state, __u64 brief,
					__u32 off_class, __u64 now)
{
	state->off_brief = brief;
	state->off_tick = bpf_jiffies64();
	state->off_run_delay = task->sched_info.run_delay;
	state->off_runs = task->sched_info.pcount;
	state->off_class = off_class;
	state->off_end = 0;
	state->off_seeded = 0;
	state->wake = 0;
	state->off_start = now;
}

/* Returns the index in `near` of a place; NEAR_PLACES: unknown. Most waits are at the place of the last one. */
static __always_inline __u64 near_index(struct thread_state *state, __u64 key)
{
	__u64 at = state->last_near;

	asm volatile("" : "+r"(at));
	at &= NEAR_PLACES - 1;
	if (state->near_keys[at] == key)
		return at;
	for (at = 0; at < NEAR_PLACES; at++)
		if (state->near_keys[at] == key)
			break;
	return at;
}

/* Begins a brief wait if its place is known since less than `reuse_ns`; returns whether it did. */
static __always_inline bool leave_briefly(struct task_struct *task, struct thread_state *state, __u64 now,
					  __u64 reuse_ns)
{
	__u64 key = near_key(task), at;

	if (!key)
		return false;
	at = near_index(state, key);
	if (at == NEAR_PLACES)
		return false;
	if (now - near_at(state, at)->at >= reuse_ns) {
		*near_key_at(state, at) = 0;
		return false;
	}
	state->last_near = at;
	begin_brief(task, state, at + 1, OFF_S, now);
	return true;
}

/* Begins a brief wait for a CPU, unless another one began as a whole since `reuse_ns`; returns whether it did. */
static __always_inline bool leave_preempted(struct task_struct *task, struct thread_state *state, __u64 now,
					    __u64 reuse_ns)
{
	if (now - state->preempted_at >= reuse_ns) {
		state->preempted_at = now;
		return false;
	}
	begin_brief(task, state, BRIEF_PREEMPTED, OFF_R, now);
	return true;
}

/* Completes what is known of a brief wait by the stacks of its place; preemptions have none. */
static __always_inline void take_near(struct thread_state *state)
{
	struct near_place *near = near_at(state, state->off_brief - 1);

	bool preempted = state->off_brief == BRIEF_PREEMPTED;

	state->kstack = preempted ? 0 : near->kstack;
	state->ustack = preempted ? 0 : near->ustack;
	state->pystack = preempted ? 0 : near->pystack;
	if (!state->wake)
		state->waker_tid = state->waker_tgid = 0;
	state->off_brief = 0;
}

/* Stores the stacks of the place `key`, which must be those of the wait that begins. */
static __always_inline void keep_near(struct thread_state *state, __u64 key, __u64 now)
{
	struct near_place *near;
	__u64 at;

	if (!key || !state->kstack)
		return;
	at = state->next_near++;
	near = near_at(state, at);
	*near_key_at(state, at) = key;
	near->at = now;
	near->kstack = state->kstack;
	near->ustack = state->ustack;
	near->pystack = state->pystack;
}

#endif
