/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The file of a descriptor, and its full path, emitted once per file and window. */
#ifndef WHYSTALL_FILES_BPF_H
#define WHYSTALL_FILES_BPF_H

#include "host.bpf.h"
#include "files.h"

#define PATH_COMPONENTS 64
HASH_MAP(files_seen, struct file_key, __u8, 65536);

#ifndef NO_KERNEL_FUNCTIONS
/* As find_file, with plain loads, which are faster: called at every system call. */
static __always_inline bool find_task_file(struct task_struct *task, __s64 fd, struct found_file *found)
{
	struct files_struct *files;
	struct fdtable *table;
	struct inode *inode;
	struct file *file;

	files = task->files;
	if (fd < 0 || !files)
		return false;
	table = files->fdt;
	if (fd >= table->max_fds)
		return false;
	if (bpf_probe_read_kernel(&file, sizeof(file), table->fd + fd) || !file)
		return false;
	found->file = file;
	file = bpf_rdonly_cast(file, bpf_core_type_id_kernel(struct file));
	inode = file->f_inode;
	found->mode = inode->i_mode;
	found->key.ino = inode->i_ino;
	found->key.dev = inode->i_sb->s_dev;
	found->key.gen = inode->i_generation;
	if (is_anonymous(&found->key)) {
		found->mode = 0;
		name_anonymous(&found->key, BPF_CORE_READ(file, f_path.dentry));
	}
	return true;
}
#else
static __always_inline bool find_task_file(struct task_struct *task, __s64 fd, struct found_file *found)
{
	return find_file(BPF_CORE_READ(task, files), fd, found);
}
#endif

/*
 * Emits the path of (mnt, dentry) once per window; mnt 0: within the file system only. The inode is the dentry's, or
 * `inode_address` if another file has the content (overlayfs). A global function is verified once (since 5.6).
 */
__noinline int emit_file_as(__u64 mnt_address, __u64 dentry_address, __u32 user, __u64 inode_address)
{
	struct vfsmount *mnt = (struct vfsmount *)mnt_address;
	struct dentry *dentry = (struct dentry *)dentry_address;
	struct scratch *buffer = scratch(user);
	struct path_walk walk = {};
	struct file_record *record;
	struct file_key key = {};
	struct inode *inode;
	__u32 length;
	__u8 one = 1;
	helper_error err;

	if (!buffer || !dentry)
		return 0;
	inode = inode_address ? (struct inode *)inode_address : BPF_CORE_READ(dentry, d_inode);
	if (!inode)
		return 0;
	inode_key(inode, &key);
	if (is_anonymous(&key))
		name_anonymous(&key, dentry);
	err = bpf_map_update_elem(&files_seen, &key, &one, BPF_NOEXIST);
	if (err) {
		if (err != -17 /* EEXIST */)
			count(LOST_FILES_FULL);
		return 0;
	}
	record = &buffer->file;
	fill_file(record, &walk, &key, inode, mnt, dentry);
	REPEAT(PATH_COMPONENTS, PATH_COMPONENTS, walk_up, &walk);
	length = record->length;
	if (length > PATH_BYTES)
		return 0;
	if (bpf_ringbuf_output(&ring, record, __builtin_offsetof(struct file_record, text) + length, ring_flags())) {
		count(LOST_RING_FILE);
		bpf_map_delete_elem(&files_seen, &key);	/* the next slow call emits it */
	} else {
		count(SEEN_RECORDS);
	}
	return 0;
}

static __always_inline void emit_file(__u64 mnt_address, __u64 dentry_address, __u32 user)
{
	emit_file_as(mnt_address, dentry_address, user, 0);
}

static __always_inline void emit_open_file(struct file *file, __u32 user)
{
	emit_file((__u64)BPF_CORE_READ(file, f_path.mnt), (__u64)BPF_CORE_READ(file, f_path.dentry), user);
}

/*
 * Emits the file of a descriptor (AT_FDCWD: the working directory); its identity goes to
 * scratch.keys[which], all zero when there is none. A global function, verified once.
 */
__noinline int emit_descriptor(__u64 files, __u64 fs_address, __s32 fd, __u32 user, __u32 which)
{
	struct fs_struct *fs = (struct fs_struct *)fs_address;
	struct scratch *buffer = scratch(user);
	struct found_file found = {};
	struct file_key *key;
	struct dentry *dentry;

	if (!buffer || which >= KEY_COUNT)
		return 0;
	key = &buffer->keys[which];
	__builtin_memset(key, 0, sizeof(*key));
	if (fd == AT_FDCWD) {
		dentry = BPF_CORE_READ(fs, pwd.dentry);
		inode_key(BPF_CORE_READ(dentry, d_inode), key);
		emit_file((__u64)BPF_CORE_READ(fs, pwd.mnt), (__u64)dentry, user);
	} else if (find_file((struct files_struct *)files, fd, &found)) {
		*key = found.key;
		emit_open_file(found.file, user);
	}
	return 0;
}

#endif
