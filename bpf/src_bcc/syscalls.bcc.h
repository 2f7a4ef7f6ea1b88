/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* System calls: totals of all of a target's calls, latencies per file, and every slow one in full. */
#if SYSCALLS

#include "syscalls.h"

/* The directory a relative path starts from. */
HERE void emit_directory(void *ctx, struct task_struct *task, __s32 fd, struct file_key *key)
{
	struct found_file found = {};
	struct vfsmount *mnt;
	struct dentry *dentry;
	struct fs_struct *fs;
	struct file *file;

	if (fd == AT_FDCWD) {
		fs = READ(task, fs);
		mnt = READ(fs, pwd.mnt);
		dentry = READ(fs, pwd.dentry);
		if (!dentry)
			return;
		inode_key(READ(dentry, d_inode), key);
	} else {
		if (!find_task_file(task, fd, &found))
			return;
		*key = found.key;
		file = found.file;
		mnt = READ(file, f_path.mnt);
		dentry = READ(file, f_path.dentry);
	}
	emit_file(ctx, mnt, dentry);
}

HERE void emit_path(void *ctx, __u32 tid, __u64 start, __u64 address)
{
	struct scratch *buffer = scratch_here();
	struct path_record *record;
	long n;

	if (!buffer)
		return;
	record = &buffer->path;
	n = fill_path(record, 0, tid, start, address);
	if (!n)
		return;
	asm volatile("" : "+r"(n));	/* hides the bound known to the compiler, not to the verifier */
	n &= 2 * PATH_BYTES - 1;
	if (events.perf_submit(ctx, record, __builtin_offsetof(struct path_record, text) + n))
		count(LOST_RING_CALL);
}

/* One call in full, from its exit. */
HERE void emit_call(void *ctx, struct task_struct *task, struct pt_regs *regs, struct thread_state *state,
		    const volatile struct syscall_row *row, __u64 start, __u64 end, __s64 returned, __u32 flags)
{
	struct file_key directory = {};
	struct found_file found = {};
	struct call_record *record;
	struct scratch *buffer;

	if (row->path != NO_ARG)	/* before the record is built in the same buffer */
		emit_directory(ctx, task, row->dir == NO_ARG ? AT_FDCWD : (__s32)regs_arg(regs, row->dir), &directory);
	buffer = scratch_here();
	if (!buffer)
		return;
	record = &buffer->call;
	__builtin_memset(record, 0, sizeof(*record));
	record->flags = flags;
	record->start = start;
	record->end = end;
	record->tgid = state->tgid;
	record->tid = state->tid;
	record->dir = directory;
	READ_COMM(record->comm, task);
	fill_call(record, READ(task, files), regs, state, row, returned, false, &found);
	if (events.perf_submit(ctx, record, sizeof(*record)))
		count(LOST_RING_CALL);
	else
		count(SEEN_RECORDS);
	if (row->path != NO_ARG)
		emit_path(ctx, state->tid, start, regs_arg(regs, row->path));
	if (row->flags & ROW_CLOSES && state->closing.ino)
		emit_file(ctx, (struct vfsmount *)state->closing_mnt, (struct dentry *)state->closing_dentry);
	else if (found.file)
		emit_open_file(ctx, found.file);
}

/* (regs, number) */
int on_enter(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
	__u64 id = bpf_get_current_pid_tgid();
	struct found_file found = {};
	struct thread_state *state;
	const volatile struct syscall_row *row;
	int nr = ctx->args[1];

	if (!is_traced(id >> 32)) {
		if (is_self(id >> 32) && window_start())
			count(SELF_CALLS);
		return 0;
	}
	row = row_of(nr);
	if (!row || (EVERYBODY && !(row->flags & ROW_FILE_OP)))
		return 0;
	if (task_is_compat(task)) {
		count(LOST_COMPAT_SKIPPED);
		return 0;
	}
	state = make_state(task, id >> 32, id);
	if (!state)
		return 0;
	start_call(state, nr, bpf_ktime_get_ns());
	if (row->flags & ROW_CLOSES && find_task_file(task, regs_arg(regs, row->fd), &found))
		note_closing(state, &found);
	return 0;
}

/* (regs, result) */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
	__u64 id = bpf_get_current_pid_tgid(), now, start, begin, bytes = 0;
	__s64 returned = ctx->args[1];
	struct found_file found = {};
	struct thread_state *state;
	const volatile struct syscall_row *row;
	bool wanted = !EVERYBODY;
	__u32 flags = 0, tid = id;
	int nr;

	if (!is_traced(id >> 32))
		return 0;
	state = states.lookup(&tid);
	if (!state || !state->call_start)
		return 0;
	begin = window_start();
	start = state->call_start;
	nr = state->call_nr;
	state->call_start = 0;
	now = bpf_ktime_get_ns();
	if (!begin || now <= begin)
		return 0;
	if (start < begin) {
		start = begin;
		flags = RECORD_SEEDED;
	}
	row = row_of(nr);
	if (!row)
		return 0;
	if (row->flags & ROW_BYTES && returned > 0)
		bytes = returned;
	if (row->flags & ROW_FILE_OP) {
		if (row->fd != NO_ARG && !(row->flags & ROW_CLOSES)) {
			if (find_task_file(task, regs_arg(regs, row->fd), &found) && is_storage(found.mode)) {
				add_file_slot(&found.key, id >> 32, nr, now - start, bytes);
				wanted = true;
			}
		} else {
			wanted = true;
		}
	}
	if (wanted) {
		add_call_total(state, id >> 32, id, now - start, bytes);
		if (now - start >= CALL_MIN_NS)
			emit_call(ctx, task, regs, state, row, start, now, returned, flags);
	}
	return 0;
}
#endif
