/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Time off the CPU: one segment from the switch away to the switch back, blocked until the thread is woken and
 * runnable from there on; and the wait for a CPU, whoever asks for which.
 */
#if SYSCALLS || SWITCHES || RUN_QUEUE

#if SWITCHES || SYSCALLS
BPF_STACK_TRACE(stacks, 8192);

/* Number of a stack, told apart from others by its kind; 0: lost. */
HERE __u64 stack_here(void *ctx, bool user)
{
	int number = stacks.get_stackid(ctx, user ? BPF_F_USER_STACK : 0);

	if (number < 0) {	/* -EEXIST: another one has its place; -EFAULT: there is none */
		count(LOST_STACK_WALK);
		return 0;
	}
	return (__u64)(number + 1) | (user ? 1ULL << 32 : 0);
}
#endif

#if SWITCHES
BPF_HASH(off_totals, struct off_key, struct off_total, 16384);
#endif

#if RUN_QUEUE
BPF_HASH(queue_totals, struct queue_key, struct queue_total, 16384);
BPF_HASH(queue_slots, struct queue_slot_key, __u64, 32768);

HERE void add_wait(struct task_struct *task, __u32 tgid, __u32 tid, __u64 ns)
{
	struct queue_key key = { .tgid = tgid, .tid = tid };
	struct queue_slot_key place = { .tgid = tgid, .slot = slot_of(ns) };
	struct queue_total first = { .count = 1, .total_ns = ns, .max_ns = ns }, *total;
	__u64 none = 0, *slot;

	if (is_self(tgid)) {
		count(SEEN_SELF_WAITS);
		return;
	}
	total = queue_totals.lookup(&key);
	if (total) {	/* a thread gets one CPU at a time */
		total->count++;
		total->total_ns += ns;
		if (ns > total->max_ns)
			total->max_ns = ns;
		bpf_probe_read_kernel(total->comm, COMM_BYTES, (void *)&task->comm);
	} else {
		bpf_probe_read_kernel(first.comm, COMM_BYTES, (void *)&task->comm);
		if (queue_totals.update(&key, &first)) {
			count(LOST_WAITS);
			return;
		}
	}
	slot = queue_slots.lookup(&place);
	if (!slot) {
		queue_slots.insert(&place, &none);
		slot = queue_slots.lookup(&place);
		if (!slot) {
			count(LOST_WAITS);
			return;
		}
	}
	__sync_fetch_and_add(slot, 1);
}
#endif

HERE __u32 off_class_of(bool preempted, unsigned int state)
{
	if (preempted || !(state & 0xffff))
		return OFF_R;
	if (state & 2)	/* TASK_UNINTERRUPTIBLE; with TASK_NOLOAD it is the idle wait of a kernel thread */
		return state & 0x400 ? OFF_S : OFF_D;
	return state & 1 ? OFF_S : OFF_OTHER;
}

#if SWITCHES || SYSCALLS
/* What the thread blocks on: system call, and the file or futex of it. */
HERE void look_at_call(struct task_struct *task, struct own_state *state, __u32 off_class)
{
	struct found_file found = {};
	struct syscall_row *row;
	struct pt_regs *regs;
	int nr;

	state->off_nr = NO_SYSCALL;
	state->off_flags = 0;
	state->futex = 0;
	state->file_pointer = 0;
	state->file = found.key;
	if (READ(task, flags) & PF_KTHREAD) {
		state->off_flags = RECORD_KTHREAD;
		return;
	}
	if (IS_COMPAT(task))
		return;
	regs = regs_of(task);
	nr = REGS_CALL(regs);	/* faults and interrupts from user mode leave -1 there */
	if (nr < 0)
		return;
	row = rows.lookup(&nr);
	if (!row)
		return;
	state->off_nr = nr;
	if (state->call_start)
		state->off_flags |= RECORD_IN_CALL;
	if (row->flags & ROW_FUTEX)
		state->futex = REGS_FIRST(regs);
	if (row->fd != NO_ARG && off_class != OFF_R && find_file(task, regs_arg(regs, row->fd), &found)) {
		state->file = found.key;
		state->file_pointer = (__u64)found.file;
		if ((found.mode & S_IFMT) == S_IFREG)
			state->off_flags |= RECORD_REGULAR;
	}
}

/* The part of a segment in the system call in flight, if it lies in one. */
HERE void add_to_call(struct own_state *state, __u64 start, __u64 end, __u64 wait)
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
#endif

#if SWITCHES
HERE void tell_segment(void *ctx, struct task_struct *task, struct own_state *state, __u64 start, __u64 end, __u64 wait,
		       __u32 flags)
{
	struct own_scratch *buffer = scratch();
	struct segment_record *record;
	struct found_file again = {};
	struct file *file;

	if (!buffer)
		return;
	record = &buffer->segment;
	__builtin_memset(record, 0, sizeof(*record));
	record->type = RECORD_SEGMENT;
	record->flags = flags;
	record->start = start;
	record->end = end;
	record->run_ns = wait;
	record->tgid = state->tgid;
	record->tid = state->tid;
	record->nr = state->off_nr;
	record->off_class = state->off_class;
	record->file = state->file;
	record->futex = state->futex;
	record->kstack = state->kstack;
	record->ustack = state->ustack;
	record->wake = state->wake > start ? state->wake : 0;
	record->waker_tgid = state->waker_tgid;
	record->waker_tid = state->waker_tid;
	__builtin_memcpy(record->waker_comm, state->waker_comm, COMM_BYTES);
	bpf_probe_read_kernel(record->comm, COMM_BYTES, (void *)&task->comm);
	if (events.perf_submit(ctx, record, sizeof(*record)))
		count(LOST_RING);
	else
		count(KEPT_RECORDS);
	file = (struct file *)state->file_pointer;
	if (file) {	/* still the same file? The call that held it may be over. */
		inode_key(READ(file, f_inode), &again.key);
		if (again.key.ino == state->file.ino && again.key.dev == state->file.dev)
			tell_open_file(ctx, file);
	}
}

HERE void add_segment(void *ctx, struct task_struct *task, struct own_state *state, __u64 start, __u64 end, __u64 wait,
		      __u32 flags)
{
	struct off_total first = {
		.count = 1, .total_ns = end - start, .max_ns = end - start, .run_ns = wait,
	};
	struct off_key key = {};
	struct off_total *total;

	key.file = state->file;
	key.kstack = state->kstack;
	key.ustack = state->ustack;
	key.tgid = state->tgid;
	key.tid = state->tid;
	key.nr = state->off_nr;
	key.off_class = state->off_class;
	total = off_totals.lookup(&key);
	if (total) {	/* a thread runs on one CPU at a time: nobody else writes here */
		total->count++;
		total->total_ns += end - start;
		total->run_ns += wait;
		if (end - start > total->max_ns)
			total->max_ns = end - start;
	} else if (off_totals.update(&key, &first)) {
		count(LOST_OFF);
	}
	if (end - start >= SWITCH_MIN_NS)
		tell_segment(ctx, task, state, start, end, wait, flags);
}
#endif

/* A thread gets a CPU. */
HERE void switch_in(void *ctx, struct task_struct *task, struct own_state *state, __u64 now, __u64 begin)
{
	__u64 start = state->off_start, wake = state->wake, queued = state->queued, wait = 0;

	state->off_start = 0;
	state->queued = 0;
	if (!begin)
		return;
	if (start && READ(task, sched_info.pcount) != state->off_runs) {	/* it ran since, and that was not told */
		count(SEEN_UNTOLD);
		return;
	}
#if RUN_QUEUE
	if (queued && now > begin && now > queued)	/* of a wait that began before the window, what lies in it */
		add_wait(task, state->tgid, state->tid, now - (queued > begin ? queued : begin));
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
/* A thread falls asleep before the window, in a call whose beginning was not hooked yet: that it is in it is enough. */
HERE void find_call(struct task_struct *task, struct own_state *state, __u64 now)
{
	struct syscall_row *row;
	int nr;

	if (READ(task, flags) & PF_KTHREAD || IS_COMPAT(task))
		return;
	nr = REGS_CALL(regs_of(task));
	if (nr < 0)
		return;
	row = rows.lookup(&nr);
	if (row && (!EVERYBODY || row->flags & ROW_FILE_OP))
		begin_call(state, nr, now);
}
#endif

HERE void switch_away(void *ctx, struct task_struct *task, __u32 tgid, __u32 tid, bool preempted, unsigned int run_state,
		      __u64 now)
{
	struct own_state *state;

	if (run_state & 0xb0) {	/* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD: it never comes back */
		states.delete(&tid);
		return;
	}
	state = make_state(task, tgid, tid);
	if (!state)
		return;
	if (state->off_start > 1)	/* yet it ran: its switch back was not told, and when that was is not known */
		count(SEEN_UNTOLD);
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
	look_at_call(task, state, state->off_class);
#else
	state->off_flags = 0;
#endif
#if SYSCALLS
	if (!state->call_start && state->off_class != OFF_R && !window_start())
		find_call(task, state, now);
#endif
	if (state->off_class == OFF_R)	/* where it was preempted says nothing about why */
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
	struct own_state *state;

	if (begin && is_self(from))
		count(SEEN_SELF_SWITCHES);
	if (is_traced(from) || (RUN_QUEUE && is_self(from))) {	/* our own waits prove the hooks alive */
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
/* (task): runs in the waker, or in an interrupt of an innocent thread */
int on_waking(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	__u32 tgid = READ(task, tgid), tid = READ(task, pid);
	struct own_state *state;
	__u64 id;

	if (!is_traced(tgid))
		return 0;
	state = states.lookup(&tid);
	if (!state || !state->off_start || state->off_class == OFF_R || state->wake)
		return 0;
	id = bpf_get_current_pid_tgid();
	state->waker_tgid = id >> 32;
	state->waker_tid = id;
	bpf_get_current_comm(state->waker_comm, sizeof(state->waker_comm));
	state->wake = bpf_ktime_get_ns();
	return 0;
}
#endif

#if RUN_QUEUE
/* (task): a thread comes to wait for a CPU, a new one for its first; one that has a CPU already does not. */
int on_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	__u32 tgid = READ(task, tgid), tid = READ(task, pid);
	struct own_state *state;

	if (!is_traced(tgid) && !is_self(tgid))
		return 0;
	state = make_state(task, tgid, tid);
	if (state && !state->queued && (state->off_start || !READ(task, on_cpu)))
		state->queued = bpf_ktime_get_ns();
	return 0;
}
#endif
#endif
