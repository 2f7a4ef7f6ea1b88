/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* System calls: totals of all of a target's calls, latencies per file, and every slow one in full. */
#ifndef WHYSTALL_SYSCALLS_BPF_H
#define WHYSTALL_SYSCALLS_BPF_H

#include "switches.bpf.h"
#include "syscalls.h"

static __always_inline void emit_path(__u32 which, __u32 tid, __u64 start, __u64 address)
{
	struct scratch *buffer = scratch(SCRATCH_HOOK);
	struct path_record *record;
	long n;

	if (!buffer)
		return;
	record = &buffer->path;
	n = fill_path(record, which, tid, start, address);
	if (!n)
		return;
	if (bpf_ringbuf_output(&ring, record, __builtin_offsetof(struct path_record, text) + n, ring_flags()))
		count(LOST_RING_CALL);
	else
		count(SEEN_RECORDS);
}

/*
 * One call in full. For an open call (from the walk) the caller's memory cannot be read here:
 * user space reads the paths through path_address.
 */
static __noinline int emit_call(struct task_struct *task, struct pt_regs *regs, struct thread_state *state,
				__u64 end, __s64 returned)
{
	bool open = live.walk_stage;
	__u32 user = open ? SCRATCH_WALK : SCRATCH_HOOK;
	const volatile struct syscall_row *row;
	struct found_file found = {};
	struct scratch *buffer = scratch(user);
	struct call_record *record;
	__u64 files, fs, start;

	if (!state || !buffer)
		return 0;
	start = call_began(state);
	if (!start)
		return 0;
	row = row_of(state->call_nr);
	if (!row)
		return 0;
	files = (__u64)BPF_CORE_READ(task, files);
	fs = (__u64)BPF_CORE_READ(task, fs);
	if (row->fd2 != NO_ARG)
		emit_descriptor(files, fs, regs_arg(regs, row->fd2), user, KEY_FILE2);
	if (row->path != NO_ARG)
		emit_descriptor(files, fs, row->dir == NO_ARG ? AT_FDCWD : regs_arg(regs, row->dir), user, KEY_DIR);
	if (row->path2 != NO_ARG)
		emit_descriptor(files, fs, row->dir2 == NO_ARG ? AT_FDCWD : regs_arg(regs, row->dir2), user, KEY_DIR2);
	record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	if (!record) {
		count(LOST_RING_CALL);
		return 0;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->flags = (state->call_seeded ? RECORD_SEEDED : 0) | (open ? RECORD_OPEN : 0);
	record->start = start;
	record->end = end;
	record->tgid = BPF_CORE_READ(task, tgid);
	record->tid = BPF_CORE_READ(task, pid);
	READ_COMM(record->comm, task);
	fill_call(record, (struct files_struct *)files, regs, state, row, returned, open, &found);
	if (row->fd2 != NO_ARG)
		record->file2 = buffer->keys[KEY_FILE2];
	if (row->path != NO_ARG) {
		record->dir = buffer->keys[KEY_DIR];
		record->path_address = regs_arg(regs, row->path);
	}
	if (row->path2 != NO_ARG) {
		record->dir2 = buffer->keys[KEY_DIR2];
		record->path2_address = regs_arg(regs, row->path2);
	}
	bpf_ringbuf_submit(record, ring_flags());
	count(SEEN_RECORDS);
	if (!open && row->path != NO_ARG)
		emit_path(0, BPF_CORE_READ(task, pid), start, regs_arg(regs, row->path));
	if (!open && row->path2 != NO_ARG)
		emit_path(1, BPF_CORE_READ(task, pid), start, regs_arg(regs, row->path2));
	if (row->flags & ROW_CLOSES && state->closing.ino)
		emit_file(state->closing_mnt, state->closing_dentry, user);
	else if (found.file)
		emit_open_file(found.file, user);
	return 0;
}

/* Not inlined, like the next: their stack frames are not needed while a call is emitted. */
static __noinline int add_to_totals(struct thread_state *state, __u32 tgid, __u32 tid, __u64 duration, __u64 bytes)
{
	if (state)
		add_call_total(state, tgid, tid, duration, bytes);
	return 0;
}

static __noinline int add_to_slots(struct found_file *found, __u32 tgid, __s32 nr, __u64 duration, __u64 bytes)
{
	if (found)
		add_file_slot(&found->key, tgid, nr, duration, bytes);
	return 0;
}

HASH_MAP(call_failures, struct failure_key, struct failure_total, 4096);

#define E_AGAIN 11

/* Whether failures with an error are counted: EAGAIN of a lock or a limit, since of other calls it is no failure. */
static __always_inline bool is_counted(__u64 error, __u16 flags)
{
	if (error == E_AGAIN)
		return flags & (ROW_FILE_LOCK | ROW_STARTS);
	return error < 128 && (error < 64 ? config.errors_low : config.errors_high) >> (error & 63) & 1;
}

/* Counts a failed call; returns whether it was the thread's first such one. */
static __always_inline bool add_call_failure(__s32 nr, __u32 tgid, __u32 tid, __u64 error, __u64 now)
{
	struct failure_key key = { .tgid = tgid, .tid = tid, .nr = nr };
	struct failure_total *total, first = { .count = 1, .first = now, .last = now };

	key.error = error;
	total = call_failures_lookup(&key);
	if (total) {	/* one thread: it has one writer */
		total->count++;
		total->last = now;
		return false;
	}
	if (call_failures_update(&key, &first)) {
		count(LOST_FAILURES_FULL);
		return false;
	}
	return true;
}

/* A time-out of a futex call is not a failure: a timed wait ends with it. */
static __noinline int add_to_failures(struct thread_state *state, __u32 tgid, __u32 tid, __s64 returned, __u64 now)
{
	const volatile struct syscall_row *row;

	if (!state)
		return 0;
	row = row_of(state->call_nr);
	if (!row || row->flags & (ROW_FUTEX | ROW_FUTEX_LIST) || !is_counted(-returned, row->flags))
		return 0;
	return add_call_failure(state->call_nr, tgid, tid, -returned, now);
}

SEC("tp_btf/sys_enter")
int on_enter(__u64 *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	const volatile struct syscall_row *row;
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	__s32 nr = ctx[1];
	struct thread_state *state;
	struct task_struct *task;

	if (!window_open())
		return 0;
	if (!is_traced(id >> 32)) {
		if (id >> 32 == config.self_tgid)
			count(SELF_CALLS);
		return 0;
	}
	row = row_of(nr);
	if (!row || (!config.target && !(row->flags & ROW_FILE_OP)))
		return 0;
	task = current_task();
	if (task_is_compat(task)) {
		count(LOST_COMPAT_SKIPPED);
		return 0;
	}
	state = named_state(task, id >> 32, id);
	if (!state)
		return 0;
	begin_call(state, nr, bpf_ktime_get_ns());
	if (row->flags & ROW_CLOSES) {
		struct found_file found = {};

		if (find_task_file(task, fd_arg(regs, row->fd), &found))
			note_closing(state, &found);
	}
	return 0;
}

SEC("tp_btf/sys_exit")
int on_exit(__u64 *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), now, start, duration, bytes = 0;
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	const volatile struct syscall_row *row;
	__s64 returned = ctx[1];
	struct thread_state *state;
	struct task_struct *task;
	bool wanted, failed;

	if (!window_open())
		return 0;
	if (!is_traced(id >> 32))
		return 0;
	task = current_task();
	state = state_of(task, id);
	start = state ? call_began(state) : 0;
	if (!start) {
		if (state && state->entered)
			return 0;
		if (!in_call_before(task, regs))
			return 0;
		state = named_state(task, id >> 32, id);
		if (!state || state->entered)
			return 0;
		begin_before(state, regs_syscall(regs));
		start = live.window_start;
	}
	now = bpf_ktime_get_ns();
	settle_call(task, state, now);
	duration = now - start;
	row = row_of(state->call_nr);
	if (!row)
		return 0;
	wanted = config.target;
	if (row->flags & ROW_BYTES && returned > 0)
		bytes = returned;
	if (row->flags & ROW_FILE_OP) {
		if (row->fd != NO_ARG && !(row->flags & ROW_CLOSES)) {
			struct found_file found = {};

			if (find_task_file(task, fd_arg(regs, row->fd), &found) && is_storage(found.mode)) {
				add_to_slots(&found, id >> 32, state->call_nr, duration, bytes);
				wanted = true;
			}
		} else {
			wanted = true;
		}
	}
	if (wanted) {
		add_to_totals(state, id >> 32, id, duration, bytes);
		failed = returned < 0 && add_to_failures(state, id >> 32, id, returned, now);
		if (duration >= config.call_min_ns || failed)
			emit_call(task, regs, state, now, returned);
	}
	state->call_start = 0;
	return 0;
}

#endif
