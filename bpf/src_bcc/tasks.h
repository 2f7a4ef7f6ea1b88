/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is remembered per thread while it is in a call, off the CPU, or waits for one; and files by descriptor. */
#if SYSCALLS || SWITCHES || RUN_QUEUE

struct own_state {
	/* the call in flight; call_start 0: none */
	__u64 call_start;
	__u64 call_off[OFF_CLASSES];
	__u64 longest_ns, longest_stack;
	struct file_key closing;	/* close: the file, as it was on entry */
	__u64 closing_dentry, closing_mnt;
	/* the time off the CPU; off_start 0: it runs */
	__u64 off_start;
	__u64 off_runs;			/* how often it had got a CPU until then (schedstat's third number) */
	__u64 kstack, ustack, futex, file_pointer;
	struct file_key file;
	/* when it was woken, and by whom; 0: it has not been yet */
	__u64 wake, wake_stack;
	__u64 queued;			/* when it came to wait for a CPU; 0: it does not */
	__u32 waker_tgid, waker_tid;
	__s32 call_nr, off_nr;
	__u32 off_class, off_flags;
	__u32 tgid, tid;
	char waker_comm[COMM_BYTES];
};	/* tools/collect/bcc/own_decode.py mirrors it */

BPF_HASH(states, __u32, struct own_state, 16384);
BPF_HASH(threads, __u32, struct thread_info_value, 16384);
BPF_ARRAY(nothing, struct own_state, 1);	/* never written: a new state is too big for the stack */
BPF_ARRAY(rows, struct syscall_row, SYSCALL_ROWS);

HERE struct own_state *make_state(struct task_struct *task, __u32 tgid, __u32 tid)
{
	struct own_state *state = states.lookup(&tid), *empty;
	struct thread_info_value value = { .tgid = tgid };
	int zero = 0;

	if (state)
		return state;
	empty = nothing.lookup(&zero);
	if (!empty)
		return 0;
	states.insert(&tid, empty);
	state = states.lookup(&tid);
	if (!state) {
		count(LOST_STATE);
		return 0;
	}
	state->tgid = tgid;
	state->tid = tid;
	value.flags = READ(task, flags) & PF_KTHREAD ? RECORD_KTHREAD : 0;
	bpf_probe_read_kernel(value.comm, sizeof(value.comm), (void *)&task->comm);
	if (threads.update(&tid, &value))
		count(LOST_THREADS);
	return state;
}

HERE __u64 regs_arg(struct pt_regs *regs, __u8 which)
{
	if (which == 0)
		return REGS_FIRST(regs);
	if (which == 1)
		return REGS_SECOND(regs);
	if (which == 2)
		return REGS_THIRD(regs);
	if (which == 3)
		return REGS_FOURTH(regs);
	return REGS_FIFTH(regs);
}

struct found_file {
	struct file *file;
	struct file_key key;
	__u32 mode;
};

HERE void inode_key(struct inode *inode, struct file_key *key)
{
	struct super_block *super = READ(inode, i_sb);

	key->ino = READ(inode, i_ino);
	key->dev = READ(super, s_dev);
	key->gen = READ(inode, i_generation);
}

HERE bool find_file(struct task_struct *task, __s32 fd, struct found_file *found)
{
	struct files_struct *files = READ(task, files);
	struct fdtable *table;
	struct inode *inode;
	struct file **slots;
	struct file *file = 0;

	if (fd < 0 || !files)
		return false;
	table = READ(files, fdt);
	if (!table || (__u32)fd >= READ(table, max_fds))
		return false;
	slots = READ(table, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), (void *)(slots + fd)) || !file)
		return false;
	found->file = file;
	inode = READ(file, f_inode);
	found->mode = READ(inode, i_mode);
	inode_key(inode, &found->key);
	return true;
}

HERE bool is_storage(__u32 mode)
{
	mode &= S_IFMT;
	return mode == S_IFREG || mode == S_IFDIR || mode == S_IFBLK;
}

struct own_scratch {
	union {
		struct file_record file;
		struct path_record path;
		struct call_record call;
		struct segment_record segment;
	};
	char slack[PATH_SLACK];
};

BPF_PERCPU_ARRAY(scratches, struct own_scratch, 1);
BPF_HASH(files_seen, struct file_key, __u8, 16384);

HERE struct own_scratch *scratch(void)
{
	int zero = 0;

	return scratches.lookup(&zero);
}

/*
 * Tells the path of (mnt, dentry) unless this window told it. The running length lives in the buffer, where the
 * verifier knows nothing of it: else it follows every mix of names and mounts.
 */
HERE void tell_file(void *ctx, struct vfsmount *mnt, struct dentry *dentry)
{
	struct own_scratch *buffer = scratch();
	struct file_system_type *type;
	struct file_record *record;
	struct dentry *parent, *root = 0;
	struct super_block *super;
	struct mount *mount, *up;
	struct file_key key = {};
	struct inode *inode;
	__u32 length;
	__u8 one = 1;
	long n;

	if (!buffer || !dentry || !mnt)
		return;
	inode = READ(dentry, d_inode);
	if (!inode)
		return;
	inode_key(inode, &key);
	if (files_seen.lookup(&key))
		return;
	if (files_seen.update(&key, &one)) {
		count(LOST_FILES);
		return;
	}
	record = &buffer->file;
	record->type = RECORD_FILE;
	record->flags = FILE_TRUNCATED;
	parent = READ(dentry, d_parent);
	if (!READ(dentry, d_hash.pprev) && dentry != parent)
		record->flags |= FILE_UNLINKED;
	record->file = key;
	record->size = READ(inode, i_size);
	record->mode = READ(inode, i_mode);
	record->length = 0;
	super = READ(inode, i_sb);
	type = READ(super, s_type);
	__builtin_memset(record->fs, 0, sizeof(record->fs));
	bpf_probe_read_kernel_str(record->fs, sizeof(record->fs), (void *)READ(type, name));
	mount = (struct mount *)((char *)mnt - __builtin_offsetof(struct mount, mnt));
	root = READ(mnt, mnt_root);
	for (int i = 0; i < PATH_NAMES; i++) {
		parent = READ(dentry, d_parent);
		if (dentry == root || dentry == parent) {
			up = READ(mount, mnt_parent);
			if (up == mount) {
				record->flags &= ~FILE_TRUNCATED;
				break;
			}
			dentry = READ(mount, mnt_mountpoint);
			mount = up;
			root = READ(mount, mnt.mnt_root);
			continue;
		}
		length = record->length;
		if (length > PATH_BYTES - 256)
			break;
		n = bpf_probe_read_kernel_str(record->text + length, 256, (void *)READ(dentry, d_name.name));
		if (n <= 0)
			break;
		record->length = length + n;
		dentry = parent;
	}
	length = record->length;
	if (length > PATH_BYTES)
		return;
	if (events.perf_submit(ctx, record, __builtin_offsetof(struct file_record, text) + length)) {
		count(LOST_RING);
		files_seen.delete(&key);	/* the next slow call tells it */
	}
}

HERE void tell_open_file(void *ctx, struct file *file)
{
	tell_file(ctx, READ(file, f_path.mnt), READ(file, f_path.dentry));
}

/* A thread is gone: so is what is remembered of it. */
int on_thread_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	__u32 tid = READ(task, pid);

	states.delete(&tid);
	return 0;
}
#endif
