/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* System calls: totals of all of a target's calls, latencies per file, and every slow one in full. */
#if SYSCALLS

#define VECTOR_PARTS 32

BPF_HASH(call_totals, struct call_key, struct call_total, 16384);
BPF_HASH(file_slots, struct slot_key, struct slot_value, 32768);

struct own_part { __u64 base, length; };

/* Bytes of the first VECTOR_PARTS parts of a vector call. */
HERE __u64 vector_bytes(__u64 address, __u64 parts)
{
	struct own_part part;
	__u64 sum = 0;

	for (int i = 0; i < VECTOR_PARTS; i++) {
		if (i >= parts || bpf_probe_read_user(&part, sizeof(part), (void *)(address + i * sizeof(part))))
			break;
		sum += part.length;
	}
	return sum;
}

/* The directory a relative path starts from. */
HERE void tell_directory(void *ctx, struct task_struct *task, __s32 fd, struct file_key *told)
{
	struct found_file found = {};
	struct vfsmount *mnt;
	struct dentry *dentry;
	struct fs_struct *fs;
	struct file *file;

	if (fd == CWD_FD) {
		fs = READ(task, fs);
		mnt = READ(fs, pwd.mnt);
		dentry = READ(fs, pwd.dentry);
		if (!dentry)
			return;
		inode_key(READ(dentry, d_inode), told);
	} else {
		if (!find_file(task, fd, &found))
			return;
		*told = found.key;
		file = found.file;
		mnt = READ(file, f_path.mnt);
		dentry = READ(file, f_path.dentry);
	}
	tell_file(ctx, mnt, dentry);
}

HERE void tell_path(void *ctx, __u32 tid, __u64 start, __u64 address)
{
	struct own_scratch *buffer = scratch();
	struct path_record *record;
	long n;

	if (!buffer)
		return;
	record = &buffer->path;
	n = bpf_probe_read_user_str(record->text, PATH_BYTES, (void *)address);
	if (n <= 0 || n > PATH_BYTES)
		return;
	record->type = RECORD_PATH;
	record->which = 0;
	record->tid = tid;
	record->start = start;
	record->length = n;
	asm volatile("" : "+r"(n));	/* the compiler knows n by now, the verifier does not */
	n &= 2 * PATH_BYTES - 1;
	if (events.perf_submit(ctx, record, __builtin_offsetof(struct path_record, text) + n))
		count(LOST_RING);
}

/* One call in full, from its exit. */
HERE void tell_call(void *ctx, struct task_struct *task, struct pt_regs *regs, struct own_state *state,
		    struct syscall_row *row, __u64 start, __u64 end, __s64 returned, __u32 flags)
{
	struct file_key directory = {};
	struct found_file found = {};
	struct call_record *record;
	struct own_scratch *buffer;
	unsigned int f_flags;
	struct file *file;
	__s32 fd = -1;

	if (row->path != NO_ARG)	/* before the record is made: both want the buffer */
		tell_directory(ctx, task, row->dir == NO_ARG ? CWD_FD : (__s32)regs_arg(regs, row->dir), &directory);
	buffer = scratch();
	if (!buffer)
		return;
	record = &buffer->call;
	__builtin_memset(record, 0, sizeof(*record));
	record->type = RECORD_CALL;
	record->start = start;
	record->end = end;
	record->tgid = state->tgid;
	record->tid = state->tid;
	record->nr = state->call_nr;
	record->returned = returned;
	record->offset = -1;
	record->dir = directory;
	record->d_ns = state->call_off[OFF_D];
	record->s_ns = state->call_off[OFF_S];
	record->run_ns = state->call_off[OFF_R];
	record->other_ns = state->call_off[OFF_OTHER];
	record->stack = state->longest_stack;
	record->longest_ns = state->longest_ns;
	bpf_probe_read_kernel(record->comm, COMM_BYTES, (void *)&task->comm);
	if (row->size != NO_ARG) {
		record->asked = regs_arg(regs, row->size);
		if (row->flags & ROW_VECTOR)
			record->asked = vector_bytes(regs_arg(regs, row->size - 1), record->asked);
	}
	if (row->offset != NO_ARG)
		record->offset = regs_arg(regs, row->offset);
	if (row->fd != NO_ARG)
		fd = regs_arg(regs, row->fd);
	else if (row->flags & ROW_RETURNS_FD)
		fd = returned;
	record->fd = fd;
	if (row->flags & ROW_CLOSES && state->closing.ino) {
		record->file = state->closing;
	} else if (find_file(task, fd, &found)) {
		file = found.file;
		f_flags = READ(file, f_flags);
		record->file = found.key;
		if ((found.mode & S_IFMT) == S_IFREG)
			flags |= RECORD_REGULAR;
		if (f_flags & DIRECT_BIT)
			flags |= RECORD_DIRECT;
		if (f_flags & DSYNC_BIT)
			flags |= RECORD_SYNC;
		if (row->flags & ROW_POSITION) {
			record->offset = READ(file, f_pos);
			if (returned > 0)
				record->offset -= returned;
		}
	}
	record->flags = flags;
	if (events.perf_submit(ctx, record, sizeof(*record)))
		count(LOST_RING);
	else
		count(KEPT_RECORDS);
	if (row->path != NO_ARG)
		tell_path(ctx, state->tid, start, regs_arg(regs, row->path));
	if (row->flags & ROW_CLOSES && state->closing.ino)
		tell_file(ctx, (struct vfsmount *)state->closing_mnt, (struct dentry *)state->closing_dentry);
	else if (found.file)
		tell_open_file(ctx, found.file);
}

HERE void add_call(struct own_state *state, __u64 duration, __u64 bytes)
{
	struct call_key key = { .tgid = state->tgid, .tid = state->tid, .nr = state->call_nr };
	struct call_total first = { .count = 1, .wall_ns = duration, .max_ns = duration, .bytes = bytes }, *total;

	total = call_totals.lookup(&key);
	if (!total) {
		first.d_ns = state->call_off[OFF_D];
		first.s_ns = state->call_off[OFF_S];
		first.run_ns = state->call_off[OFF_R];
		first.other_ns = state->call_off[OFF_OTHER];
		if (call_totals.update(&key, &first))
			count(LOST_TOTALS);
		return;
	}
	total->count++;	/* one thread, one call at a time: nobody else writes here */
	total->wall_ns += duration;
	total->bytes += bytes;
	total->d_ns += state->call_off[OFF_D];
	total->s_ns += state->call_off[OFF_S];
	total->run_ns += state->call_off[OFF_R];
	total->other_ns += state->call_off[OFF_OTHER];
	if (duration > total->max_ns)
		total->max_ns = duration;
}

HERE void add_slot(struct file_key *file, __u32 tgid, __s32 nr, __u64 duration, __u64 bytes)
{
	struct slot_key key = { .file = *file, .tgid = tgid, .nr = nr, .slot = slot_of(duration) };
	struct slot_value none = {}, *value = file_slots.lookup(&key);

	if (!value) {
		file_slots.insert(&key, &none);
		value = file_slots.lookup(&key);
		if (!value) {
			count(LOST_SLOTS);
			return;
		}
	}
	__sync_fetch_and_add(&value->count, 1);	/* threads of a process share it */
	__sync_fetch_and_add(&value->sum_ns, duration);
	__sync_fetch_and_add(&value->bytes, bytes);
}

/* (regs, number) */
int on_enter(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
	__u64 id = bpf_get_current_pid_tgid();
	struct found_file found = {};
	struct own_state *state;
	struct syscall_row *row;
	int nr = ctx->args[1];
	struct file *file;

	if (!is_traced(id >> 32)) {
		if (is_self(id >> 32) && window_start())
			count(SEEN_SELF_CALLS);
		return 0;
	}
	row = rows.lookup(&nr);
	if (!row || (EVERYBODY && !(row->flags & ROW_FILE_OP)))
		return 0;
	if (IS_COMPAT(task)) {
		count(SKIPPED_COMPAT);
		return 0;
	}
	state = make_state(task, id >> 32, id);
	if (!state)
		return 0;
	begin_call(state, nr, bpf_ktime_get_ns());
	if (row->flags & ROW_CLOSES && find_file(task, regs_arg(regs, row->fd), &found)) {
		file = found.file;
		state->closing = found.key;
		state->closing_dentry = (__u64)READ(file, f_path.dentry);
		state->closing_mnt = (__u64)READ(file, f_path.mnt);
	}
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
	struct own_state *state;
	struct syscall_row *row;
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
	row = rows.lookup(&nr);
	if (!row)
		return 0;
	if (row->flags & ROW_BYTES && returned > 0)
		bytes = returned;
	if (row->flags & ROW_FILE_OP) {
		if (row->fd != NO_ARG && !(row->flags & ROW_CLOSES)) {
			if (find_file(task, regs_arg(regs, row->fd), &found) && is_storage(found.mode)) {
				add_slot(&found.key, id >> 32, nr, now - start, bytes);
				wanted = true;
			}
		} else {
			wanted = true;
		}
	}
	if (wanted) {
		add_call(state, now - start, bytes);
		if (now - start >= CALL_MIN_NS)
			tell_call(ctx, task, regs, state, row, start, now, returned, flags);
	}
	return 0;
}
#endif
