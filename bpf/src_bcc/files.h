/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which file a descriptor means, and its full path, told to user space once per file and window. */
#if SYSCALLS || SWITCHES || PAGE_CACHE

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
 * Tells the path of (mnt, dentry) unless this window told it; mnt 0: within the file system only. The running length lives in the buffer, where the
 * verifier knows nothing of it: else it follows every mix of names and mounts.
 */
HERE void tell_file(void *ctx, struct vfsmount *mnt, struct dentry *dentry)
{
	struct own_scratch *buffer = scratch();
	struct file_system_type *type;
	struct file_record *record;
	struct dentry *parent, *root = 0;
	struct super_block *super;
	struct mount *mount = 0, *up;
	struct file_key key = {};
	struct inode *inode;
	__u32 length;
	__u8 one = 1;
	long n;

	if (!buffer || !dentry)
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
	record->flags = FILE_TRUNCATED | (mnt ? 0 : FILE_NO_MOUNT);
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
	if (mnt) {
		mount = (struct mount *)((char *)mnt - __builtin_offsetof(struct mount, mnt));
		root = READ(mnt, mnt_root);
	}
	for (int i = 0; i < PATH_NAMES; i++) {
		parent = READ(dentry, d_parent);
		if (dentry == root || dentry == parent) {
			up = mount ? READ(mount, mnt_parent) : 0;
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
	asm volatile("" : "+r"(length));	/* the compiler knows the bound by now, the verifier may not */
	length &= 2 * PATH_BYTES - 1;
	if (events.perf_submit(ctx, record, __builtin_offsetof(struct file_record, text) + length)) {
		count(LOST_RING);
		files_seen.delete(&key);	/* the next slow call tells it */
	}
}

HERE void tell_open_file(void *ctx, struct file *file)
{
	tell_file(ctx, READ(file, f_path.mnt), READ(file, f_path.dentry));
}
#endif
