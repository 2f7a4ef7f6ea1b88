/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Time off the CPU, in segments from a switch away to the switch back. The runnable part (woken, without a CPU) is known
 * without a wake-up hook: it is the scheduler's accounting (sched_info) plus the present wait by the run queue's clock,
 * which that uses, too (kernel/sched/stats.h).
 */
#ifndef WHYSTALL_SWITCHES_H
#define WHYSTALL_SWITCHES_H

#include "task_state.bpf.h"
#include "costs.bpf.h"
#include "regs.bpf.h"
#include "stacks.bpf.h"
#include "stack_reuse.bpf.h"
#include "files.bpf.h"
#include "off_cpu.h"
#include "waits.bpf.h"

/* The clock's offset is measured this often; it drifts by less than 500 ppm (adjtimex). */
#define CLOCK_AGE_NS 100000000

/* Most by which a time of the scheduler's clock may be early. */
#define CLOCK_SLACK_NS 1000000

/* A fault waits for its page right after its report; a later wait has another reason, such as swap. */
#define FAULT_TO_WAIT_NS 2000000

/* For longer waits for a CPU, the predecessor on the CPU is recorded. */
#define SHORT_WAIT_NS 50000

/* Returns the completed waits for a CPU since the switch away, ns. */
static __always_inline __u64 past_wait(struct task_struct *task, struct thread_state *state)
{
	return OF_TASK(task, sched_info.run_delay) - state->off_run_delay;
}

/* Returns the same plus the present wait, of a thread about to run, or asleep (`queued` is 0). */
static __always_inline __u64 runnable_wait(struct task_struct *task, struct thread_state *state)
{
	__u64 wait = task->sched_info.run_delay - state->off_run_delay;
	__u64 queued, clock;

	if (!bpf_core_field_exists(task->se.cfs_rq))	/* no CONFIG_FAIR_GROUP_SCHED */
		return wait;
	queued = task->sched_info.last_queued;
	clock = task->se.cfs_rq->rq->clock;
	if (queued && clock > queued)
		wait += clock - queued;
	return wait;
}

/*
 * Updates the offset between the scheduler's clock and ours, in a switch. The scheduler may have read its clock some time
 * before, as when the CPU searched for other work first: the smallest recent offset is the most accurate.
 */
static __always_inline void read_clock(struct task_struct *task, __u64 now)
{
	__u64 clock;
	__s64 offset;

	if (!bpf_core_field_exists(task->se.cfs_rq))
		return;
	clock = task->se.cfs_rq->rq->clock;
	offset = now - clock;
	if (!clock || (offset >= live.clock_offset && now - live.clock_read < CLOCK_AGE_NS))
		return;
	live.clock_offset = offset;
	live.clock_read = now;
}

/*
 * Returns the time of a switch of a thread by the scheduler's clock, which costs less than ours. The scheduler may have
 * read it at a wake-up shortly before.
 */
static __always_inline __u64 switch_time(struct task_struct *task)
{
	__u64 now;

	if (bpf_core_field_exists(task->se.cfs_rq) && live.clock_offset) {
		now = task->se.cfs_rq->rq->clock + live.clock_offset;
		if (now - live.clock_read < CLOCK_AGE_NS)
			return now;
	}
	now = bpf_ktime_get_ns();
	read_clock(task, now);
	return now;
}

/* Returns the shortest wait of a process that is recorded, ns. */
static __always_inline __u64 shortest_wait(__u32 tgid)
{
	__u32 level = level_of(tgid);

	return level ? detail_at(level)->switch_min_ns : live.look_min_ns;
}

/*
 * Returns the end, at most `now`, of the time off the CPU of a thread that ran since; 0: it did not. Some kernels do not
 * report switches from certain threads, but the scheduler counts a thread's arrivals on a CPU and keeps the time of the
 * last: after several unreported switches, what ran before the last counts as off the CPU. (An unreported switch away is
 * not detected: it counts as running.)
 */
static __always_inline __u64 unreported_end(struct task_struct *task, struct thread_state *state, __u64 now)
{
	__u64 arrival;

	if (state->off_end)
		return state->off_end;
	if (OF_TASK(task, sched_info.pcount) == state->off_runs)
		return 0;
	arrival = OF_TASK(task, sched_info.last_arrival) + live.clock_offset;
	if (!live.clock_offset || arrival > now)
		return now;
	return arrival > state->off_start ? arrival : state->off_start;
}

/* Returns how much of a segment was runnable: since its recorded wake-up, else `wait` by the scheduler's accounting. */
static __always_inline __u64 wait_within(struct thread_state *state, __u64 end, __u64 wait)
{
	__u64 start = state->off_start;

	if (state->off_class == OFF_R)
		return end - start;
	if (state->wake > start && state->wake < end)
		return end - state->wake;
	return wait < end - start ? wait : end - start;
}

/* At the exit of a call of a thread whose switch back was not reported: adds that time off the CPU to the call. */
static __always_inline void settle_call(struct task_struct *task, struct thread_state *state, __u64 now)
{
	__u64 end;

	if (!state->off_start || state->off_end)
		return;
	end = unreported_end(task, state, now);
	state->off_end = end ? end : now;
	add_to_call(state, state->off_start, state->off_end, wait_within(state, state->off_end, past_wait(task, state)));
}

/*
 * Records what the thread waits for: a system call, or the page of a file on which it has just faulted. `here`: it is the
 * current one.
 */
static __always_inline void find_wait(struct task_struct *task, struct thread_state *state, bool here, __u64 now)
{
	bool found = find_waiting_call(task, state, state->off_class);

	find_request(task, state, here, now);
	if (found)
		return;
	/* on FUSE and NFS, the state of this wait is that of idle threads */
	if ((state->off_class == OFF_D || state->off_class == OFF_S) && state->fault_file.ino
	    && state->off_start - state->fault_time < FAULT_TO_WAIT_NS) {
		state->file = state->fault_file;
		state->off_flags |= RECORD_FAULT_FILE;
	}
	state->fault_file.ino = 0;	/* the next wait may have another reason */
}

/* Reads what a brief wait was for. Not inlined, to limit the callers' stack frames. */
static __noinline int complete_wait(struct task_struct *task, struct thread_state *state, __u64 now)
{
	if (!state)
		return 0;
	take_near(state);
	find_wait(task, state, false, now);
	return 0;
}

/* Adds the brief waits since the last other one to the total of that one, which is a sample of them. */
static __always_inline void add_brief(struct thread_state *state, struct off_key *key)
{
	struct off_total *total;

	if (key->off_class == OFF_R) {
		if (!state->preempted_count)
			return;
		total = off_totals_lookup(key);
		if (total) {
			total->count += state->preempted_count;
			total->total_ns += state->preempted_ns;
			total->run_ns += state->preempted_ns;
		}
		state->preempted_count = state->preempted_ns = 0;
		return;
	}
	if (!state->brief_count)
		return;
	count_more(STACKS_REUSED, state->brief_count);
	total = off_totals_lookup(key);
	if (total) {
		total->count += state->brief_count;
		total->total_ns += state->brief_ns;
		total->run_ns += state->brief_run_ns;
	}
	state->brief_count = state->brief_ns = state->brief_run_ns = 0;
}

static __always_inline void fill_key(struct off_key *key, struct task_struct *task, struct thread_state *state)
{
	key->file = state->file;
	key->kstack = state->kstack;
	key->ustack = state->ustack;
	key->pystack = state->pystack;
	key->tgid = task->tgid;
	key->tid = task->pid;
	key->nr = state->off_nr;
	key->off_class = state->off_class & 3;
}

/* Adds to a record that `fill_segment` has filled what only these programs know. */
static __always_inline void complete_segment(struct segment_record *record, struct thread_state *state, __u64 end,
					     __u32 flags)
{
	record->flags = flags;
	if (state->off_seeded)
		record->flags |= RECORD_SEEDED;
	if (state->wake >= end && state->wake - end < CLOCK_SLACK_NS)	/* an end by the scheduler's clock is inexact */
		record->wake = end;
	record->asked_ns = state->asked_ns;
	record->fd = state->fd;
	if (record->wake) {
		record->wake_context = state->wake_context;
		record->waker_nr = state->waker_nr;
	}
}

/*
 * Ends the segment, now or when an unreported switch back ended it, and adds it to the call in flight, the totals and,
 * when long, the ring buffer. RECORD_OPEN: from the walk. `before`: the task that had the CPU, if the thread gets one.
 * Not inlined, to limit the callers' stack frames.
 */
static __noinline int end_segment(struct task_struct *task, struct thread_state *state, __u64 now, __u32 flags,
				  struct task_struct *before)
{
	__u32 user = flags & RECORD_OPEN ? SCRATCH_WALK : SCRATCH_HOOK;
	struct segment_record *record;
	struct off_key key = {};
	struct file *file;
	__u64 start, end, duration, wait;

	if (!state)
		return 0;
	start = *(volatile __u64 *)&state->off_start;
	if (!start)	/* the walk, or the thread itself, has just ended it */
		return 0;
	end = unreported_end(task, state, now);
	if (end && !(flags & RECORD_OPEN && end >= now)) {
		if (!(flags & RECORD_OPEN))	/* from the walk, the switch may have come after the window */
			count(SEEN_UNREPORTED);
		flags &= ~RECORD_OPEN;
		wait = past_wait(task, state);
	} else {
		end = now;
		wait = runnable_wait(task, state);
	}
	if (end > start) {
		wait = wait_within(state, end, wait);
		add_to_call(state, start, end, wait);
	}
	state->off_start = 0;
	if (end <= start)
		return 0;
	duration = end - start;
	if (!config.switches)
		return 0;
	flags |= state->off_flags;
	if (state->off_brief) {
		complete_wait(task, state, now);
		flags |= state->off_flags;
	}
	fill_key(&key, task, state);
	add_to_off_totals(&key, duration, wait);
	add_brief(state, &key);
	if (duration < config.switch_min_ns || duration < shortest_wait(task->tgid))
		return 0;
	record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record) {
		count(LOST_RING_SEGMENT);
		return 0;
	}
	fill_segment(record, task, state, &key, start, end, wait);
	complete_segment(record, state, end, flags);
	if (before && end == now && wait > SHORT_WAIT_NS) {
		record->ran_tgid = before->tgid;
		BPF_CORE_READ_INTO(&record->ran_comm, before, comm);
	}
	bpf_ringbuf_submit(record, ring_flags());
	count(SEEN_RECORDS);
	if (flags & RECORD_FAULT_FILE)
		emit_file(0, state->fault_dentry, user);
	file = waiting_file(state);
	if (file)
		emit_open_file(file, user);
	return 0;
}

/* Ends a brief wait that was shorter than what is recorded; returns whether it was one. */
static __always_inline bool arrive_briefly(struct task_struct *task, struct thread_state *state, __u32 level)
{
	__u64 now = switch_time(task), start = state->off_start, ns = now > start ? now - start : 0, wait;

	if (ns >= detail_at(level)->switch_min_ns)
		return false;
	state->off_start = 0;
	if (state->off_brief == BRIEF_PREEMPTED) {
		state->preempted_count++;
		state->preempted_ns += ns;
		return true;
	}
	wait = runnable_wait(task, state);
	state->brief_count++;
	state->brief_ns += ns;
	state->brief_run_ns += wait < ns ? wait : ns;
	return true;
}

static __always_inline void begin_call(struct thread_state *state, __s32 nr, __u64 start)
{
	start_call(state, nr, start);
	state->call_seeded = 0;
	state->entered = 1;
}

/*
 * Whether a thread without a recorded entry is in a call that counts: one in progress when the window began, while the
 * thread was running. It is recorded at the first of its exit and a switch away.
 */
static __always_inline bool in_call_before(struct task_struct *task, struct pt_regs *regs)
{
	const volatile struct syscall_row *row = row_of(regs_syscall(regs));

	if (!row || (!config.target && !(row->flags & ROW_FILE_OP)) || task_is_compat(task))
		return false;
	return BPF_CORE_READ(task, start_time) < live.window_start;	/* a new thread only returns from clone */
}

static __always_inline void begin_before(struct thread_state *state, __s32 nr)
{
	begin_call(state, nr, live.window_start);
	state->call_seeded = 1;
}

static __always_inline void switch_away(void *ctx, struct task_struct *task, __u32 tgid, bool preempted,
					unsigned int run_state, __u64 now, __u64 reuse_ns)
{
	bool dead = run_state & STATE_DEAD;
	__u32 tid = task->pid;
	struct thread_state *state;
	struct pt_regs *regs;
	__u64 place, near = 0;

	if (config.switches && !dead)
		state = named_state(task, tgid, tid);
	else
		state = state_of(task, tid);
	if (config.syscalls && !dead && has_user_side(task) && !(state && state->entered) && is_traced(tgid)) {
		regs = saved_regs(task);
		if (in_call_before(task, regs)) {
			if (!state)
				state = named_state(task, tgid, tid);
			if (state)
				begin_before(state, regs_syscall(regs));
		} else if (state) {
			state->entered = 1;	/* later entries are recorded */
		}
	}
	if (!state)
		return;
	read_clock(task, now);
	if (state->off_start)	/* its switch back was not reported */
		end_segment(task, state, now, 0, 0);
	if (dead || (!config.switches && !state->call_start))
		return;
	state->off_start = now;
	state->off_tick = bpf_jiffies64();
	state->off_end = 0;
	state->off_seeded = 0;
	state->off_run_delay = task->sched_info.run_delay;
	state->off_runs = task->sched_info.pcount;
	state->off_class = off_class_of(preempted, run_state);
	state->wake = 0;
	state->waker_tid = 0;
	state->waker_tgid = 0;
	state->kstack = 0;
	state->ustack = 0;
	state->pystack = 0;
	state->off_brief = 0;
	if (config.switches && reuse_ns && state->off_class == OFF_S && has_user_side(task))
		near = near_key(task);
	if (config.switches)
		find_wait(task, state, true, now);
	if (state->off_class == OFF_R)	/* the stack of a preemption is not its cause */
		return;
	place = config.switches && has_user_side(task) ? place_of_wait(task, state) : 0;
	if (place && reuse_stacks(state, place, now)) {
		keep_near(state, near, now);
		return;
	}
	state->kstack = stack_here(ctx, SCRATCH_HOOK, STACK_KERNEL);
	if (config.user_stacks && has_user_side(task))
		state->ustack = stack_here(ctx, SCRATCH_HOOK, STACK_USER);
	if (config.python && has_user_side(task))
		state->pystack = python_stack_here(SCRATCH_HOOK);
	if (place)
		keep_stacks(state, place, now);
	keep_near(state, near, now);
}

/*
 * Begins a brief wait of a thread that leaves its CPU, if its place is known; returns whether it did. What has a known
 * place was traced shortly before. Not inlined, nor is `arrive`, to limit the caller's stack frame: kernels before 5.16
 * allow 512 bytes for it and the functions that read stacks.
 */
static __noinline int begin_briefly(struct task_struct *task, __u32 off_class, __u64 reuse_ns)
{
	struct thread_state *state = state_of(task, task->pid);
	__u64 now;

	if (!state || state->off_start || !has_user_side(task))
		return 0;
	now = switch_time(task);
	return off_class == OFF_S ? leave_briefly(task, state, now, reuse_ns)
				  : leave_preempted(task, state, now, reuse_ns);
}

/* A thread leaves its CPU. */
static __always_inline void leave(__u64 *ctx, struct task_struct *task, __u32 level)
{
	__u64 reuse_ns = detail_at(level)->reuse_ns;
	unsigned int run_state = left_in_state(ctx);
	__u32 off_class = off_class_of(ctx[0] & 1, run_state);

	if (reuse_ns && (off_class == OFF_S || off_class == OFF_R) && begin_briefly(task, off_class, reuse_ns))
		return;
	if (has_timeline(task->tgid))
		switch_away(ctx, task, task->tgid, ctx[0] & 1, run_state, bpf_ktime_get_ns(), reuse_ns);
}

/* A thread gets a CPU, which `before` had. */
static __noinline int arrive(struct task_struct *task, struct task_struct *before, __u32 level)
{
	struct thread_state *state = state_of(task, task->pid);

	if (!state || !state->off_start || (state->off_brief && arrive_briefly(task, state, level)))
		return 0;
	if (has_timeline(task->tgid))
		end_segment(task, state, bpf_ktime_get_ns(), 0, before);
	return 0;
}

/* An argument of the tracepoint, read at each use: kept, it would take room of the stack frame. */
#define TASK_ARGUMENT(ctx, n) ((struct task_struct *)((volatile __u64 *)(ctx))[n])

/* (bool preempt, prev, next), and see left_in_state */
SEC("tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	struct task_struct *task = TASK_ARGUMENT(ctx, 1);
	__u32 tgid = task->tgid, level;
	__u64 since;

	if (!window_open())
		return 0;
	if (tgid == config.self_tgid)
		count(SELF_SWITCHES);
	level = tgid ? level_of(tgid) : 0;
	if (level) {
		since = measured_from();
		leave(ctx, task, level);
		measured(TASK_ARGUMENT(ctx, 1)->tgid, since);
	}
	task = TASK_ARGUMENT(ctx, 2);
	tgid = task->tgid;
	level = tgid ? level_of(tgid) : 0;
	if (level) {
		since = measured_from();
		arrive(task, TASK_ARGUMENT(ctx, 1), level);
		measured(TASK_ARGUMENT(ctx, 2)->tgid, since);
	}
	return 0;
}

#endif
